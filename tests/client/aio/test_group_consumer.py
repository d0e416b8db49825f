"""Asynchronous members of a group on three brokers: they share partitions, with members for threads too."""

import asyncio
import collections

import pytest

from tests.client.aio.consuming import PARTITIONS, client_of, leave_a_batch, member, threads
from tests.client.assigned import TOPIC, numbered, produce
from tests.client.members import member as blocking_member
from tests.client.ways import WAYS, only_direct, served, through_gateways_by_night
from tests.waiting import until
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.consumer.values import ConsumeStatus
from tubemq_spark.errors import ConsumeError

SETTINGS = {"max_entries": 10, "client_timeout_ms": 2_000, "lease_timeout_ms": 2_000, "scan_period_ms": 50}
server = served(stores=4, ways=WAYS, balance_period_ms=50, **SETTINGS)


async def shares(*members):
    """Wait until the members share all partitions evenly."""

    def is_even():
        sizes = [len(consumer.connected) for consumer in members]
        return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

    await until(is_even)


class Reading:
    """Coroutines that read for members; what they saw and what they confirmed."""

    def __init__(self):
        self.seen = collections.Counter()
        self.confirmed = set()

    async def read(self, consumer, count):
        """Read until all members together have confirmed so many messages."""
        while len(self.confirmed) < count:
            batch = await consumer.fetch(100)
            if batch is None:
                continue
            values = [record.value for record in batch]
            self.seen.update(values)
            try:
                await consumer.confirm(batch)
            except ConsumeError:
                continue  # the partition went to another member: it comes again
            self.confirmed.update(values)


@through_gateways_by_night
async def test_members_share_with_each_other_and_with_threads(server):
    reading = Reading()
    async with member(server) as first:
        assert await first.wait_until_ready(10_000)
        with blocking_member(server) as of_threads:
            async with member(server) as second:
                await shares(first, of_threads, second)
                produce(server, numbered(300))
                tasks = [asyncio.ensure_future(reading.read(one, 300)) for one in (first, second)]
                while len(reading.confirmed) < 300:
                    batch = await asyncio.to_thread(of_threads.fetch, 50)
                    if batch is not None:
                        reading.confirmed.update(record.value for record in batch)
                        await asyncio.to_thread(of_threads.confirm, batch)
                await asyncio.gather(*tasks)
            await shares(first, of_threads)
        await shares(first)
        assert reading.confirmed == set(numbered(300))


@only_direct  # a gateway may have an answer to what was asked for before there were messages
async def test_a_member_that_forgets_a_fetch_leaves_its_batch_to_others(server):
    """A batch for a cancelled coroutine is put back: its partition goes at once, and all messages come."""
    async with member(server, rebalance_wait_ms=60_000) as first:
        await shares(first)
        for number, one in enumerate(first.connected):
            produce(server, numbered(1, number), where=one)
        await leave_a_batch(server, first)
        async with member(server) as second:
            await shares(first, second)
            reading = Reading()
            await asyncio.gather(reading.read(first, 12), reading.read(second, 12))
        assert reading.confirmed == set(numbered(12))
        assert set(reading.seen.values()) == {1}


@through_gateways_by_night
async def test_fifty_consumers_of_one_client_have_no_threads(server):
    async with client_of(server) as client:
        consumers = [client.assigned_consumer(TOPIC) for _ in range(50)]
        await asyncio.gather(*(consumer.open() for consumer in consumers))
        await asyncio.gather(*(consumer.fetch(20) for consumer in consumers))
        assert {consumer.consume_status for consumer in consumers} == {ConsumeStatus.NOTHING_ASSIGNED}
        assert not threads("aio") + threads("callbacks") + threads("losses")
    assert all(consumer.closed for consumer in consumers)


async def test_callbacks_are_called_in_the_event_loop(server):
    here, loops = set(), set()

    async def assigned(partitions):
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        here.update(partitions)

    def revoked(partitions):
        loops.add(asyncio.get_running_loop())
        here.difference_update(partitions)

    async with client_of(server) as client:
        async with client.group_consumer(TOPIC, on_assigned=assigned, on_revoked=revoked) as consumer:
            await until(lambda: len(here) == PARTITIONS)
            assert here == set(consumer.connected)
        assert here == set()
    assert loops == {asyncio.get_running_loop()}


async def test_an_error_of_a_coroutine_that_is_called_back_is_told_by_fetch(server):
    async def assigned(partitions):
        raise ValueError("no")

    async with client_of(server) as client, client.group_consumer(TOPIC, on_assigned=assigned) as consumer:
        with pytest.raises(ConsumeError, match="TUBEMQ_CALLBACK_FAILED"):
            await consumer.fetch(20_000)


async def test_a_call_that_is_cancelled_as_the_consumer_closes_is_cancelled():
    core = AsyncTubeMQClient.connect("127.0.0.1:1", group="etl").group_consumer(TOPIC)._core
    for by_both in (False, True):
        call = asyncio.ensure_future(core.carry_out(asyncio.sleep(3_600), "what is carried out"))
        await asyncio.sleep(0.01)
        closing = asyncio.ensure_future(core.tasks.cancel())
        await core.close()
        await asyncio.sleep(0)
        if by_both:
            call.cancel()
        with pytest.raises(asyncio.CancelledError if by_both else ConsumeError):
            await call
        await closing
