"""Where the members of a bound group begin: at the offsets that they name, and only at the beginning."""

import contextlib

import pytest

from tests.client.assigned import ROW, TOPIC, in_loop, numbered, produce
from tests.client.members import member
from tests.waiting import wait_until
from tubemq_spark.client import BoundStart
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import EventType, RebalanceEvent
from tubemq_spark.protocol.packed_strings import PartitionInfo

PARTITIONS = [TopicPartition(TOPIC, broker, store * 10_000) for broker in (1, 2, 3) for store in range(2)]
START = 3 * ROW
COUNT = 10


@pytest.fixture
def server():
    settings = EmbeddedSettings(balance_period_ms=100)
    # A store for each partition, so that offsets are those of its messages.
    with EmbeddedTubeMQ(topics={TOPIC: (2, 1)}, brokers=3, settings=settings) as running:
        for where in PARTITIONS:
            produce(running, numbered(COUNT), where=where)
        yield running


def start_of(partitions, members):
    return BoundStart("backfill", members, dict.fromkeys(partitions, START))


def beginnings(*members):
    """Wait until all partitions are held; return where they stand."""
    wait_until(lambda: sum(len(one.connected) for one in members) == len(PARTITIONS), seconds=20)
    return {where: place.offset for one in members for where, place in one.positions().items()}


def test_every_member_begins_at_its_offsets_however_late_it_hears_of_them(server):
    """The master calls the group allocated as soon as one member has its partitions."""
    mine, other = PARTITIONS[::2], PARTITIONS[1::2]
    with (
        member(server, start=start_of(mine, 2)) as quick,
        member(server, start=start_of(other, 2), heartbeat_period_ms=1_500) as slow,
    ):
        assert beginnings(quick, slow) == dict.fromkeys(PARTITIONS, START)
        assert set(quick.connected) == set(mine)
        assert set(slow.connected) == set(other)


def test_a_partition_that_could_not_be_taken_at_once_begins_at_its_offset_later(server):
    refused = server.faults.answer(Method.PARTITION_REGISTER, ErrCode.FORBIDDEN, broker=2, times=2)
    with member(server, start=start_of(PARTITIONS, 1)) as consumer:
        assert beginnings(consumer) == dict.fromkeys(PARTITIONS, START)
    assert refused.hits == 2


def info(server, where):
    endpoint = Endpoint.parse(server.brokers[where.broker_id])
    return PartitionInfo(where.broker_id, endpoint, where.topic, where.partition_id)


def test_what_comes_after_the_first_round_begins_where_the_group_stands(server):
    """Another member may have read on from there."""
    with member(server, start=start_of(PARTITIONS, 2)) as consumer:
        events = [
            RebalanceEvent(number, EventType.ONLY_CONNECT, (info(server, where),))
            for number, where in enumerate(PARTITIONS[:2], 1)
        ]
        in_loop(consumer._core._rebalancing.put, events[0])
        consumer._core._session.first_round = False
        in_loop(consumer._core._rebalancing.put, events[1])
        wait_until(lambda: len(consumer.connected) == 2)
        found = [consumer.positions()[where].offset for where in PARTITIONS[:2]]
        assert found == [START, 0]


def test_who_comes_to_a_group_at_work_does_not_move_it(server):
    with member(server, start=start_of(PARTITIONS, 1)) as first, contextlib.ExitStack() as later:
        assert beginnings(first) == dict.fromkeys(PARTITIONS, START)
        for _ in PARTITIONS:
            first.confirm(first.fetch(20_000))
        second = later.enter_context(member(server, start=start_of(PARTITIONS, 1)))
        wait_until(lambda: second.connected, seconds=20)
        assert set(beginnings(first, second).values()) == {COUNT * ROW}


def test_offsets_count_though_the_master_forgot_the_group_before_the_first_event(server):
    with member(server, start=start_of(PARTITIONS, 2), heartbeat_period_ms=50) as first:
        server.faults.forget_clients()
        with member(server, start=start_of(PARTITIONS, 2)) as second:
            assert beginnings(first, second) == dict.fromkeys(PARTITIONS, START)
