"""A range on its way to its client: what is ahead of the client has its room before it is fetched."""

import asyncio
import contextlib
import itertools

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.source.rows import columns
from tubemq_spark.gateway import reading
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches

ME, OTHER = Owner("me"), Owner("other")
DEMO, ROW = TopicPartition("demo", 1, 0), 28


def batch(number, size=100):
    return FetchedBatch(DEMO, ROW * number, ROW * (number + 1), columns([(bytes(size), None)]), dense=True)


SIZE = len(batches.batch_to_bytes(batch(0)))


class Range:
    """Batches of one record each; counts what is fetched, and may wait before one."""

    def __init__(self, *sizes):
        self.batches = [batch(number, size) for number, size in enumerate(sizes)]
        self.fetched = 0
        self.closed = False
        self.gates = {}

    async def items(self):
        try:
            for number, item in enumerate(self.batches):
                self.fetched += 1
                if number in self.gates:
                    await self.gates[number].wait()
                yield item
        finally:
            self.closed = True

    @contextlib.asynccontextmanager
    async def read(self, quota, usual_bytes=SIZE):
        """Read it as a call does, and give its messages."""
        range_ = reading._Reading(ME, quota, ROW * len(self.batches), usual_bytes, Metrics())
        task = asyncio.create_task(range_.read(self.items()))
        task.add_done_callback(range_.end)
        try:
            async with contextlib.aclosing(range_.messages()) as messages:
                yield messages
        finally:
            task.cancel()
            await asyncio.wait({task})
            range_.drop()


async def settled():
    for _ in range(50):
        await asyncio.sleep(0)


@in_virtual_time
async def test_what_is_read_is_passed_on_while_the_task_reads_on():
    """Not only when a client is told that the gateway is alive, or at the end."""
    source, quota = Range(100, 100), FairQuota(10_000)
    source.gates[1] = asyncio.Event()
    async with source.read(quota) as messages:
        first = await anext(messages)
        assert first == (batches.batch_to_bytes(batch(0)), 1)
        source.gates[1].set()
        assert await anext(messages) == (batches.batch_to_bytes(batch(1)), 1)
        assert [message async for message in messages] == []
    assert quota.used == 0


@in_virtual_time
async def test_nothing_is_fetched_before_there_is_room_for_it():
    source, quota = Range(100, 100), FairQuota(2 * SIZE)
    assert quota.take(OTHER, 2 * SIZE)
    async with source.read(quota) as messages:
        assert await anext(messages) is None, "a sign of life"
        assert source.fetched == 0
        quota.give(OTHER, 2 * SIZE)
        assert await anext(messages) is not None
        assert quota.used <= 2 * SIZE
    assert quota.used == 0


@in_virtual_time
async def test_what_is_ready_and_what_is_fetched_has_its_room():
    source, quota = Range(*[100] * 20), FairQuota(1_000 * SIZE)
    source.gates[2] = asyncio.Event()
    async with source.read(quota) as messages:
        await settled()
        assert (source.fetched, round(quota.used / SIZE)) == (3, 3)
        source.gates[2].set()
        await settled()
        assert (source.fetched, round(quota.used / SIZE)) == (reading._AHEAD, reading._AHEAD)
        await anext(messages)
        await settled()
        assert (source.fetched, round(quota.used / SIZE)) == (reading._AHEAD + 1, reading._AHEAD + 1)
    assert (quota.used, source.closed) == (0, True)


@in_virtual_time
async def test_a_batch_that_is_longer_than_usual_is_ready_when_it_has_room():
    source, quota = Range(5_000, 5_000), FairQuota(8_000)
    assert quota.take(OTHER, 4_000)
    async with source.read(quota) as messages:
        assert await anext(messages) is None
        assert (source.fetched, quota.used) == (1, 4_000), "no reading waits for more while holding some"
        quota.give(OTHER, 4_000)
        sizes = [len(message[0]) async for message in messages if message is not None]
        assert min(sizes) > 5_000
    assert quota.used == 0


@in_virtual_time
async def test_the_end_needs_no_room():
    source, quota = Range(100), FairQuota(SIZE)
    async with source.read(quota) as messages:
        assert await anext(messages) is not None
        assert [message async for message in messages] == []


@in_virtual_time
async def test_signs_of_life_become_rarer():
    source = Range(100)
    source.gates[0] = asyncio.Event()
    loop, times = asyncio.get_running_loop(), []
    async with source.read(FairQuota(SIZE)) as messages:
        for _ in range(7):
            assert await anext(messages) is None
            times.append(loop.time())
    pauses = [round(later - earlier, 2) for earlier, later in itertools.pairwise(times)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


@in_virtual_time
async def test_an_error_comes_behind_what_was_read():
    class BrokenRange(Range):
        async def items(self):
            yield self.batches[0]
            raise ZeroDivisionError

    quota = FairQuota(10 * SIZE)
    range_ = reading._Reading(ME, quota, 10 * ROW, SIZE, Metrics())
    task = asyncio.create_task(range_.read(BrokenRange(100).items()))
    task.add_done_callback(range_.end)
    assert [rows async for _, rows in range_.messages()] == [1]
    with pytest.raises(ZeroDivisionError):
        await task
    assert quota.used == 0
