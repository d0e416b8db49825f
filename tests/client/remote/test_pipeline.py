"""Sending through gateways: at least once whichever is lost, and once when they drain."""

import asyncio
import collections
import contextlib
import dataclasses
import threading
import zlib

import numpy as np
import pytest

from tests.client.remote.scripted_gateway import scripted
from tests.cluster import gateways as running
from tests.waiting import until, wait_until
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.producer.outgoing import outgoing_batch
from tubemq_spark.client.remote import publish_window
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.errors import OptionError, ProduceError, TubeMQConnectionError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, service
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, SendBatch


@pytest.fixture
def parts():
    with running.three_brokers(gateways=2) as fleet:
        yield fleet


def stored(parts):
    """Return how often each body is stored."""
    layout = parts.cluster.layout(["demo"])
    bounds = parts.cluster.bounds(layout).complete()
    counts = collections.Counter()
    for partition in layout.partitions:
        request = layout.request(OffsetRange(partition, *bounds[partition.store_id]), own_store=True)
        for batch in parts.cluster.read_range(request, fail_on_loss):
            counts.update(batch.columns.message(row).value for row in range(len(batch.columns)))
    return counts


def bodies(start, count):
    return [b"%06d" % number for number in range(start, start + count)]


def test_no_message_is_lost_when_the_gateway_is_killed_before_a_flush(parts):
    with parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 100)))
        sender.flush()
        sender.send_batch(parts.batch(bodies(100, 100)))
        parts.kill(0)
        sender.send_batch(parts.batch(bodies(200, 100)))
        sender.flush()
        receipts = sender.receipts()

    counts = stored(parts)
    assert counts.keys() == set(bodies(0, 300))
    assert {counts[body] for body in bodies(0, 100)} == {1}
    assert sum(receipt.count for receipt in receipts) == 300
    assert sum(receipt.checksum for receipt in receipts) == sum(map(zlib.crc32, bodies(0, 300)))
    again = sum(receipt.retried for receipt in receipts)
    assert sum(counts.values()) - 300 <= again <= 200
    assert sum(receipt.unanswered for receipt in receipts) == again


def test_no_message_is_lost_when_the_gateway_is_killed_before_the_block_ends(parts):
    with parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 100)))
        parts.kill(0)
    assert stored(parts).keys() == set(bodies(0, 100))


def test_messages_that_may_be_stored_are_not_sent_again_without_retry_ambiguous(parts):
    parts.with_settings(retry_ambiguous=False)
    hung = parts.server.faults.hold(Method.SEND_MESSAGE)
    with contextlib.suppress(ProduceError), parts.cluster.sender() as sender:
        sender.send_batch(parts.batch(bodies(0, 10)))
        wait_until(lambda: hung.hits)
        parts.kill(0)
        hung.release()
        parts.server.faults.clear()
        with pytest.raises(ProduceError, match="TUBEMQ_GATEWAY_LOST") as first:
            sender.flush()
        assert first.value.may_be_stored
        with pytest.raises(ProduceError) as again:
            sender.send_batch(parts.batch(bodies(10, 1)))
    assert again.value is first.value
    assert max(stored(parts).values(), default=1) == 1


def test_a_gateway_that_drains_is_left_without_a_repeat(parts):
    stopping = None
    with parts.cluster.sender("test") as sender:
        for start in range(0, 500, 100):
            sender.send_batch(parts.batch(bodies(start, 100)))
            if start == 100:
                stopping = parts.drain_in_background(0)
    stopping.join(10)
    assert not stopping.is_alive()
    assert stored(parts) == dict.fromkeys(bodies(0, 500), 1)


def test_without_any_gateway_the_error_comes_after_the_patience_of_sending(parts):
    parts.with_settings(delivery_timeout_ms=1_000)
    parts.server.faults.hold(Method.SEND_MESSAGE)
    away = ProduceError, TubeMQConnectionError
    with contextlib.suppress(*away), parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 10)))
        parts.kill(0)
        parts.kill(1)
        parts.server.faults.clear()
        with pytest.raises(away, match="TUBEMQ_GATEWAY_") as first:
            sender.flush()
        parts.with_settings(delivery_timeout_ms=20_000)
        for use in (sender.flush, lambda: sender.send_batch(parts.batch(bodies(10, 1)))):
            with pytest.raises(away) as again:
                use()
            assert again.value is first.value, "ten messages are not stored"


