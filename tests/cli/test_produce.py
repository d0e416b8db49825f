"""The command ``produce`` as a process: lines are stored as they come."""

import datetime
import re
import signal
import subprocess
import sys
import zoneinfo

import pytest

from tests.cases import in_one_test
from tests.waiting import wait_until
from tubemq_spark.cli.main import main
from tubemq_spark.cli.produce import stored_time
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

SECONDS = 30
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from tubemq_spark.cli.main import main; sys.exit(main())",
    "produce",
    "demo",
    "--master",
]


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}) as running:
        yield running


@pytest.fixture
def process(server):
    command = [*COMMAND, server.master]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        yield running
        running.kill()


def type_in(process, lines):
    process.stdin.write(lines)
    process.stdin.flush()


def test_lines_are_stored_while_the_input_goes_on(server, process):
    type_in(process, b"one\ntwo\n")
    wait_until(lambda: server.stats().messages_in == 2, SECONDS)
    process.stdin.close()
    assert process.wait(SECONDS) == 0


def test_sigterm_ends_the_command_with_what_it_has_read_stored(server, process):
    type_in(process, b"one\ntwo\n")
    wait_until(lambda: server.stats().messages_in == 2, SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 130
    assert b"stored before it ended: 2 messages" in process.stderr.read()


def produced(server, path, *arguments):
    """Send the lines of a file in this process; return the times and attributes of what is stored."""
    assert main(["produce", "demo", str(path), "--master", server.master, *arguments]) == 0
    with TubeMQClient.connect(server.master) as client:
        return [(record.message_time, record.attributes) for record in client.read("demo")]


def test_a_key_delimiter_may_be_a_byte_that_is_not_utf_8(server, tmp_path):
    path = tmp_path / "lines\udcff"
    path.write_bytes(b"key\xfeone\nkey\xfetwo\n")
    produced(server, path, "--key-delimiter", "\udcfe")
    with TubeMQClient.connect(server.master) as client:
        assert [record.value for record in client.read("demo")] == [b"one", b"two"]
    assert main(["produce", "demo", str(path), "--master", server.master, "--key-delimiter", "\udcfd"]) == 2


def test_a_line_that_is_nested_too_deeply_is_refused(server, tmp_path, capsys):
    (tmp_path / "lines").write_bytes(b"[" * 100_000 + b"\n")
    arguments = [str(tmp_path / "lines"), "--json-lines", "--master", server.master]
    assert main(["produce", "demo", *arguments]) == 2
    assert "line 1: it is not JSON (maximum recursion depth exceeded" in capsys.readouterr().err


def test_lines_get_the_time_of_sending_in_the_zone_of_message_times(server, tmp_path):
    (tmp_path / "lines").write_text("one\n")
    shanghai = zoneinfo.ZoneInfo("Asia/Shanghai")
    before = datetime.datetime.now(shanghai)
    ((stored, _),) = produced(server, tmp_path / "lines", "--message-time-zone", "Asia/Shanghai")
    moment = datetime.datetime.strptime(stored, "%Y%m%d%H%M").replace(tzinfo=shanghai)
    assert before - datetime.timedelta(minutes=1) < moment <= datetime.datetime.now(shanghai)


def test_lines_may_name_their_time_or_go_without(server, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text(
        '{"value": "a", "messageTime": "202601010000", "attributes": {"$tenant": "t"}}\n{"value": "b"}\n'
    )
    assert produced(server, lines, "--json-lines", "--no-message-time") == [
        ("202601010000", {"$msgTime$": "202601010000", "$tenant": "t"}),
        (None, None),
    ]
    times = [time for time, _ in produced(server, lines, "--json-lines", "--message-time", "202602020000")]
    assert times[2:] == ["202601010000", "202602020000"]


@in_one_test(
    ("text", "zone", "stored"),
    [
        ("202602020000", "Asia/Shanghai", "202602020000"),
        ("2026-02-02T00:00", "Asia/Shanghai", "202602020800"),
        ("2026-02-02T00:00+08:00", "UTC", "202602011600"),
        ("2026-02-02 00:00:59", "UTC", "202602020000"),
        ("2026-02-02", "UTC", "202602020000"),
        ("20260202", "UTC", "202602020000"),
        ("1769990400000", "UTC", "202602020000"),
        ("1769990459999", "Asia/Shanghai", "202602020800"),
        ("2026-10-25T00:30Z", "Europe/Berlin", "202610250230"),
    ],
)
def test_a_message_time_is_stored_in_the_zone_of_message_times(text, zone, stored):
    assert stored_time(text, zoneinfo.ZoneInfo(zone)) == stored


@in_one_test(
    "text",
    [
        *("yesterday", "", "202613020000", "1769990400", "26", "20260202000000", "١٧٦٩٩٩٠٤٠٠٠٠٠"),
        *("-1769990400000", "2026-02-30", "9999-12-31T23:59-12:00"),
    ],
)
def test_what_is_no_message_time_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))) as refused:
        stored_time(text, zoneinfo.ZoneInfo("Asia/Shanghai"))
    assert "is not a time: 2026-01-31T12:00 or 2026-01-31T12:00+08:00, milliseconds" in str(refused.value)


def test_the_second_of_two_equal_hours_is_refused():
    with pytest.raises(ValueError, match="Europe/Berlin, which sets its clocks back then"):
        stored_time("2026-10-25T01:30Z", zoneinfo.ZoneInfo("Europe/Berlin"))


def test_times_of_arguments_and_of_lines_take_the_same_forms(server, tmp_path, capsys):
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "messageTime": 1769990400000}\n{"value": "b"}\n')
    how = ["--json-lines", "--message-time", "2026-02-02T01:00+01:00", "--message-time-zone", "Asia/Shanghai"]
    assert [time for time, _ in produced(server, lines, *how)] == ["202602020800", "202602020800"]
    assert main(["produce", "demo", str(lines), "--master", server.master, "--message-time", "soon"]) == 2
    assert "--message-time cannot be used: 'soon' is not a time: 2026-01-31T12:00 " in capsys.readouterr().err
    lines.write_text('{"value": "a", "messageTime": "soon"}\n')
    assert main(["produce", "demo", str(lines), "--master", server.master, "--json-lines"]) == 2
    assert "line 1: its messageTime 'soon' is not a time: 2026-01-31T12:00 " in capsys.readouterr().err


def test_a_time_and_none_exclude_each_other(server, tmp_path, capsys):
    arguments = ["produce", "demo", "--master", server.master, "--message-time", "202601010000"]
    assert main([*arguments, "--no-message-time"]) != 0
    assert "TUBEMQ_OPTIONS_EXCLUSIVE" in capsys.readouterr().err
