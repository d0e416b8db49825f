"""The log of a gateway process: its format, and files that are replaced; and gateways beside other work.

What waits for a server is a coroutine, so there are as many threads with much work as with none. What hostile
clients try reaches nothing, and others hardly notice; ``python -m benchmarks.gateway_attacks`` shows
the same attacks with the times of another client's heartbeats.
"""

import asyncio
import contextlib
import json
import logging
import re
import sys
import time

import pytest

from testkit.attacks import ATTACKS, LIMIT_BYTES, SLACK_BYTES, run
from testkit.gateway_caller import GatewayProcess
from testkit.heartbeats import LEAST
from tests.gateway.fleet import ROW, attach, place, publish
from tests.gateway.running import PlainClient, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.process import LimitedHandler, log_handler
from tubemq_spark.gateway.settings import load_settings
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


def settings(**flags):
    return load_settings(None, {}, {"master_servers": "m", **flags})


def record(message, *arguments, cause=None, level=logging.INFO):
    failure = None
    if cause is not None:
        try:
            raise ValueError(cause)
        except ValueError:
            failure = sys.exc_info()
    entry = logging.LogRecord("tubemq_spark.gateway", level, __file__, 1, message, arguments, failure)
    entry.created, entry.msecs = 1_767_225_600.25, 250.0
    return entry


def written(path, *records, **flags):
    handler = log_handler(settings(log_file=str(path), **flags))
    for one in records:
        handler.emit(one)
    handler.close()
    return path.read_text(encoding="utf-8")


def test_an_entry_is_a_line_with_its_time_in_utc(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    text = written(tmp_path / "log", record("hello"))
    entry = json.loads(written(tmp_path / "json", record("hello"), log_json="true"))
    monkeypatch.undo()
    time.tzset()
    assert text == "2026-01-01T00:00:00Z INFO tubemq_spark.gateway: hello\n"
    assert entry["time"] == "2026-01-01T00:00:00.250Z"


def test_in_json_an_entry_with_a_traceback_is_one_line_too(tmp_path):
    text = written(tmp_path / "log", record('a "b"\nc'), record("d", cause="a cause"), log_json="true")
    first, second = map(json.loads, text.splitlines())
    assert first == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "tubemq_spark.gateway",
        "message": 'a "b"\nc',
    }
    assert "ValueError: a cause" in second["traceback"]


def test_a_large_file_gives_way_to_a_new_one_and_only_so_many_are_kept(tmp_path):
    limits = {"log_file_bytes": "65536", "log_files": "2"}
    written(tmp_path / "log", *[record("x" * 10_000)] * 40, **limits)
    found = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert found.keys() == {"log", "log.1", "log.2"}
    assert max(found.values()) <= 65_536


def test_a_log_without_a_file_goes_to_stderr(capsys):
    log_handler(settings()).emit(record("hello"))
    assert re.search("INFO tubemq_spark.gateway: hello", capsys.readouterr().err)


def test_a_file_that_cannot_be_written_is_refused_before_the_start(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "log"):
        with pytest.raises(GatewayError, match=r"log_file .* a file that this process may write"):
            settings(log_file=str(path))


NO_LINE_OF_ITS_OWN = {
    "line end": "a\n2026-01-01T00:00:00Z INFO tubemq_spark.gateway: forged",
    "carriage return": "a\rforged",
    "ESC": "\x1b[2J\x1b[31mred",
    "C1": "\x9b31mred\x85next",
    "DEL": "a\x7f",
    "line separator": "a\u2028b\u2029c",
    "direction": "abc\u202etxt.exe\u2066\u200f",
    "surrogate": "a\ud800b",
}


@pytest.mark.parametrize("text", NO_LINE_OF_ITS_OWN.values(), ids=NO_LINE_OF_ITS_OWN.keys())
@pytest.mark.parametrize("json_log", ["false", "true"])
def test_no_text_of_a_client_makes_a_line_or_moves_a_cursor(tmp_path, text, json_log):
    content = written(tmp_path / "log", record("session %s", text), log_json=json_log)
    assert len(content.splitlines()) == 1
    assert content.removesuffix("\n").isprintable()


def test_the_lines_of_a_traceback_do_not_look_like_entries(tmp_path):
    entry = record("failed", cause="a\n2026-01-01T00:00:00Z INFO tubemq_spark.gateway: forged\x1b[2J")
    first, *others = written(tmp_path / "log", entry).split("\n")[:-1]
    assert first.endswith("failed")
    assert len(others) > 2
    assert all(line.startswith("  ") and line.isprintable() for line in others)


@pytest.mark.parametrize("json_log", ["false", "true"])
def test_a_long_value_is_cut_and_those_beside_it_are_not(tmp_path, json_log):
    entry = record("topic %s of %s after %.1f ms", "t" * 300_000, "client-1", 2.25)
    content = written(tmp_path / "log", entry, log_json=json_log)
    assert len(content) < 1_300
    assert "300,000 characters) of client-1 after 2.2 ms" in content


