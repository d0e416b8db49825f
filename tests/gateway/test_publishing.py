"""Publish streams: windows of batches, which hold bytes until they are answered, and nothing at rest."""

import asyncio
import threading
import time

import grpc
import numpy as np
import pytest

from tests.gateway.fleet import batch_to, fleet_of, publish, upstream
from tests.gateway.running import BAD_REQUEST, BUSY, DRAINING, Stream, refused
from tests.waiting import wait_until
from tubemq_spark.embedded.server import TopicSpec
from tubemq_spark.gateway import publishing
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

MIB = 1 << 20


class Publishing(Stream):
    """A publish stream, whose answers are taken when a test wants them."""

    def __init__(self, client, **begin):
        super().__init__(client, "PublishStream")
        self._numbers = 0
        self.put(begin=pb.PublishStreamRequest.Begin(name="stream", **begin))
        assert self.answer().number == 0

    def put(self, **request):
        self.send(pb.PublishStreamRequest(**request))

    def parts(self, message, length):
        """Send a batch in parts."""
        data = message.SerializeToString()
        for first in range(0, len(data), length):
            part = pb.PublishStreamRequest.Part(data=data[first : first + length], size=len(data))
            self.put(part=part, number=1)

    def batch(self, message):
        self._numbers += 1
        self.put(batch=message, number=self._numbers)
        return self._numbers

    def publish(self, topic, *values, broker_id=1):
        return self.batch(batch_to(topic, *values, broker_id=broker_id))

    def answer(self):
        return next(self.call)

    def stored(self):
        """How many messages of the next batch are stored."""
        answer = self.answer()
        assert not answer.failures, answer
        return sum(item.count for item in answer.receipts)


def bytes_in(fleet):
    return fleet.gateway._admission.bytes.used


@pytest.fixture
def narrow(server):
    """A gateway with one producer and little room."""
    with fleet_of(server, publishes=1, queue_ms=50, total_bytes=4 * MIB, session_bytes=2 * MIB) as fleet:
        yield fleet


@pytest.fixture
def topic(narrow):
    return narrow.topic()


@pytest.fixture
def stream(narrow):
    stream = Publishing(narrow.client("writers"))
    yield stream
    stream.break_off()


def test_batches_are_sent_without_waiting_and_each_is_answered_once(narrow, topic, stream):
    (served,) = narrow.gateway._publishing._streams
    with narrow.server.faults.hold(Method.SEND_MESSAGE):
        numbers = [stream.publish(topic, b"%d" % n, b"x", broker_id=1 + n % 3) for n in range(50)]
        wait_until(lambda: len(served._under_way) == 50)
    answers = stream.finish()
    assert sorted(answer.number for answer in answers) == numbers
    assert {sum(item.count for item in answer.receipts) for answer in answers} == {2}
    assert bytes_in(narrow) == 0


def test_equal_streams_share_a_producer_with_its_connections_and_take_no_thread(server, narrow, topic):
    streams = [Publishing(narrow.client("writers")) for _ in range(20)]
    streams[0].publish(topic, b"x")
    assert streams[0].stored() == 1
    threads, connections = set(threading.enumerate()), upstream(server)
    for stream in streams:
        stream.publish(topic, b"x")
    assert [stream.stored() for stream in streams] == [1] * 20
    assert set(threading.enumerate()) <= threads
    assert upstream(server) == connections
    assert narrow.gateway._admission.publishes.used == 1
    assert [stream.finish() for stream in streams] == [[]] * 20


