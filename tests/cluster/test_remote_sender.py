"""Sending through gateways: at least once whichever is lost, and once when they drain."""

import collections
import contextlib
import zlib

import pytest

from tests.cluster import gateways as running
from tests.waiting import wait_until
from tubemq_spark.client.remote import publish_window
from tubemq_spark.errors import OptionError, ProduceError, TubeMQConnectionError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import limits, sends
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import merged


@pytest.fixture
def parts():
    with running.three_brokers(gateways=2) as made:
        yield made


def stored(parts):
    """Return how often each body is stored."""
    layout = parts.cluster.layout(["demo"])
    bounds = parts.cluster.bounds(layout).complete()
    found = collections.Counter()
    for partition in layout.partitions:
        request = layout.request(OffsetRange(partition, *bounds[partition.store_id]), own_store=True)
        for batch in parts.cluster.read_range(request, fail_on_loss):
            found.update(batch.columns.message(row).value for row in range(len(batch.columns)))
    return found


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

    found = stored(parts)
    assert found.keys() == set(bodies(0, 300))
    assert {found[body] for body in bodies(0, 100)} == {1}
    assert sum(receipt.count for receipt in receipts) == 300
    assert sum(receipt.checksum for receipt in receipts) == sum(map(zlib.crc32, bodies(0, 300)))
    again = sum(receipt.retried for receipt in receipts)
    assert sum(found.values()) - 300 <= again <= 200
    assert sum(receipt.unanswered for receipt in receipts) == again


def test_no_message_is_lost_when_the_gateway_is_killed_before_the_block_ends(parts):
    with parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 100)))
        parts.kill(0)
    assert stored(parts).keys() == set(bodies(0, 100))


def test_receipts_survive_the_gateway_that_told_them(parts):
    with parts.cluster.sender("test") as sender:
        sender.send_batch(parts.batch(bodies(0, 50)))
        sender.flush()
        told = sender.receipts()
        parts.kill(0)
        assert sender.receipts() == told
        assert merged(told) == told


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


def test_a_block_that_fails_sends_nothing_more(parts):
    def fail():
        with parts.cluster.sender("test") as sender:
            sender.send_batch(parts.batch(bodies(0, 10)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert set(stored(parts).values()) <= {1}


def test_a_long_batch_travels_in_parts_and_its_refused_row_is_named(parts, monkeypatch):
    monkeypatch.setattr(limits, "PART_BYTES", 60)
    values = [*bodies(0, 25), b"", *bodies(26, 4)]
    with parts.cluster.sender("test") as sender:
        with pytest.raises(OptionError, match=r"message 26 of test") as refused:
            sender.send_batch(parts.batch(values))
        assert refused.value.row == 25
    assert stored(parts) == dict.fromkeys(bodies(0, 25), 1)


def test_a_part_has_as_many_messages_as_fit(monkeypatch):
    monkeypatch.setattr(limits, "PART_BYTES", 60)
    batch = SendBatch.of("demo", [*bodies(0, 25), bytes(100), b"last"])
    assert list(sends.parts(batch, 1, 27)) == [(1, 11), (11, 21), (21, 25), (25, 26), (26, 27)]


def test_unstored_bytes_are_bounded(parts):
    parts.with_settings(max_in_flight_bytes=100)
    with parts.cluster.sender("test") as sender:
        for start in range(0, 100, 10):
            sender.send_batch(parts.batch(bodies(start, 10)))
            assert sender._window.bytes <= 100
    assert stored(parts) == dict.fromkeys(bodies(0, 100), 1)


def test_several_batches_are_on_their_way_and_a_flush_waits_for_all(parts):
    hung = parts.server.faults.hold(Method.SEND_MESSAGE)
    with parts.cluster.sender("test") as sender:
        for start in range(0, 300, 100):
            sender.send_batch(parts.batch(bodies(start, 100)))
        assert sender._window.messages == 300
        assert sender.receipts() == []
        hung.release()
        parts.server.faults.clear()
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