def test_messages_that_no_gateway_took_are_told_as_not_stored(parts):
    parts.with_settings(delivery_timeout_ms=1_000)
    with contextlib.suppress(TubeMQConnectionError), parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 10)))
        sender.flush()
        parts.kill(0)
        parts.kill(1)

        def send_more():
            sender.send_batch(parts.batch(bodies(10, 10)))
            sender.flush()

        with pytest.raises(TubeMQConnectionError, match=r"TUBEMQ_GATEWAY_AWAY.* sending as test"):
            send_more()


def test_an_unused_sender_asks_no_gateway(parts):
    parts.kill(0)
    parts.kill(1)
    with parts.cluster.sender("test") as sender:
        sender.flush()
        assert sender.receipts() == []


def test_a_long_batch_travels_in_parts_and_its_refused_row_is_named(parts, monkeypatch):
    monkeypatch.setattr(service, "PART_BYTES", 60)
    values = [*bodies(0, 25), b"", *bodies(26, 4)]
    with parts.cluster.sender("test") as sender:
        with pytest.raises(OptionError, match=r"message 26 of test") as refused:
            sender.send_batch(parts.batch(values))
        assert refused.value.row == 25
    assert stored(parts) == dict.fromkeys(bodies(0, 25), 1)


def test_unstored_bytes_are_bounded(parts):
    parts.with_settings(max_in_flight_bytes=100)
    with parts.cluster.sender("test") as sender:
        for start in range(0, 100, 10):
            sender.send_batch(parts.batch(bodies(start, 10)))
            assert sender.unacknowledged * 6 <= 100
    assert stored(parts) == dict.fromkeys(bodies(0, 100), 1)


def test_several_batches_are_on_their_way_and_a_flush_waits_for_all(parts):
    with parts.cluster.sender("test") as sender:
        with parts.server.faults.hold(Method.SEND_MESSAGE):
            for start in range(0, 300, 100):
                sender.send_batch(parts.batch(bodies(start, 100)))
            assert sender.unacknowledged == 300
            assert sender.receipts() == []
        sender.flush()
        assert sum(receipt.count for receipt in sender.receipts()) == 300
    assert stored(parts) == dict.fromkeys(bodies(0, 300), 1)


def test_a_body_that_is_longer_than_a_message_of_the_protocol_travels_in_pieces(parts, monkeypatch):
    monkeypatch.setattr(publish_window, "PART_BYTES", 1000)
    body = bytes(range(256)) * 100
    with parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch([body, b"short"]))
        sender.flush()
    assert stored(parts) == {body: 1, b"short": 1}


def test_a_message_that_fails_after_it_was_accepted_ends_the_sender(parts):
    parts.with_settings(delivery_timeout_ms=1_000)
    with contextlib.suppress(ProduceError), parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch([b"first"]))
        sender.flush()
        parts.server.faults.answer(Method.SEND_MESSAGE, 503)
        sender.send_batch(parts.batch(bodies(0, 10)))
        with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED") as failed:
            sender.flush()
        assert failed.value.row is None
        parts.server.faults.clear()
        with pytest.raises(ProduceError) as again:
            sender.send_batch(parts.batch([b"last"]))
        assert again.value is failed.value


# What is asked and accepted, before a scripted gateway.

LISTED = pb.CheckTopicResponse(
    partitions=[pb.Partition(topic="demo", broker_id=1, partition_id=0)], max_message_bytes=20
)