def test_streams_at_rest_give_way_to_others_of_their_session_that_have_something_to_say(server, monkeypatch):
    """Only some may read at a time: what a stream reads comes into memory before its length is known."""
    monkeypatch.setattr(publishing, "_REST_S", 0.05)
    with fleet_of(server, total_bytes=4 * MIB, session_bytes=2 * MIB) as fleet:
        topic, client = fleet.topic(), fleet.client("writers")
        arriving, streams = fleet.gateway._admission.arriving, []
        for _ in range(40):
            stream = Publishing(client)
            stream.publish(topic, b"x")
            assert stream.stored() == 1
            assert arriving.used <= 12
            streams.append(stream)
        wait_until(lambda: len(fleet.gateway._publishing._streams) <= 12)
        assert arriving.waiting == 0
        for stream in streams:
            stream.break_off()
        wait_until(lambda: arriving.used == 0)


def test_streams_at_rest_hold_nothing_that_others_need(server, narrow):
    """As many as there may be producers, and more: each says begin, and then nothing."""
    resting = [Publishing(narrow.client(f"idle_{number}")) for number in range(8)]
    assert narrow.gateway._admission.publishes.used == 0
    publish(narrow.client("writers"), narrow.topic(), b"x")
    for stream in resting:
        stream.break_off()


async def running_loop():
    return asyncio.get_running_loop()


def test_a_resting_stream_wakes_nothing(stream):
    running = loop.run(running_loop())
    steps = []
    real = running._run_once
    running._run_once = lambda: (steps.append(1), real())[1]
    try:
        time.sleep(0.5)
    finally:
        running._run_once = real
    assert len(steps) < 20, "it looks again and again"
    stream.break_off()