def limited(lines, clock):
    """Return a handler that limits what is added to the lines."""
    target = logging.Handler()
    target.emit = lambda entry: lines.append(entry.getMessage())
    return LimitedHandler(target, clock=clock)


def test_failures_of_a_kind_are_written_a_few_times_and_then_counted():
    now, lines = [0.0], []
    handler = limited(lines, lambda: now[0])

    def log(number, kind, level=logging.INFO):
        for _ in range(number):
            entry = record(f"call refused: {kind}", level=level)
            if kind is not None and level == logging.INFO:
                entry.kind = kind
            handler.handle(entry)

    log(1_244, "TUBEMQ_SESSION_UNKNOWN")
    log(12, "x", logging.WARNING)
    log(100, None)  # what has no kind is not limited
    assert len(lines) == 10 + 10 + 100
    now[0] = 60.0
    log(1, None)
    assert lines[-3:-1] == [
        "and 1,234 more of TUBEMQ_SESSION_UNKNOWN in 60 s",
        'and 2 more of "call refused: x" in 60 s',
    ]
    log(11, "TUBEMQ_SESSION_UNKNOWN")
    handler.close()
    assert lines[-2:] == [
        "call refused: TUBEMQ_SESSION_UNKNOWN",
        "and 1 more of TUBEMQ_SESSION_UNKNOWN in 0 s",
    ]


def test_kinds_that_are_all_different_are_limited_together():
    lines = []
    handler = limited(lines, lambda: 0.0)
    for number in range(1_000):
        handler.handle(record(f"warning {number}", level=logging.WARNING))
    handler.close()
    assert len(lines) < 600


def test_gateways_and_clients_of_a_process_share_its_event_loop(monkeypatch):
    """Several loops of gRPC in one process lose a wake-up now and then."""
    loop.run(asyncio.sleep(0))
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: pytest.fail("another event loop"))
    with (
        tubemq(demo=(1, 1)) as server,
        gateway(server) as first,
        gateway(server) as second,
        TubeMQClient.connect(f"gateway://{first.address},{second.address}?group=readers") as client,
    ):
        assert len(client.layout("demo").partitions) == 3


_CLIENTS = 40
_GRPC_THREADS = 4
"""How many gRPC itself may begin when there is more to do."""


def test_ranges_questions_and_consumers_that_wait_for_a_broker_begin_no_threads():
    with (
        tubemq(demo=(1, 1)) as server,
        GatewayProcess(server.master, web=server.master_web) as served,
        contextlib.ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(PlainClient(served.address, f"client{number}")) for number in range(_CLIENTS)
        ]
        for client in clients:
            client.open(group=client.session.client_id)
        for value in (b"one", b"two"):
            publish(clients[0], "demo", value)
        for client in clients:
            assert attach(client, "demo", 2)[0].WhichOneof("result") == "offset"
        clients[0]("ReadRange", partition=place("demo"), start=0, end=ROW, own_store=True)
        before = served.threads
        server.faults.freeze_broker(1)
        ranges = [
            client.begin(
                "ReadRange", partition=place("demo"), start=0, end=2 * ROW, own_store=True, timeout=30
            )
            for client in clients
        ]
        store = pb.Store(topic="demo", broker_id=1)
        questions = [client.begin("QueryBounds", stores=[store], timeout=30) for client in clients]
        wait_until(lambda: clients[0]("DescribeGateway").open_reads == _CLIENTS)
        assert served.threads <= before + _GRPC_THREADS
        for call in [*ranges, *questions]:
            call.cancel()
        wait_until(lambda: clients[0]("DescribeGateway").open_reads == 0)
        server.faults.start_broker(1)


_LONG = ("threads", "streams", "page", "memory b: many windows", "memory c: bodies", "memory d: names")
"""Thousands of calls, requests of half a minute, and hundreds of megabytes in three more ways."""


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in _LONG else []) for name in ATTACKS]
)
def test_an_attack_reaches_nothing(name, tmp_path):
    outcome = run(name, tmp_path)
    assert outcome.reached == []
    assert outcome.grown_bytes < LIMIT_BYTES + SLACK_BYTES
    assert outcome.errors == [], "heartbeats of another client"


@pytest.mark.process
def test_an_attack_that_is_over_at_once_is_judged_by_as_many_heartbeats(monkeypatch, tmp_path):
    monkeypatch.setitem(ATTACKS, "nothing", lambda stage: [])
    outcome = run("nothing", tmp_path, quiet_s=0)
    assert outcome.errors == []
    assert len(outcome.quiet_ms) >= LEAST
    assert len(outcome.took_ms) >= LEAST
