"""Assigned consumers of an embedded server with three brokers: what their tests share."""

import asyncio
import contextlib

from tests.client.ways import TOPIC, client_by_its_way
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.loop import run

ROW = 28
QUICK = {"heartbeat_period_ms": 29_000, "rpc_timeout_ms": 3_000, "register_retry_ms": 10}
"""For half a minute nothing happens by itself: tests call ``upkeep`` when it is due."""


def client_of(server, group="etl", **changes):
    consumer = {
        "ready_wait_ms": 5_000,
        "not_found_wait_ms": 20,
        "layout_period_ms": 0,
        "rebalance_wait_ms": 200,
    }
    consumer |= {name: changes.pop(name) for name in set(changes) & set(ConsumerConfig.__dataclass_fields__)}
    position = consumer.pop("consume_position", ConsumePosition.FIRST)
    settings = {**QUICK, **changes, "consumer": ConsumerConfig(consume_position=position, **consumer)}
    return client_by_its_way(server, group, **settings)


@contextlib.contextmanager
def consumer_of(server, topics=TOPIC, group="etl", **changes):
    asked = {
        name: changes.pop(name)
        for name in ("message_types", "source_count", "node_id", "on_loss", "follow_resets")
        if name in changes
    }
    with client_of(server, group, **changes) as client, client.assigned_consumer(topics, **asked) as consumer:
        yield consumer


@contextlib.contextmanager
def connected(server, count=0, **changes):
    """Yield a consumer of one partition, which has got so many more messages."""
    if count:
        produce(server, numbered(count), where=partition())
    with consumer_of(server, **changes) as consumer:
        consumer.connect(partition())
        yield consumer


def core_of(consumer):
    """Return what is behind a consumer of any kind and form."""
    return consumer._core


def is_leaving(consumer, where):
    """Return whether nothing of a partition is handed out any more, since it is being given up."""
    state = core_of(consumer).state
    return where in (state.cache._leaving if hasattr(state, "cache") else state.unwanted)


def in_loop(function, *arguments):
    """Call a function in the process's loop, and return what it returns."""

    async def call():
        return function(*arguments)

    return run(call())


def keep_leases(consumer):
    """Renew the leases of a consumer of either kind."""
    run(_keep_leases(core_of(consumer)))


def upkeep(consumer):
    """Do what the consumer does by itself every heartbeat period, and wait for what that begins."""
    run(_upkeep(core_of(consumer)))


async def _keep_leases(core):
    core._leases.run_once()
    await core._leases._heartbeats.ended()


async def _upkeep(core):
    await _keep_leases(core)
    async with core._session._exclusively():
        await core._session._send_heartbeat()
    if (giving_up := core._connecting._giving_up) is not None:
        await asyncio.wait([giving_up], timeout=10)


def partition(broker=1, number=0, topic=TOPIC):
    return TopicPartition(topic, broker, number)


def produce(server, values, topic=TOPIC, where=None, **more):
    config = ClientConfig((Endpoint.parse(server.master),), "etl", **QUICK)
    with TubeMQClient(config) as client, client.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=where and (where.broker_id, where.partition_id), **more)


def fill(server, count):
    """Put so many numbers in each partition, and return them by partition."""
    with client_of(server, "other") as client, client.producer() as producer:
        partitions = list(client.layout(TOPIC).partitions)
        sent = {
            one: [b"%s %d" % (str(one).encode(), number) for number in range(count)] for one in partitions
        }
        for number in range(count):
            for one, values in sent.items():
                producer.send(TOPIC, values[number], partition=(one.broker_id, one.partition_id))
    return sent


def numbered(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def take(consumer, count, timeout_ms=5_000):
    """Fetch and confirm until there were so many messages; return them in the order they came."""
    values = []
    while len(values) < count:
        batch = consumer.fetch(timeout_ms)
        assert batch is not None, (consumer.consume_status, len(values), consumer.status())
        values += [record.value for record in batch]
        consumer.confirm(batch)
    return values
