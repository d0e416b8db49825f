"""Producers and consumers for coroutines on two Java brokers: nothing is lost, whatever is cancelled."""

import asyncio
import contextlib
import dataclasses
from collections import Counter

import pytest

from integration_tests.rig.messages import client_config
from tubemq_spark.client import ConsumePosition, ConsumerConfig, SendBatch, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.errors import ConsumeError

pytestmark = pytest.mark.timeout(600)

TOPIC = "awaited"
PARTITIONS = 12
MESSAGES = 3_000
COROUTINES = 50
SECONDS = 180
FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


def client_of(server, group):
    config = dataclasses.replace(client_config(server.master, group), heartbeat_period_ms=1_000)
    return AsyncTubeMQClient(TubeMQClient(config))


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.05)


async def send(client):
    """Send numbers, one by one and in a batch; return where they are."""
    async with client.producer() as producer:
        single = (producer.send(TOPIC, b"%d" % number) for number in range(MESSAGES // 2))
        results = await asyncio.gather(*single)
        rest = [b"%d" % number for number in range(MESSAGES // 2, MESSAGES)]
        return results + await producer.send_batch(SendBatch.of(TOPIC, rest))


class Reading:
    """What coroutines have confirmed, and how often."""

    def __init__(self):
        self.confirmed = Counter()

    @property
    def complete(self):
        return len(self.confirmed) == MESSAGES

    async def read(self, consumer):
        """Fetch with time-outs that often cut a fetch short."""
        with contextlib.suppress(ConsumeError):  # closed
            while not self.complete:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        batch = await consumer.fetch(20)
                    if batch is not None:
                        await consumer.confirm(batch)
                        self.confirmed.update(record.value for record in batch)


async def read_in_a_group(server):
    """Two members; one leaves while both read."""
    reading = Reading()
    async with (
        client_of(server, "async_group") as client,
        client.group_consumer(TOPIC, settings=FIRST) as one,
    ):
        other = await client.group_consumer(TOPIC, settings=FIRST).open()
        await until(lambda: one.connected and other.connected)
        await until(lambda: len({*one.connected, *other.connected}) == PARTITIONS)
        readers = [asyncio.ensure_future(reading.read(other)) for _ in range(COROUTINES)]
        await until(lambda: reading.confirmed)
        await other.close()
        readers += [asyncio.ensure_future(reading.read(one)) for _ in range(COROUTINES)]
        await until(lambda: reading.complete)
        await asyncio.gather(*readers)
    return reading.confirmed


async def read_assigned(server, offsets):
    """All partitions from their beginnings, by as many coroutines."""
    reading = Reading()
    async with client_of(server, "async_assigned") as client, client.assigned_consumer(TOPIC) as consumer:
        await asyncio.gather(*(consumer.connect(one, 0) for one in await consumer.share()))
        await asyncio.gather(*(reading.read(consumer) for _ in range(COROUTINES)))
        ends = {partition: where.offset for partition, where in consumer.positions().items()}
    assert all(offset < ends[partition] for partition, offset in offsets)
    return reading.confirmed


async def everything(server):
    async with client_of(server, "async_group") as client:
        results = await send(client)
    assert len({(result.partition, result.offset) for result in results}) == MESSAGES
    sent = {b"%d" % number for number in range(MESSAGES)}
    assert set(await read_in_a_group(server)) == sent
    confirmed = await read_assigned(server, [(result.partition, result.offset) for result in results])
    assert confirmed == dict.fromkeys(sent, 1), (
        "no other consumer reads, and a cancelled call is not repeated"
    )


@pytest.mark.nightly
def test_a_hundred_coroutines_send_and_read(real_brokers):
    asyncio.run(everything(real_brokers))


def test_a_topic_is_read_and_a_consumer_reads_on_elsewhere(real_brokers):
    async def work():
        async with client_of(real_brokers, "awaited_elsewhere") as client:
            async with client.producer() as producer:
                await producer.send_batch(SendBatch.of(TOPIC, [b"%d" % number for number in range(240)]))
            records = [record async for record in client.read(TOPIC)]
            assert len(records) >= 240
            async with client.assigned_consumer(TOPIC, settings=FIRST) as consumer:
                where = records[0].partition
                begin = (await consumer.connect(where, 0)).offset
                batch = await consumer.fetch(30_000)
                moved = await consumer.seek_to_end()
                with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
                    await consumer.confirm(batch)
                assert await consumer.lag() == {where: 0}
                assert moved[where].offset == begin + await lag_from(consumer, where, begin) * 28
                assert (await consumer.fetch(30_000)).records[0].value == records[0].value

    async def lag_from(consumer, where, offset):
        await consumer.seek(where, offset)
        return (await consumer.lag(where))[where]

    asyncio.run(work())