def test_bytes_are_held_until_brokers_have_stored_them_and_no_more_is_read(server, narrow, topic):
    """A client that asks for a boundless window before a broker that hangs fills no memory."""
    stream = Publishing(narrow.client("greedy", max_in_flight=1 << 30, max_in_flight_bytes=1 << 60))
    with server.faults.hold(Method.SEND_MESSAGE) as hung:
        for _ in range(20):
            stream.publish(topic, bytes(MIB // 2))
        wait_until(lambda: hung.hits and bytes_in(narrow) > MIB)
        time.sleep(0.5)  # more might be read
        assert MIB < bytes_in(narrow) <= 3 * MIB
    assert [stream.stored() for _ in range(20)] == [1] * 20
    wait_until(lambda: bytes_in(narrow) == 0)
    assert stream.finish() == []


def test_a_client_that_has_gone_gives_everything_back(server, narrow, topic):
    streams = [Publishing(narrow.client("gone", delivery_timeout_ms=86_400_000)) for _ in range(3)]
    with server.faults.hold(Method.SEND_MESSAGE):
        for stream in streams:
            stream.publish(topic, bytes(MIB // 4))
            stream.put(part=pb.PublishStreamRequest.Part(data=b"x", size=1000), number=2)
        wait_until(lambda: bytes_in(narrow) > 3 * MIB // 4)
        for stream in streams:
            stream.break_off()
        wait_until(lambda: bytes_in(narrow) == 0)
    publish(narrow.client("gone", delivery_timeout_ms=86_400_000), topic, b"next")


def test_one_who_stands_still_within_a_batch_is_ended_when_others_wait(server):
    with fleet_of(server, stall_ms=100, total_bytes=MIB, session_bytes=MIB) as fleet:
        topic = fleet.topic()
        stalled = Publishing(fleet.client("stalled"))
        stalled.put(part=pb.PublishStreamRequest.Part(data=b"x", size=MIB), number=1)
        wait_until(lambda: bytes_in(fleet) == MIB)
        time.sleep(0.3)
        assert stalled.call.is_active(), "it was ended although no other waits"
        publish(fleet.client("writers"), topic, b"x")
        assert stalled.end() == BUSY
        assert bytes_in(fleet) == 0


def test_the_producers_of_a_gateway_are_limited_and_kept_ones_give_way(server):
    with fleet_of(server, publishes=2) as fleet:
        topic = fleet.topic()
        for number in range(5):
            publish(fleet.client(f"writers_{number}"), topic, b"x")
        assert fleet.gateway._admission.publishes.used <= 2


def test_what_a_client_names_is_capped(server):
    with fleet_of(server, longest_wait_ms=300) as fleet:
        topic = fleet.topic()
        fleet.server.faults.answer(Method.SEND_MESSAGE, 503)
        stream = Publishing(fleet.client("patient", delivery_timeout_ms=86_400_000, max_in_flight=1 << 30))
        stream.publish(topic, b"x")
        (failure,) = stream.answer().failures
        fleet.server.faults.clear()
        assert failure.error.condition.startswith("TUBEMQ_SEND_FAILED")
        (kept,) = fleet.gateway._pipelines._entries.values()
        assert kept.pipeline.config.max_in_flight == 100_000
        assert kept.pipeline._most == (100_000, 64 * MIB), "of all streams together"
        stream.break_off()


def test_a_batch_may_be_longer_than_a_request(server):
    with fleet_of(server, max_message_bytes=64 << 10, session_bytes=MIB) as fleet:
        stream = Publishing(fleet.client("writers"))
        stream.parts(batch_to(fleet.topic(), *[bytes(10_000)] * 50), 50_000)
        assert stream.stored() == 50
        stream.put(part=pb.PublishStreamRequest.Part(data=b"x", size=MIB + 1), number=2)
        with pytest.raises(grpc.RpcError, match=f"{MIB} is the most"):
            list(stream.call)
        stream.send_no_more()


@pytest.mark.parametrize(
    "requests",
    [
        [{"number": 2, "batch": "good"}],
        [{"number": 1, "batch": "good"}, {"number": 1, "batch": "good"}],
        [{"number": 1, "batch": "odd"}],
        [{"number": 1, "part": (b"x", 5)}, {"number": 1, "batch": "good"}],
        [{"number": 1, "part": (b"x", 5)}, {"number": 2, "batch": "good"}],
        [{"number": 1, "part": (b"x", 5)}, {"number": 1, "part": (b"x", 6)}],
        [{"number": 1, "part": (b"x", 5)}, {"number": 2, "part": (b"x", 5)}],
        [{"number": 1, "part": (b"xxxxxx", 5)}],
        [{"number": 1, "part": (b"", 5)}, {"number": 1, "part": (b"", 5)}],
        [{"number": 1, "part": (b"xxxxx", 5)}],
        [{"number": 1, "part": (b"x", 5)}, None],
        [{"number": 1, "part": (b"x", 1 << 40)}],
        [{"begin": pb.PublishStreamRequest.Begin()}],
        [{}],
    ],
    ids=str,
)
def test_a_stream_that_contradicts_itself_is_ended_and_holds_nothing(narrow, requests, topic, stream):
    batches = {"good": batch_to(topic, b"x"), "odd": pb.MessageBatch(topics=[topic], topic_codes=b"abc")}
    batches["odd"].topic_codes = bytes(8)
    for request in requests:
        if request is None:
            stream.send_no_more()
            continue
        request_of = dict(request)
        if "batch" in request_of:
            request_of["batch"] = batches[request_of["batch"]]
        if "part" in request_of:
            data, size = request_of["part"]
            request_of["part"] = pb.PublishStreamRequest.Part(data=data, size=size)
        stream.put(**request_of)
    assert stream.end() == BAD_REQUEST
    wait_until(lambda: bytes_in(narrow) == 0)


def test_each_message_is_told_of_where_that_is_asked_for(narrow, topic):
    stream = Publishing(narrow.client("writers"), per_message=True)
    stream.batch(sends.to_proto(SendBatch.of(topic, [b"a", b"", b"c"])))
    answer = stream.answer()
    assert stream.finish() == []
    told = answer.outcomes
    codes = np.frombuffer(told.partition_codes, "<i4")
    assert codes[1] == -1
    assert {told.partitions[code].topic for code in codes[[0, 2]]} == {topic}
    assert np.frombuffer(told.offsets, "<i8").tolist() in ([0, 0, 0], [0, 0, 28])
    ids = np.frombuffer(told.message_ids, "<i8")
    assert ids[0] > 0
    assert ids[1] == 0
    assert told.attempts == told.unanswered == b""
    (failure,) = answer.failures
    assert failure.error.condition == "TUBEMQ_BAD_MESSAGE"
    assert np.frombuffer(failure.rows, "<i4").tolist() == [1]
    assert sum(item.count for item in answer.receipts) == 2


def test_refused_messages_are_told_by_their_rows_and_the_others_are_stored(server, topic, stream):
    topics = Coded((topic, "nowhere"), np.array([0, 1, 0, 1, 0, 0, 0]))
    body = BytesColumn.of([b"0", b"1", b"", b"3", bytes(MIB + 2048), b"5", b"6"])
    places = Coded(((1, 0), (7, 7)), np.array([0, 0, 0, 0, 0, 1, 0]))
    headers = Coded((MessageHeader(),), np.zeros(7, np.int64))
    stream.parts(sends.to_proto(SendBatch(topics, body, headers, None, places, 11)), MIB)
    answer = stream.answer()
    refused = {
        failure.error.condition: np.frombuffer(failure.rows, "<i4").tolist() for failure in answer.failures
    }
    assert refused == {
        "TUBEMQ_TOPIC_UNKNOWN": [1, 3],
        "TUBEMQ_BAD_MESSAGE": [2],
        "TUBEMQ_MESSAGE_TOO_LONG": [4],
        "TUBEMQ_PARTITION_UNKNOWN": [5],
    }
    texts = {failure.error.condition: failure.error.text for failure in answer.failures}
    assert "message 13 of stream" in texts["TUBEMQ_BAD_MESSAGE"]
    assert "message 15 of stream" in texts["TUBEMQ_MESSAGE_TOO_LONG"]
    assert [item.count for item in answer.receipts] == [2]
    stream.put(batch=sends.to_proto(SendBatch.of("nowhere", [b"x"] * 3)), number=2)
    (failure,) = stream.answer().failures
    assert np.frombuffer(failure.rows, "<i4").tolist() == [0, 1, 2]
    assert stream.finish() == []


def test_the_batches_of_a_stream_are_stored_in_their_order_also_long_ones(narrow, topic):
    counts = (3, 5_000, 1, 9_000, 2)
    stream = Publishing(narrow.client("writers"), per_message=True)
    for count in counts:
        stream.publish(topic, *[b"x"] * count)
    answers = {answer.number: answer.outcomes for answer in (stream.answer() for _ in counts)}
    assert stream.finish() == []
    offsets = [np.frombuffer(answers[number].offsets, "<i8") for number in sorted(answers)]
    assert [len(column) for column in offsets] == [*counts]
    assert np.concatenate(offsets).tolist() == [28 * row for row in range(sum(counts))]


def test_a_message_that_was_sent_again_is_told_as_that(server, narrow, topic):
    stream = Publishing(narrow.client("writers"), per_message=True)
    server.faults.drop_connection(Method.SEND_MESSAGE, times=1)
    stream.publish(topic, b"x")
    answer = stream.answer()
    assert np.frombuffer(answer.outcomes.attempts, "<i4").tolist() == [2]
    assert np.frombuffer(answer.outcomes.unanswered, "<i4").tolist() == [1]
    assert [(item.retried, item.unanswered) for item in answer.receipts] == [(1, 1)]
    assert stream.finish() == []


def test_a_stream_whose_broker_is_silent_holds_up_no_other(server, narrow, topic):
    """The share of the silent broker is full long before all messages of its stream are under way."""
    held_up = {"max_in_flight": 16, "max_in_flight_bytes": 20_000, "rpc_timeout_ms": 60_000}
    stuck, other = (Publishing(narrow.client("writers", **held_up)) for _ in range(2))
    with server.faults.hold(Method.SEND_MESSAGE, broker=1) as hung:
        stuck.publish(topic, *[b"x"] * 500, broker_id=1)
        wait_until(lambda: hung.hits)
        for number in range(100):
            other.publish(topic, b"%d" % number, broker_id=2)
            assert other.stored() == 1
        (kept,) = narrow.gateway._pipelines._entries.values()
        assert 0 < kept.pipeline.unacknowledged < 500, "the rest waits in its stream"
    assert stuck.stored() == 500
    assert stuck.finish() == other.finish() == []


def test_a_topic_that_is_waited_for_holds_up_its_stream_and_takes_no_thread(server, narrow):
    late, topic = narrow.topic(), narrow.topic()
    server.set_topic(late, TopicSpec(accept_publish=False))
    waiting = Publishing(narrow.client("writers"))
    waiting.publish(late, b"x")
    other = Publishing(narrow.client("writers"))
    for _ in range(20):
        other.publish(topic, b"x")
        assert other.stored() == 1
    assert narrow.gateway._admission.questions.quota.used == 0
    server.set_topic(late, TopicSpec())
    assert waiting.stored() == 1
    assert waiting.finish() == other.finish() == []


def test_checking_a_topic_tells_its_partitions_and_its_limit(narrow, topic):
    client = narrow.client("writers")
    for how in ({}, {"publishable": True}, {"partition": pb.Place(broker_id=2)}):
        answer = client("CheckTopic", topic=topic, **how)
        assert [item.broker_id for item in answer.partitions] == [1, 2, 3]
        assert answer.max_message_bytes == MIB
    for how in ({}, {"publishable": True}):
        refusal = refused(
            client, "CheckTopic", topic=topic, partition=pb.Place(broker_id=1, partition_id=7), **how
        )
        assert refusal.condition == "TUBEMQ_PARTITION_UNKNOWN"
    assert refused(client, "CheckTopic", topic="nowhere").condition == "TUBEMQ_TOPIC_UNKNOWN"


def test_what_a_draining_gateway_did_not_answer_it_did_not_take(server):
    with fleet_of(server, drain_ms=60_000) as fleet:
        topic = fleet.topic()
        hung = server.faults.hold(Method.SEND_MESSAGE)
        stream = Publishing(fleet.client("writers"))
        stream.publish(topic, b"first")
        wait_until(lambda: hung.hits)
        with fleet.draining():
            wait_until(lambda: fleet.gateway._calls.draining)
            stream.publish(topic, b"second")
            time.sleep(0.2)
            hung.release()
            server.faults.clear()
            answer = stream.answer()
            assert (answer.number, answer.draining) == (1, True)
            assert [receipt.count for receipt in answer.receipts] == [1]
            assert stream.end() == DRAINING
    with fleet_of(server) as fleet:
        assert fleet.latest(topic) == 28


def test_a_stream_goes_on_with_another_producer_after_an_error_of_the_first(narrow, topic, stream):
    with narrow.server.faults.hold(Method.SEND_MESSAGE) as hung:
        stream.publish(topic, b"x")
        wait_until(lambda: hung.hits)
        (kept,) = narrow.gateway._pipelines._entries.values()
        loop.call_soon(kept.pipeline.break_off, ZeroDivisionError())
        (failure,) = stream.answer().failures
        assert failure.error.condition == "TUBEMQ_MESSAGE_ABANDONED"
    stream.publish(topic, b"z")
    assert stream.stored() == 1
    assert stream.finish() == []


def test_a_producer_is_registered_at_the_master_for_the_sessions(server):
    """One for all of equal settings, as long as some publish now and then."""
    before = server.overview().producers
    with fleet_of(server) as fleet:
        topic = fleet.topic()
        clients = [fleet.client("writers") for _ in range(3)]
        for client in clients:
            publish(client, topic, b"x")
        assert server.overview().producers == before + 1
        for client in clients:
            client("CloseSession")
        publish(fleet.client("writers"), topic, b"x")
        assert server.overview().producers == before + 1
    wait_until(lambda: server.overview().producers == before)
