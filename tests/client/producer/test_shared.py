"""A sender that several share: each batch has one outcome, and no lane waits for another's broker."""

import threading
import zlib

import numpy as np
import pytest

from tests.client.scripted_cluster import HANG_UP, OVERFLOW, SILENT, STORE, refuse, scripted_cluster
from tests.waiting import wait_until
from tubemq_spark.client.producer.shared import SharedSender
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

SECONDS = 20
TWO_BROKERS = "1:1:1,2:1:1#"


@pytest.fixture
def cluster():
    with scripted_cluster(2, demo=TWO_BROKERS) as senders:
        yield senders


@pytest.fixture
def shared(cluster):
    senders = []

    def make(**settings):
        how = {name: settings.pop(name) for name in ("detailed", "most_messages") if name in settings}
        sender = SharedSender(cluster.config(**settings), cluster.pool, **how)
        senders.append(sender)
        sender.places.place("demo", None)
        return sender

    yield make
    for sender in senders:
        sender.close()


class Ended:
    """Collects the deliveries that have ended, and waits for them."""

    def __init__(self):
        self.deliveries = []
        self.told = threading.Event()

    def __call__(self, delivery):
        self.deliveries.append(delivery)
        self.told.set()

    def outcome_of(self):
        assert self.told.wait(SECONDS)
        (delivery,) = self.deliveries
        return delivery


def put(lane, batch, refusals=None):
    ended = Ended()
    lane.put(lambda: batch, refusals or {}, ended)
    return ended


def named(values, place):
    batch = SendBatch.of("demo", values)
    places = Coded((place,), np.zeros(len(values), np.int64))
    return SendBatch(batch.topics, batch.values, batch.headers, None, places)


def send_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tubemq-send-")]


def test_the_outcome_says_where_each_message_is(cluster, shared):
    values = [b"%d" % number for number in range(1_000)]
    ended = put(shared(detailed=True, checksums=True).lane("one"), SendBatch.of("demo", values))
    outcome = ended.outcome_of().outcome
    assert outcome.errors == {}
    columns = outcome.columns()
    for row, value in enumerate(values):
        place = columns.partitions[columns.places[row]]
        stored = cluster.brokers[place.broker_id - 1].stored["demo", 0]
        assert stored[columns.offsets[row] // 28] == value
    assert set(columns.message_ids) == {17}
    assert set(columns.append_times) == {1_704_164_645_678}
    receipts = outcome.receipts()
    assert [item.partition for item in receipts] == [
        TopicPartition("demo", 1, 0),
        TopicPartition("demo", 2, 0),
    ]
    assert sum(item.count for item in receipts) == 1_000
    assert sum(item.bytes for item in receipts) == sum(map(len, values))
    assert sum(item.checksum for item in receipts) == sum(map(zlib.crc32, values))
    assert {(item.retried, item.unanswered, item.first_offset) for item in receipts} == {(0, 0, 0)}


def test_refused_messages_are_told_by_their_rows_and_the_others_are_stored(cluster, shared):
    cluster.broker.script = lambda message, _: refuse(400, "not that") if message.data == b"bad" else STORE
    topics = Coded(("demo", "nowhere"), np.array([0, 1, 0, 1, 0, 0, 0]))
    values = BytesColumn.of([b"0", b"1", b"", b"3", b"x" * (1 << 21), b"5", b"bad"])
    places = Coded(((1, 0), (7, 7)), np.array([0, 0, 0, 0, 0, 1, 0]))
    batch = SendBatch(topics, values, Coded((MessageHeader(),), np.zeros(7, np.int64)), None, places, 11)
    nowhere = ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="nowhere")
    no_place = ProduceError("TUBEMQ_PARTITION_UNKNOWN", topic="demo", partition="7:7", existing="1:0")
    refusals = {"nowhere": nowhere, TopicPartition("demo", 7, 7): no_place}
    outcome = put(shared().lane("etl"), batch, refusals).outcome_of().outcome
    assert {row: error.condition for row, error in outcome.errors.items()} == {
        1: "TUBEMQ_TOPIC_UNKNOWN",
        2: "TUBEMQ_BAD_MESSAGE",
        3: "TUBEMQ_TOPIC_UNKNOWN",
        4: "TUBEMQ_MESSAGE_TOO_LONG",
        5: "TUBEMQ_PARTITION_UNKNOWN",
        6: "TUBEMQ_SEND_FAILED",
    }
    assert "message 13 of etl" in str(outcome.errors[2])
    assert "message 17 of etl" in str(outcome.errors[6])
    assert cluster.stored() == [b"0"]
    assert [item.count for item in outcome.receipts()] == [1]