class Gateway:
    """Knows the topic ``demo``; takes batches, and answers them when it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.batches = []

    def check(self, request):
        self.may_answer.wait(20)
        if request.topic != "demo":
            raise ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic=request.topic)
        if request.HasField("partition") and request.partition.broker_id != 1:
            raise ProduceError("TUBEMQ_PARTITION_UNKNOWN", topic="demo", partition="7:0", existing="1:0")
        return LISTED

    def publish(self, requests):
        for request in requests:
            if not request.HasField("begin"):
                self.batches.append(sends.from_proto(request.batch))
                self.may_answer.wait(20)
            yield pb.PublishStreamResponse(number=request.number)

    @contextlib.asynccontextmanager
    async def pipeline(self, *, per_message=False, **settings):
        scripts = {"CheckTopic": self.check, "PublishStream": self.publish}
        with scripted(scripts, **settings) as ((running,), gateways):
            self.calls = running.calls
            pipeline = GatewayPipeline(gateways, "test", per_message=per_message)
            try:
                yield pipeline
            finally:
                self.may_answer.set()
                await pipeline.close()


async def test_callers_that_ask_for_the_same_wait_together():
    gateway = Gateway()
    async with gateway.pipeline() as pipeline:
        one, other = (asyncio.create_task(pipeline.place("demo", None)) for _ in range(2))
        await until(lambda: "CheckTopic" in gateway.calls)
        one.cancel()
        gateway.may_answer.set()
        assert (await other).topic.max_message_bytes == 20
        assert gateway.calls.count("CheckTopic") == 1
        assert pipeline.place_now("demo", (1, 0)) == await other
        assert one.cancelled()


async def test_who_asks_a_pipeline_that_is_closed_is_told_that():
    gateway = Gateway()
    async with gateway.pipeline() as pipeline:
        asking = asyncio.create_task(pipeline.place("demo", None))
        await until(lambda: "CheckTopic" in gateway.calls)
        await pipeline.close()
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
            await asking


async def test_a_topic_that_cannot_be_published_to_is_asked_for_again():
    gateway = Gateway()
    answers = iter([pb.CheckTopicResponse(), LISTED])
    gateway.check = lambda _: next(answers)
    async with gateway.pipeline() as pipeline:
        assert (await pipeline.place("demo", None)).topic.name == "demo"


async def test_what_cannot_be_sent_is_refused_by_its_row_and_the_rest_goes_as_it_is():
    gateway = Gateway()
    gateway.may_answer.set()
    values = [b"0", b"1", b"2" * 999, b"3", b"4", b"5"]
    rows = np.arange(6)
    batch = dataclasses.replace(
        SendBatch.of("demo", values),
        topics=Coded(("demo", "nowhere"), np.array([0, 1, 0, 1, 0, 0])),
        partitions=Coded((None, (1, 0), (7, 0)), np.array([0, 0, 0, 0, 2, 1])),
        uids=BytesColumn.of([b"u%d" % row for row in rows]),
    )
    outgoing, _ = outgoing_batch(batch)
    refused = []
    async with gateway.pipeline() as pipeline:
        await pipeline.accept(outgoing, 0, 6, lambda row, error: refused.append((row, error.condition)))
        await pipeline.flush()
        with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN") as first:
            await pipeline.accept(outgoing, 0, 6)
    assert refused == [
        (1, "TUBEMQ_TOPIC_UNKNOWN"),
        (2, "TUBEMQ_MESSAGE_TOO_LONG"),
        (3, "TUBEMQ_TOPIC_UNKNOWN"),
        (4, "TUBEMQ_PARTITION_UNKNOWN"),
    ]
    assert first.value.row == 1
    sent = [part.message(row) for part in gateway.batches[:2] for row in range(len(part))]
    assert sent == [batch.message(0), batch.message(5)]


async def test_single_messages_under_way_are_bounded():
    gateway = Gateway()
    gateway.may_answer.set()
    async with gateway.pipeline(per_message=True, max_in_flight=2) as pipeline:
        await pipeline.place("demo", None)
        gateway.may_answer.clear()
        outgoing, _ = outgoing_batch(SendBatch.of("demo", [b"x"] * 5))
        accepting = asyncio.create_task(pipeline.accept(outgoing, 0, 5))
        await until(lambda: gateway.batches)
        assert pipeline.unacknowledged == 2
        gateway.may_answer.set()
        await accepting
        await pipeline.flush()
    assert [len(part) for part in gateway.batches] == [2, 2, 1]
    assert pipeline.statistics().room_wait_s > 0


# Single messages, of a producer.

SECONDS = 60
COUNT = 3_000


def url_of(parts, **settings):
    addresses = ",".join(map(str, parts.addresses))
    return f"gateway://{addresses}?" + "&".join(f"{name}={value}" for name, value in settings.items())


@pytest.mark.process
def test_gateways_that_are_killed_in_turn_lose_and_double_nothing_unsaid():
    with running.three_brokers(gateways=2, kind=running.Processes) as parts:
        url = url_of(parts, group="writers", register_retry_ms=20, rpc_timeout_ms=2000)
        with TubeMQClient.connect(url) as client, client.producer() as producer:
            futures, over = {}, threading.Event()

            def send():
                for number in range(COUNT):
                    value = b"%d" % number
                    futures[value] = producer.send("demo", value, key=b"%d" % (number % 7))
                over.set()

            sending = threading.Thread(target=send)
            sending.start()
            for turn in range(4):
                wait_until(lambda turn=turn: len(futures) > COUNT * (turn + 1) // 6 or over.is_set(), SECONDS)
                parts.kill(turn % 2)
                parts.restart(turn % 2)
            sending.join(SECONDS)
            results = {value: future.result(SECONDS) for value, future in futures.items()}
            records = list(client.read("demo"))
        stored = collections.Counter(record.value for record in records)
        assert stored.keys() == results.keys()
        for value, times in stored.items():
            assert times <= 1 + results[value].unanswered
        by_place = {(record.partition, record.offset): record.value for record in records}
        assert all(by_place[result.partition, result.offset] == value for value, result in results.items())
