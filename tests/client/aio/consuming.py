"""Asynchronous consumers of an embedded server with three brokers: what their tests share."""

import asyncio
import contextlib
import threading

from tests.client.assigned import TOPIC, numbered, partition, produce
from tests.client.members import client_of as blocking_client_of
from tests.waiting import until
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.protocol.constants import Method

PARTITIONS = 12


def client_of(server, group="etl", **changes):
    return AsyncTubeMQClient(blocking_client_of(server, group, **changes))


@contextlib.asynccontextmanager
async def member(server, group="etl", **changes):
    asked = {name: changes.pop(name) for name in ("message_types", "start", "on_loss") if name in changes}
    async with (
        client_of(server, group, **changes) as client,
        client.group_consumer(TOPIC, **asked) as consumer,
    ):
        yield consumer


@contextlib.asynccontextmanager
async def assigned(server, group="etl", **changes):
    names = ("message_types", "source_count", "node_id", "on_loss")
    asked = {name: changes.pop(name) for name in names if name in changes}
    async with (
        client_of(server, group, **{"layout_period_ms": 0, **changes}) as client,
        client.assigned_consumer(TOPIC, **asked) as consumer,
    ):
        yield consumer


@contextlib.asynccontextmanager
async def connected(server, count, **changes):
    """Yield a consumer of one partition, which has got so many more messages."""
    produce(server, numbered(count), where=partition())
    async with assigned(server, **changes) as consumer:
        await consumer.connect(partition(), 0)
        yield consumer


async def leave_a_batch(server, consumer):
    """Fetch until a batch has come that none has taken: brokers answer only when none waits any more."""
    with server.faults.hold(Method.GET_MESSAGE) as held:
        while not held.hits:  # its partitions may not be fetched at once
            assert await consumer.fetch(0) is None
            await asyncio.sleep(0.01)
    await until(lambda: consumer._core.line._outcomes)


async def take(consumer, count):
    """Fetch and confirm until there were so many messages; return them in the order they came."""
    values = []
    while len(values) < count:
        batch = await consumer.fetch(30_000)
        values += [record.value for record in batch]
        await consumer.confirm(batch)
    return values


def threads(kind):
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"tubemq-{kind}")]
