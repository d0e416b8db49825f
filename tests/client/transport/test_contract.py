"""What every transport has to do, for a thread and for a coroutine in its loop.

Each test runs four times, directly and through two gateways, by a client for threads and by one for
coroutines. ``tests/cluster/test_contract.py`` has what source and sink need of it, tasks' senders among that.
Where the environment names servers, as there, these are asked instead of an embedded one.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import threading
import time

import pytest

from tests.client.ways import WAYS, client_by_its_way, reached
from tests.waiting import wait_until
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.consumer_config import ConsumePosition, ConsumerConfig
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import (
    ConsumeError,
    DataLossError,
    OptionError,
    ProduceError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.model import Endpoint, OffsetBounds, OffsetRange
from tubemq_spark.net import loop
from tubemq_spark.offsets.loss import LossRecord, LossRecorder
from tubemq_spark.protocol.send_batch import SendBatch

ROW = 28
SHAPES = {"plain": (2, 1), "shared": (1, 3)}
GIVEN = json.loads(os.environ.get("TUBEMQ_CONTRACT_SERVERS", "null"))
TESTS = 80 if GIVEN is None else GIVEN["tests"]
"""For how many there are topics."""
_numbers = itertools.count()


@dataclasses.dataclass
class Given:
    """Servers that run already."""

    master: str
    master_web: str


@pytest.fixture(scope="module")
def server():
    if GIVEN is not None:
        yield Given(GIVEN["master"], GIVEN["web"])
        return
    topics = {f"{name}_{n}": shape for n in range(TESTS) for name, shape in SHAPES.items()}
    settings = EmbeddedSettings(flush_check_ms=3_600_000)  # nothing is flushed by chance
    with EmbeddedTubeMQ(topics=topics, settings=settings) as running:
        yield running


@pytest.fixture(params=WAYS)
def way(request, server):
    with reached(server, request.param):
        yield request.param


class ByThread:
    """A client whose calls block."""

    def __init__(self, client):
        self.client = client
        self.transport = client._transport

    def done(self, value):
        """Return what a call of the client, or of what it has made, returns."""
        return value

    def ask(self, question):
        """Return what a coroutine of the transport returns."""
        return loop.run(question)

    def all_of(self, records):
        return list(records)

    def outcome(self, future):
        return future.result(30)


class ByCoroutine:
    """A client whose calls are awaited."""

    def __init__(self, client, runner):
        self.client = AsyncTubeMQClient(client)
        self.transport = self.client._transport
        self._runner = runner

    def done(self, value):
        """Return what a call of the client, or of what it has made, returns; some return at once."""
        return self._runner.run(value) if asyncio.iscoroutine(value) else value

    def ask(self, question):
        """Return what a coroutine of the transport returns."""
        return self._runner.run(question)

    def all_of(self, records):
        async def take():
            return [record async for record in records]

        return self._runner.run(take())

    def outcome(self, future):
        async def take():
            return await asyncio.wait_for(future, 30)

        return self._runner.run(take())


@pytest.fixture
def number():
    number = next(_numbers)
    assert number < TESTS, "no topics are left"
    return number


@pytest.fixture(params=["threads", "coroutines"])
def side(request, server, way, number):
    """A client that is open, with topics of its own: ``plain`` has two stores, and ``shared`` one."""
    waits = ConsumerConfig(
        consume_position=ConsumePosition.FIRST,
        ready_wait_ms=10_000,
        not_found_wait_ms=20,
        rebalance_wait_ms=300,
    )
    quick = {"heartbeat_period_ms": 200, "rpc_timeout_ms": 3_000, "register_retry_ms": 10}
    client = client_by_its_way(server, f"contract_{number}", checksums=True, consumer=waits, **quick)
    with contextlib.ExitStack() as closing:
        if request.param == "threads":
            side = ByThread(client)
        else:
            side = ByCoroutine(client, closing.enter_context(asyncio.Runner()))
        closing.callback(lambda: side.done(side.client.close()))
        side.plain, side.shared = f"plain_{number}", f"shared_{number}"
        side.way = way
        # Of servers in a test, the administration API is not at its usual port.
        web = (Endpoint.parse(server.master_web),)
        side.transport = side.transport.with_config(side.transport.config, web)
        yield side


def produce(side, topic, *values, **how):
    """Send messages, and return what became of each."""
    producer = side.client.producer()
    futures = [side.done(producer.send(topic, value, **how)) for value in values]
    outcomes = [side.outcome(future) for future in futures]
    side.done(producer.close())
    return outcomes


def stored_in_one(side, *values):
    """Send messages to the first partition of ``plain``; return the layout and the partition."""
    layout = side.done(side.client.layout(side.plain))
    partition = min(layout.partitions)
    produce(side, side.plain, *values, partition=(partition.broker_id, partition.partition_id))
    return layout, partition


def read(side, layout, partition, start, end, **how):
    """Return the values, and the losses, of a range."""

    async def take():
        request = layout.request(OffsetRange(partition, start, end), own_store=True)
        async with contextlib.aclosing(side.transport.read_range(request, **how)) as items:
            return [item async for item in items]

    items = side.ask(take())
    values, losses = [], []
    for item in items:
        if isinstance(item, LossRecord):
            losses.append(item)
        else:
            values += [item.columns.message(row).value for row in range(len(item.columns))]
    return values, losses


# Topics.


def test_topics_that_are_there_are_found_and_others_are_not(side):
    layout = side.ask(side.transport.layout([side.plain, side.shared]))
    assert list(layout.partitions) == sorted(layout.partitions)
    assert {partition.topic for partition in layout.partitions} == {side.plain, side.shared}
    assert side.done(side.client.layout(side.plain)).partitions.items() <= layout.partitions.items()

    some = side.ask(side.transport.layout([side.plain, "nowhere"], missing_ok=True))
    assert some.missing_topics == {"nowhere"}
    with pytest.raises(RpcError) as refused:
        side.ask(side.transport.layout([side.plain, "nowhere"]))
    assert refused.value.code == 431

    listed = set(side.ask(side.transport.topics()))
    assert {side.plain, side.shared} <= listed
    assert "nowhere" not in listed


def test_a_topic_can_be_published_to_or_does_not_exist(side):
    places = tuple(sorted(side.done(side.client.layout(side.plain)).partitions))
    assert side.ask(side.transport.publishable(side.plain)) == places
    assert side.done(side.client.publishable(side.plain)) == places
    assert side.ask(side.transport.await_publishable(side.plain)) is None
    for ask in (side.transport.publishable, side.transport.await_publishable):
        for topic, condition in (("nowhere", "TUBEMQ_TOPIC_UNKNOWN"), ("t" * 65, "TUBEMQ_TOPIC_NAME")):
            with pytest.raises(ProduceError, match=condition):
                side.ask(ask(topic))


# Offsets.


def test_bounds_are_those_of_the_stores_that_are_asked_for(side):
    layout, partition = stored_in_one(side, *[b"x"] * 3)
    bounds = side.done(side.client.bounds(layout)).complete()
    assert bounds.keys() == set(layout.stores)
    assert bounds[partition.store_id] == OffsetBounds(0, 3 * ROW)
    assert sum(span.latest for span in bounds.values()) == 3 * ROW

    answer = side.ask(side.transport.bounds(layout, [partition.store_id], timeout_ms=2_000))
    assert (answer.by_store, answer.failures) == ({partition.store_id: OffsetBounds(0, 3 * ROW)}, {})
    flushed = side.ask(side.transport.bounds(layout, [partition.store_id], flushed=True)).complete()
    assert flushed[partition.store_id].latest in ([0] if GIVEN is None else range(0, 3 * ROW + 1, ROW))
    begins = {place: bounds[place.store_id] for place in layout.partitions}
    assert side.ask(side.transport.first_readable(layout, begins)) == dict.fromkeys(begins, 0)


def test_a_group_is_moved_and_stands_there(side):
    layout = side.done(side.client.layout(side.shared))
    first, second, *others = layout.partitions
    produce(side, side.shared, b"0", b"1", b"2", partition=(first.broker_id, first.partition_id))
    assert side.ask(side.transport.group_positions(layout)) == dict.fromkeys(layout.partitions, 0)
    assert side.ask(side.transport.move_group(layout, {first: 2 * ROW, second: 3 * ROW})) == {}
    positions = {first: 2 * ROW, second: 3 * ROW, **dict.fromkeys(others, 0)}
    assert side.ask(side.transport.group_positions(layout)) == positions

    other = side.transport.with_config(
        dataclasses.replace(side.transport.config, group=f"other_{side.plain}", reader_groups=())
    )
    assert other.config.group == f"other_{side.plain}"
    assert side.ask(other.group_positions(layout)) == dict.fromkeys(layout.partitions, 0)


def test_what_brokers_have_stored_of_a_group_is_told(side):
    layout = side.done(side.client.layout(side.plain))
    group, moved = side.transport.config.group, dict.fromkeys(layout.partitions, 0)
    assert side.ask(side.transport.move_group(layout, moved)) == {}

    def stored(*asked):
        answer = side.ask(side.transport.stored_offsets(*asked))
        assert answer.failures == {}
        return {each.partition: each.committed for each in answer.offsets if each.group == group}

    wait_until(lambda: stored(group) == moved, 30)  # brokers tell with a delay
    assert stored(group, [side.plain]) == stored() == moved
    assert stored(group, [side.shared]) == stored("another") == {}


# Ranges.


def test_a_range_is_exactly_what_is_between_its_offsets(side):
    values = [b"%d" % n for n in range(10)]
    layout, partition = stored_in_one(side, *values)
    assert read(side, layout, partition, 0, 10 * ROW) == (values, [])
    assert read(side, layout, partition, 3 * ROW, 7 * ROW, private=True) == (values[3:7], [])
    assert read(side, layout, partition, 3 * ROW, 3 * ROW) == ([], [])
    records = side.client.read_range(layout, OffsetRange(partition, 2 * ROW, 4 * ROW))
    assert [(record.offset, record.value) for record in side.all_of(records)] == [
        (2 * ROW, b"2"),
        (3 * ROW, b"3"),
    ]
    assert {record.value for record in side.all_of(side.client.read(side.plain))} == set(values)


def test_what_is_gone_is_told_and_reading_goes_on(side):
    layout, partition = stored_in_one(side, b"0", b"1")
    values, losses = read(side, layout, partition, 0, 5 * ROW)
    assert values == [b"0", b"1"]
    assert [(loss.loss.value, loss.start, loss.end) for loss in losses] == [("TRUNCATED", 2 * ROW, 5 * ROW)]

    range_, recorder = OffsetRange(partition, 0, 5 * ROW), LossRecorder()
    assert len(side.all_of(side.client.read_range(layout, range_, on_loss=recorder))) == 2
    assert recorder.records == losses
    with pytest.raises(DataLossError):
        side.all_of(side.client.read_range(layout, range_))


def test_a_reading_that_is_closed_early_lets_the_next_one_begin(side):
    layout, partition = stored_in_one(side, b"0", b"1")
    config = dataclasses.replace(side.transport.config, reader_groups=("alone",), lease_wait_ms=500)
    transport = side.transport.with_config(config)

    async def first():
        request = layout.request(OffsetRange(partition, 0, 2 * ROW), own_store=True)
        async with contextlib.aclosing(transport.read_range(request)) as items:
            return (await anext(items)).next

    assert [side.ask(first()) for _ in range(3)] == [2 * ROW] * 3


# Producers.


def test_each_message_has_its_outcome(side):
    layout = side.done(side.client.layout(side.plain))
    partition = max(layout.partitions)
    place = (partition.broker_id, partition.partition_id)
    how = {"partition": place, "attributes": {"a": "1"}, "message_type": "red"}
    outcomes = produce(side, side.plain, b"0", b"1", **how)
    assert [(outcome.partition, outcome.offset) for outcome in outcomes] == [(partition, 0), (partition, ROW)]
    assert len({outcome.message_id for outcome in outcomes} - {None}) == 2
    (record, _) = side.all_of(side.client.read(side.plain))
    assert (record.value, record.attributes["a"], record.message_type) == (b"0", "1", "red")
    chosen = {outcome.partition for outcome in produce(side, side.plain, *[b"x"] * 4)}
    assert chosen <= set(layout.partitions)


def test_a_message_that_is_refused_does_no_harm_to_others(side):
    producer = side.client.producer("a name", linger_ms=5, delivery_timeout_ms=5_000)

    def sent(*message, **how):
        return side.outcome(side.done(producer.send(*message, **how)))

    for message, how, condition in (
        (("nowhere", b"x"), {}, "TUBEMQ_TOPIC_UNKNOWN"),
        ((side.plain, b""), {}, "TUBEMQ_BAD_MESSAGE"),
        ((side.plain, b"x" * (2 << 20)), {}, "TUBEMQ_MESSAGE_TOO_LONG"),
        ((side.plain, b"x"), {"partition": (1, 77)}, "TUBEMQ_PARTITION"),
    ):
        with pytest.raises(TubeMQError) as refused:
            sent(*message, **how)
        assert refused.value.condition.startswith(condition)
    assert sent(side.plain, b"x").partition.topic == side.plain
    futures = side.done(producer.send_batch(SendBatch.of(side.plain, [b"y", b"z"])))
    assert {side.outcome(future).partition.topic for future in futures} == {side.plain}
    side.done(producer.flush())
    assert sum(receipt.count for receipt in producer.receipts()) == 3
    side.done(producer.close())
    with pytest.raises(ProduceError, match="closed"):
        sent(side.plain, b"x")


def test_settings_that_make_no_sense_are_refused_when_a_producer_is_made(side):
    with pytest.raises(OptionError):
        side.client.producer(partitioner="nonsense")
    with pytest.raises(OptionError):
        side.client.producer(message_time_zone="nowhere")


# Consumers.


@contextlib.contextmanager
def opened(side, consumer):
    side.done(consumer.open())
    try:
        yield consumer
    finally:
        side.done(consumer.close())


def consumed(side, consumer, count):
    """Confirm messages until there were so many; return their values by partition."""
    values, deadline = {}, time.monotonic() + 30
    while sum(map(len, values.values())) < count:
        assert time.monotonic() < deadline, values
        if (batch := side.done(consumer.fetch(2_000))) is not None:
            values.setdefault(batch.partition, []).extend(record.value for record in batch)
            side.done(consumer.confirm(batch))
    return values


def test_a_member_gets_everything_once_and_its_group_stands_behind_it(side):
    layout = side.done(side.client.layout(side.plain))
    values = {place: [b"%d of %d" % (n, place.partition_id) for n in range(4)] for place in layout.partitions}
    for place, of_place in values.items():
        produce(side, side.plain, *of_place, partition=(place.broker_id, place.partition_id))
    ends, seen = dict.fromkeys(values, 4 * ROW), []
    member = side.client.group_consumer(
        side.plain,
        on_assigned=lambda places: seen.append(("assigned", set(places))),
        on_revoked=lambda places: seen.append(("revoked", set(places))),
    )
    with opened(side, member):
        assert consumed(side, member, 4 * len(values)) == values
        assert sorted(member.connected) == sorted(layout.partitions)
        assert member.committed() == ends
        assert side.done(member.lag()) == dict.fromkeys(ends, 0)
        with pytest.raises(RpcError) as refused:
            side.ask(side.transport.group_positions(layout))
        assert refused.value.code == 410
    assert {kind for kind, _ in seen} == {"assigned", "revoked"}
    for kind in ("assigned", "revoked"):
        assert set().union(*(places for of_kind, places in seen if of_kind == kind)) == set(layout.partitions)
    assert side.ask(side.transport.group_positions(layout)) == ends


def test_a_consumer_goes_where_it_is_told_to(side):
    values = [b"%d" % n for n in range(6)]
    _, partition = stored_in_one(side, *values)
    with opened(side, side.client.assigned_consumer(side.plain)) as consumer:
        side.done(consumer.connect(partition))
        assert consumed(side, consumer, 6) == {partition: values}
        assert side.done(consumer.seek(partition, 4 * ROW)).offset == 4 * ROW
        assert side.done(consumer.lag(partition)) == {partition: 2}
        assert consumed(side, consumer, 2) == {partition: values[4:]}
        assert side.done(consumer.seek_to_end(partition))[partition].offset == 6 * ROW
        assert side.done(consumer.seek_to_beginning(partition))[partition].offset == 0
        assert consumed(side, consumer, 6) == {partition: values}
        assert side.done(consumer.seek_to_time(1_000_000, partition))[partition].offset == 0
        consumer.pause(partition)
        assert side.done(consumer.fetch(300)) is None
        consumer.resume()
        batch = side.done(consumer.fetch(5_000))
        side.done(consumer.confirm(batch, consumed=False))
        again = side.done(consumer.fetch(5_000))
        assert (again.offset, again.context == batch.context) == (0, False)
        with pytest.raises(TubeMQError):
            side.done(consumer.confirm(batch))
        assert side.done(consumer.confirm(again)).offset == 6 * ROW


def test_only_a_direct_member_can_be_moved(side):
    """The protocol of gateways has no call for it; the page says so."""
    _, partition = stored_in_one(side, b"0", b"1")
    with opened(side, side.client.group_consumer(side.plain)) as member:
        consumed(side, member, 2)
        if side.way == "direct":
            assert side.done(member.seek(partition, ROW)).offset == ROW
            assert consumed(side, member, 1) == {partition: [b"1"]}
        else:
            with pytest.raises(ConsumeError, match="TUBEMQ_SEEK_UNSUPPORTED"):
                side.done(member.seek(partition, ROW))


def test_an_assigned_consumer_has_what_it_takes(side):
    layout, partition = stored_in_one(side, *[b"%d" % n for n in range(5)])
    other = max(layout.partitions)
    with opened(side, side.client.assigned_consumer(side.plain, source_count=2, node_id=0)) as consumer:
        assert side.done(consumer.partitions()) == dict.fromkeys(layout.partitions, True)
        assert set() < set(side.done(consumer.share())) < set(layout.partitions)
        assert consumer.registered_at is not None
        assert side.done(consumer.connect(partition, 2 * ROW)).offset == 2 * ROW
        assert consumer.connected == (partition,)
        assert consumed(side, consumer, 3) == {partition: [b"2", b"3", b"4"]}
        assert side.done(consumer.connect(other)).offset == 0
        status = consumer.status()
        assert {place for place, each in status.items() if each.connected} == {partition, other}
        assert {place for place, each in status.items() if each.subscribable} == set(layout.partitions)
        assert side.done(consumer.disconnect(other)) is True
        assert side.done(consumer.disconnect(other)) is False
    with opened(side, side.client.assigned_consumer(side.plain)) as next_one:
        assert side.done(next_one.connect(partition)).offset == 5 * ROW
        assert side.done(next_one.lag()) == {partition: 0}


def test_losses_of_a_consumer_go_to_its_policy(side):
    _, partition = stored_in_one(side, b"0", b"1")
    recorder, told = LossRecorder(), threading.Event()

    def on_loss(record):
        recorder(record)
        told.set()

    with opened(side, side.client.assigned_consumer(side.plain, on_loss=on_loss)) as consumer:
        side.done(consumer.connect(partition, 5 * ROW))
        wait_until(lambda: side.done(consumer.fetch(200)) is None and told.is_set(), 20)
    assert {loss.loss.value for loss in recorder.records} == {"MOVED_BACK"}
    assert {loss.partition for loss in recorder.records} == {partition}


def test_only_a_direct_consumer_follows_resets(side):
    """Gateways do not tell of them; the page says so."""
    if side.way == "direct":
        assert side.client.assigned_consumer(side.plain, follow_resets=True) is not None
        return
    with pytest.raises(OptionError, match="follow_resets"):
        side.client.assigned_consumer(side.plain, follow_resets=True)


# The end.


def test_a_client_that_is_closed_is_refused(side):
    layout = side.done(side.client.layout(side.plain))
    producer = side.client.producer()
    member = side.done(side.client.group_consumer(side.plain).open())
    side.done(side.client.close())
    side.done(side.client.close())
    assert member.closed
    with pytest.raises(TubeMQConnectionError):
        side.done(side.client.layout(side.plain))
    with pytest.raises(TubeMQConnectionError):
        side.ask(side.transport.bounds(layout)) if side.way == "gateways" else side.done(
            side.client.publishable(side.plain)
        )
    with pytest.raises(ProduceError):
        side.done(producer.send(side.plain, b"x"))