def test_a_batch_of_refused_messages_alone_ends_as_well(shared):
    nowhere = ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="nowhere")
    lane = shared().lane("")
    outcome = put(lane, SendBatch.of("nowhere", [b"x"] * 3), {"nowhere": nowhere}).outcome_of().outcome
    assert set(outcome.errors) == {0, 1, 2}
    assert set(map(id, outcome.errors.values())) == {id(nowhere)}
    assert put(lane, SendBatch.of("demo", [])).outcome_of().outcome.errors == {}


def test_what_is_no_batch_is_told_of_and_harms_nobody(shared):
    lane = shared().lane("")
    ended = Ended()
    lane.put(lambda: 1 // 0, {}, ended)
    assert isinstance(ended.outcome_of().broken, ZeroDivisionError)
    assert put(lane, SendBatch.of("demo", [b"x"])).outcome_of().outcome.errors == {}


def test_the_batches_of_a_lane_keep_their_order(cluster, shared):
    lane = shared().lane("")
    batches = [[b"%d" % number for number in range(first, first + 7)] for first in range(0, 700, 7)]
    for ended in [put(lane, named(values, (1, 0))) for values in batches]:
        assert ended.outcome_of().outcome.errors == {}
    assert cluster.stored() == [value for values in batches for value in values]


def test_a_message_that_was_sent_again_is_counted_as_that(cluster, shared):
    cluster.broker.script = lambda _, number: (OVERFLOW, HANG_UP)[number] if number < 2 else STORE
    outcome = put(shared().lane(""), named([b"x"], (1, 0))).outcome_of().outcome
    columns, (receipt,) = outcome.columns(), outcome.receipts()
    assert (columns.attempts[0], columns.unanswered[0]) == (3, 1)
    assert (receipt.retried, receipt.unanswered) == (1, 1)


def test_some_messages_of_a_batch_may_have_to_be_sent_again(cluster, shared):
    cluster.broker.script = lambda _, number: OVERFLOW if number in (1, 3) else STORE
    values = [b"%d" % number for number in range(5)]
    outcome = put(shared().lane(""), named(values, (1, 0))).outcome_of().outcome
    assert outcome.errors == {}
    columns, (receipt,) = outcome.columns(), outcome.receipts()
    stored = cluster.broker.stored["demo", 0]
    assert [stored[offset // 28] for offset in columns.offsets] == values
    assert columns.attempts.tolist() == [1, 2, 1, 2, 1]
    assert (receipt.count, receipt.retried) == (5, 2)


def test_a_lane_whose_broker_is_silent_holds_up_no_other(cluster, shared):
    """The share of the silent broker is full long before all of its lane's messages are in the window."""
    cluster.broker.script = lambda *_: SILENT
    sender = shared(max_in_flight=16, max_in_flight_bytes=20_000, rpc_timeout_ms=60_000)
    stuck = put(sender.lane("stuck"), named([b"x"] * 500, (1, 0)))
    other = sender.lane("other")
    for number in range(300):
        assert put(other, named([b"%d" % number], (2, 0))).outcome_of().outcome.errors == {}
    assert not stuck.told.is_set()
    assert sender._window.unacknowledged < 500, "the rest waits in its lane"
    assert len(cluster.brokers[1].stored["demo", 0]) == 300


def test_a_lane_that_has_ended_gives_back_everything(monkeypatch, cluster, shared):
    # The end of the lane alone has the window look for what is to be given up.
    monkeypatch.setattr("tubemq_spark.client.producer.window._GIVE_UP_EVERY_S", 86_400.0)
    cluster.broker.script = lambda *_: SILENT
    sender = shared(max_in_flight=16, max_in_flight_bytes=20_000, rpc_timeout_ms=60_000)
    lane = sender.lane("gone")
    ended = [put(lane, named([b"x"] * 300, (1, 0))) for _ in range(3)]
    wait_until(lambda: cluster.broker.requests)
    lane.end()
    lane.end()
    for told in ended:
        assert told.outcome_of().broken or len(told.outcome_of().outcome.errors) == 300
    wait_until(lambda: sender._window.unacknowledged == 0)
    assert put(sender.lane("next"), named([b"y"], (2, 0))).outcome_of().outcome.errors == {}


def test_a_lane_that_ends_in_its_turn_gives_back_everything(cluster, shared):
    """A batch of it is just being handed to the window."""
    cluster.broker.script = lambda *_: SILENT
    sender = shared(rpc_timeout_ms=60_000)
    lane, told = sender.lane("gone"), Ended()

    def make():
        lane.end()
        return SendBatch.of("demo", [b"x"])

    lane.put(make, {}, told)
    assert len(told.outcome_of().outcome.errors) == 1
    wait_until(lambda: sender._window.unacknowledged == 0)


def test_a_sender_at_rest_has_no_thread(monkeypatch, shared):
    monkeypatch.setattr("tubemq_spark.client.producer.shared._REST_S", 0.05)
    sender = shared()
    assert send_threads() == []
    lane = sender.lane("")
    for _ in range(3):
        assert put(lane, SendBatch.of("demo", [b"x"])).outcome_of().outcome.errors == {}
        wait_until(lambda: send_threads() == [])


def test_the_window_is_as_wide_as_those_of_all_lanes_that_send(cluster, shared):
    answering = threading.Event()
    for broker in cluster.brokers:
        broker.script = lambda *_: answering.wait(SECONDS) and STORE
    sender = shared(max_in_flight=1, most_messages=3, rpc_timeout_ms=SECONDS * 1000)
    ended = [put(sender.lane(""), SendBatch.of("demo", [b"x"] * 4)) for _ in range(5)]
    wait_until(lambda: sender._window.unacknowledged == 3, SECONDS)
    answering.set()
    assert all(told.outcome_of().outcome.errors == {} for told in ended)


def test_closing_tells_of_everything(cluster, shared):
    cluster.broker.script = lambda *_: SILENT
    sender = shared(max_in_flight=4)
    lane = sender.lane("")
    ended = [put(lane, named([b"x"] * 10, (1, 0))) for _ in range(3)]
    wait_until(lambda: cluster.broker.requests)
    sender.close()
    first, *others = [told.outcome_of() for told in ended]
    assert {error.condition for error in first.outcome.errors.values()} == {"TUBEMQ_MESSAGE_ABANDONED"}
    assert len(first.outcome.errors) == 10
    assert {item.broken.condition for item in others} == {"TUBEMQ_PRODUCER_CLOSED"}
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        put(lane, named([b"x"], (1, 0)))
    sender.close()
    wait_until(lambda: cluster.master.producers == set())


def test_an_error_of_all_is_told_to_all(cluster, shared):
    sender = shared()
    cluster.broker.script = lambda *_: STORE
    lane = sender.lane("")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(sender._window, "submit", lambda _: 1 // 0)
        ended = put(lane, SendBatch.of("demo", [b"x"] * 3))
        assert set(ended.outcome_of().outcome.errors) == {0, 1, 2}
    wait_until(lambda: sender.error is not None)
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_BROKEN"):
        put(lane, SendBatch.of("demo", [b"x"]))
