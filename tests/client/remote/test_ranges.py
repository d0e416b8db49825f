"""Ranges through gateways: no record twice and none left out, whichever gateway is lost on the way."""

import contextlib
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.client.remote.scripted_gateway import scripted
from tests.cluster.gateways import Parts, three_brokers
from tests.waiting import wait_until
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.client.remote import ranges, wire
from tubemq_spark.client.remote.ranges import RestOfRange, read_remote_range
from tubemq_spark.errors import (
    DataLossError,
    GatewayError,
    LocalProtocolError,
    OffsetFormatError,
    RemoteProtocolError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.net.retry import Sleep
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import INT32, MalformedMessageError, pack

ROW = 28
HERE = TopicPartition("demo", 1, 0)
COUNT = 3_000
BODY = b"x" * 3_000
"""Enough for many fetches of half a MiB: more than a gateway and gRPC keep ready."""


@pytest.fixture
def parts(request):
    with three_brokers(gateways=2) as running:
        with running.cluster.sender("test") as sender:
            for start in range(0, COUNT, 500):
                sender.send_batch(
                    running.batch([b"%06d" % n + BODY for n in range(start, start + 500)], HERE)
                )
        yield running


def numbers(batch):
    return [int(batch.columns.message(row).value[:6]) for row in range(len(batch.columns))]


def ranged(parts, end=COUNT * ROW, **how):
    layout = parts.cluster.layout(["demo"])
    request = layout.request(OffsetRange(HERE, 0, end), own_store=True)
    return parts.cluster.read_range(request, how.pop("on_loss", fail_on_loss), **how)


@pytest.mark.parametrize("stop", [Parts.kill, Parts.drain])
def test_a_gateway_that_stops_is_left_for_the_next_one_in_the_middle(parts, stop):
    found = []
    for batch in ranged(parts):
        found += numbers(batch)
        if parts.running[0] is not None:
            stop(parts, 0)
    assert found == list(range(COUNT))


def test_a_gateway_that_comes_back_is_waited_for(parts):
    """All of them are away for a moment."""
    found, looks = [], []

    def check():
        if parts.running == [None, None]:
            looks.append(len(found))
            if len(looks) == 2:
                parts.restart(0)

    for batch in ranged(parts, wait=Sleep(check=check)):
        found += numbers(batch)
        for gateway in (0, 1):
            if not looks and parts.running[gateway] is not None:
                parts.kill(gateway)
    assert found == list(range(COUNT))
    assert looks[0] < COUNT


def test_no_gateway_for_too_long_is_an_error(parts):
    reading = ranged(parts.with_settings(fetch_timeout_ms=200))
    next(reading)
    parts.kill(0)
    parts.kill(1)
    with pytest.raises(TubeMQTimeoutError, match="TUBEMQ_NO_PROGRESS"):
        list(reading)


def test_a_loss_that_is_found_again_by_the_next_gateway_is_reported_once(parts):
    recorder = LossRecorder()
    found, reports = [], []

    def on_loss(record):
        reports.append(record)
        recorder(record)
        if parts.running[0] is not None:
            parts.kill(0)

    for batch in ranged(parts, (COUNT + 5) * ROW, on_loss=on_loss):
        found += numbers(batch)
    assert found == list(range(COUNT))
    assert [one.loss for one in reports] == [Loss.TRUNCATED]


def test_a_policy_that_raises_ends_the_reading_and_frees_the_gateway(parts):
    with pytest.raises(DataLossError):
        list(ranged(parts, (COUNT + 5) * ROW))
    wait_until(lambda: parts.running[0].server._admission.reads.quota.used == 0)


def test_a_client_that_does_not_read_holds_few_bytes_in_the_gateway_and_gives_them_back_at_the_end(parts):
    reading, admission = ranged(parts), parts.running[0].server._admission
    next(reading)
    with contextlib.closing(reading):
        wait_until(lambda: admission.bytes.used > 0)
        assert admission.bytes.used < COUNT * len(BODY)
        assert admission.reads.quota.used == 1
    wait_until(lambda: admission.reads.quota.used == admission.bytes.used == 0)


def test_an_error_raised_while_waiting_ends_the_reading(parts):
    def interrupt():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        list(ranged(parts, wait=Sleep(check=interrupt)))


@pytest.mark.parametrize(
    ("start", "end", "error"),
    [(1, ROW, OffsetFormatError), (-ROW, ROW, OffsetFormatError), (ROW, 0, LocalProtocolError)],
)
def test_a_range_that_makes_no_sense_is_refused_at_once(parts, start, end, error):
    layout = parts.cluster.layout(["demo"])
    with pytest.raises(error):
        parts.cluster.read_range(layout.request(OffsetRange(HERE, start, end)), fail_on_loss)


def batch(start, end):
    return FetchedBatch(HERE, start, end, None, True)


@given(
    st.lists(st.tuples(st.sampled_from([None, *Loss]), st.integers(0, 30), st.integers(0, 30)), max_size=12)
)
def test_the_rest_of_a_range_only_shrinks_and_is_never_read_twice(steps):
    left = RestOfRange(OffsetRange(HERE, 10, 20))
    read = []
    for kind, one, other in steps:
        before = left.start, left.end
        begin, end = sorted((one, other))
        if kind is None:
            if before[0] <= begin <= end <= before[1]:
                left.note_read(batch(begin, end))
                read.append((begin, end))
            else:
                with pytest.raises(MalformedMessageError):
                    left.note_read(batch(begin, end))
        else:
            left.lost(LossRecord(kind, HERE, begin, end))
        assert before[0] <= left.start
        assert left.end <= before[1]
        assert left.is_empty() or left.start < left.end
    for (_, end), (begin, _) in itertools.pairwise(read):
        assert end <= begin


def test_a_loss_moves_the_end_it_is_about():
    left = RestOfRange(OffsetRange(HERE, 10, 20))
    assert left.lost(LossRecord(Loss.EXPIRED, HERE, 10, 12))
    assert not left.lost(LossRecord(Loss.EXPIRED, HERE, 10, 12))
    assert (left.start, left.end) == (12, 20)
    left.lost(LossRecord(Loss.CORRUPT, HERE, 13, 14))
    assert (left.start, left.end) == (12, 20)
    left.lost(LossRecord(Loss.TRUNCATED, HERE, 15, 20))
    assert (left.start, left.end) == (12, 15)
    left.lost(LossRecord(Loss.TOPIC_REMOVED, HERE, 12, 15))
    assert left.is_empty()


# What no gateway of ours says.


def records(start, end):
    """Return an event with some records, here none."""
    borders = pack(np.zeros(1, np.int64), INT32)
    return pb.ReadRangeResponse(batch=pb.RecordBatch(start=start, next=end, dense=True, borders=borders))


LOST = pb.ReadRangeResponse(loss=pb.Loss(kind="ODD"))


def read_scripted(*scripts, on_loss=fail_on_loss, **settings):
    """Return what is read of ten records through gateways that answer like this, and what they were asked."""
    asked = []

    def answering(script):
        answers = iter(script)

        def read(request):
            asked.append((request.start, request.end))
            for answer in next(answers):
                if isinstance(answer, Exception):
                    raise answer
                yield answer

        return read

    with scripted(*({"ReadRange": answering(script)} for script in scripts), **settings) as (_, gateways):
        request = RangeRequest(OffsetRange(HERE, 0, 10 * ROW), Route(Endpoint("h", 1), 0))
        batches = read_in_thread(read_remote_range(gateways, request), request.range, on_loss)
        read = [(batch.start, batch.next) for batch in batches]
    return read, asked


@pytest.mark.parametrize(
    "answer",
    [b"\xff", LOST, records(ROW, 3 * ROW), records(2 * ROW, 11 * ROW)],
    ids=["no event", "no loss", "read before", "beyond the end"],
)
def test_an_answer_that_makes_no_sense_is_an_error_and_no_records(answer):
    with pytest.raises(RemoteProtocolError, match="TUBEMQ_GATEWAY_ANSWER"):
        read_scripted([[records(0, 2 * ROW), answer]])


def test_the_next_gateway_is_asked_for_what_is_left():
    away = RuntimeError("it died")
    read, asked = read_scripted([[records(0, 3 * ROW), away]], [[records(3 * ROW, 10 * ROW)]])
    assert read == [(0, 3 * ROW), (3 * ROW, 10 * ROW)]
    assert asked == [(0, 10 * ROW), (3 * ROW, 10 * ROW)]


def test_a_loss_in_the_middle_that_the_next_gateway_finds_again_is_reported_once():
    loss, reports = LossRecord(Loss.SKIPPED, HERE, 4 * ROW, 5 * ROW), []
    told, away = pb.ReadRangeResponse(loss=wire.loss_to_proto(loss)), RuntimeError("it died")
    read_scripted([[told, away]], [[told, records(0, 10 * ROW)]], on_loss=reports.append)
    assert reports == [loss]


def test_a_busy_gateway_is_asked_again_when_it_says():
    busy = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="g", what="it is full", retry_after_ms=20)
    read, asked = read_scripted([[busy], [records(0, 10 * ROW)]], [])
    assert read == [(0, 10 * ROW)]
    assert asked == [(0, 10 * ROW)] * 2


def test_a_gateway_that_tells_of_a_timeout_is_there():
    told = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="broker1:8123", timeout_ms=5_000, during="fetching")
    with pytest.raises(TubeMQTimeoutError, match="broker1:8123"):
        read_scripted([[records(0, 3 * ROW), told]], [[records(3 * ROW, 10 * ROW)]])


def test_a_gateway_that_lives_and_says_nothing_is_left_for_the_next_one(monkeypatch):
    monkeypatch.setattr(ranges, "_SILENT_S", 0.0)
    is_left = threading.Event()

    def silent():
        yield records(0, 3 * ROW)
        is_left.wait(20)

    def other():
        is_left.set()
        yield records(3 * ROW, 10 * ROW)

    read, asked = read_scripted([silent()], [other()], fetch_timeout_ms=2_000)
    assert read == [(0, 3 * ROW), (3 * ROW, 10 * ROW)]
    assert asked == [(0, 10 * ROW), (3 * ROW, 10 * ROW)]
