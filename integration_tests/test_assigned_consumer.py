"""Assigned consumers on two Java brokers: they split partitions, begin as they are told, and lose nothing."""

import collections
import concurrent.futures
import contextlib
import datetime

import pytest

from integration_tests.real.java_client import Subscription
from integration_tests.rig.messages import client_config
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.errors import ConsumeError, RpcError

NODES = 2
MESSAGES = 3_000
PARTITIONS = 12
FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)
LOCALLY = ConsumerConfig(consume_position=ConsumePosition.FIRST, confirm_locally=True)
SECONDS = 120


def produce(client, topic, count=MESSAGES, start=0, partition=None):
    """Send numbers to a partition, or to some 32 in turn to each: few messages leave partitions out."""
    place = None if partition is None else (partition.broker_id, partition.partition_id)
    with client.producer() as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, partition=place)
    return [b"%d" % number for number in range(start, start + count)]


def read(consumer, count):
    """Read until there were so many messages; return them, and where each partition stands."""
    values, offsets = [], {}
    while len(values) < count:
        batch = consumer.fetch(30_000)
        assert batch is not None, consumer.status()
        values += [record.value for record in batch]
        offsets[batch.partition] = consumer.confirm(batch).offset
    return values, offsets


def read_for(consumer, idle_ms=3_000):
    """Read until nothing comes for a while."""
    values = []
    while (batch := consumer.fetch(idle_ms)) is not None:
        values += [record.value for record in batch]
        consumer.confirm(batch)
    return values


@contextlib.contextmanager
def nodes(client, topic, settings, offsets=None):
    """Open as many consumers as there are nodes, each with its share."""
    with contextlib.ExitStack() as opened:
        consumers = [
            opened.enter_context(
                client.assigned_consumer(topic, source_count=NODES, node_id=node, settings=settings)
            )
            for node in range(NODES)
        ]
        for consumer in consumers:
            for partition in consumer.share():
                consumer.connect(partition, None if offsets is None else offsets[partition])
        yield consumers


@pytest.mark.nightly
def test_two_consumers_split_twelve_partitions_and_begin_where_they_are_told(real_brokers):
    topic = "assigned"
    with TubeMQClient(client_config(real_brokers.master, "assigned_group")) as client:
        sent = produce(client, topic)
        with (
            nodes(client, topic, FIRST, collections.defaultdict(int)) as consumers,
            concurrent.futures.ThreadPoolExecutor(NODES) as pool,
        ):
            shares = [consumer.connected for consumer in consumers]
            found = list(pool.map(read_for, consumers))
            offsets = {
                partition: place.offset
                for consumer in consumers
                for partition, place in consumer.positions().items()
            }
            with pytest.raises(RpcError, match="430"):
                client.assigned_consumer(topic, source_count=NODES, node_id=0).open()
        assert all(shares)
        assert len({*shares[0], *shares[1]}) == len(shares[0]) + len(shares[1]) == PARTITIONS
        assert all(found)
        assert sorted(found[0] + found[1]) == sorted(sent), "each exactly once"

        # Others begin behind that, at offsets given; and then again, at those of the group.
        more = produce(client, topic, 600, MESSAGES)
        with (
            nodes(client, topic, LOCALLY, offsets) as consumers,
            concurrent.futures.ThreadPoolExecutor(NODES) as pool,
        ):
            found = list(pool.map(read_for, consumers))
        assert sorted(found[0] + found[1]) == sorted(more)
        last = produce(client, topic, 60, 2 * MESSAGES)
        with nodes(client, topic, FIRST) as consumers:
            assert sorted([value for one in consumers for value in read_for(one)]) == sorted(last)


def test_a_consumer_reads_on_elsewhere_and_the_group_stands_there(real_brokers):
    topic = "assigned_elsewhere"
    with TubeMQClient(client_config(real_brokers.master, topic)) as client:
        before = datetime.datetime.now(datetime.UTC)
        with client.assigned_consumer(topic, settings=FIRST) as consumer:
            where = consumer.share()[0]
            sent = produce(client, topic, 20, partition=where)
            begin = consumer.connect(where, 0).offset
            old = read_for(consumer)
            middle = consumer.committed()[where]
            sent += produce(client, topic, 20, 20, partition=where)
            batch = consumer.fetch(30_000)
            lag = consumer.lag()[where]
            assert old == sent[:20]
            assert lag == 20 >= len(batch)
            assert consumer.seek(where, begin).offset == begin
            with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
                consumer.confirm(batch)
            everything = read_for(consumer)
            assert everything == sent
            assert consumer.lag() == {where: 0}
            end = consumer.committed()[where]
            assert end == middle + lag * 28
            assert consumer.seek_to_beginning()[where].offset == begin
            assert read_for(consumer) == everything
            assert consumer.seek_to_time(before)[where].offset == begin
            assert consumer.seek_to_end()[where].offset == end
            assert read_for(consumer, 1_000) == []
            consumer.seek(where, middle)
        with client.assigned_consumer(topic, settings=FIRST) as consumer:
            assert consumer.connect(where).offset == middle
            assert read_for(consumer) == sent[20:]


def test_a_java_consumer_continues_where_ours_has_confirmed_and_the_other_way_round(
    real_brokers, java_client
):
    topic, group = "assigned_in_turn", "assigned_in_turn"
    with TubeMQClient(client_config(real_brokers.master, group)) as client:
        sent = produce(client, topic, 300)
        with client.assigned_consumer(topic, settings=FIRST) as consumer:
            assert len(consumer.partitions()) == PARTITIONS
            for partition in consumer.share():
                consumer.connect(partition, 0)
            values, _ = read(consumer, 300)
            assert sorted(values) == sorted(sent)
        more = produce(client, topic, 300, 300)
        with java_client.balance_consumer(Subscription(real_brokers.master, topic, group)) as java:
            java.connect_all()
            assert sorted(message.body for message in java.read_to_the_end(300, SECONDS)) == sorted(more)
        last = produce(client, topic, 300, 600)
        with client.assigned_consumer(topic, settings=FIRST) as consumer:
            for partition in consumer.share():
                consumer.connect(partition)
            assert sorted(read_for(consumer)) == sorted(last)
