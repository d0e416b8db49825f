"""Reading for coroutines: a task reads the next batch while the coroutine takes records.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*new*      nothing was asked of any server: the coroutine has not begun
*ahead*    the task reads the batch that comes next, or waits until the last one is taken
*ended*    there is no next one, or ``close`` was called: the task has ended, its leases are given back
=========  ==================================================================================================

Invariants:

- The reading owns the task, and ``close`` waits for its end.
- So two batches are held at most, of some MiB each: the one that is taken from, and the next.
- After ``close`` no record comes: what is ahead is dropped.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future
from typing import TypeAlias

from tubemq_spark.client.aio.workers import Workers
from tubemq_spark.client.config import ClientConfig, usual_web_servers
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.metadata.layout import topics_layout
from tubemq_spark.client.reader.range_reader import read_range, require_sound
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import OffsetRange, RangeRequest, TopicsLayout
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.retry import Interruptible, Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecord

Items: TypeAlias = AsyncGenerator[Iterable[Record] | LossRecord, None]
"""Batches of records, and losses before what lies behind them."""
Batches: TypeAlias = Generator[Iterator[Record], None, None]


class Reading:
    """What one coroutine reads."""

    def __init__(self, items: Items, on_loss: LossPolicy, *, closed: bool = False) -> None:
        """Ask nothing; what is ``closed`` from the start refuses to."""
        self._items = items
        self._on_loss = on_loss
        self._ahead: asyncio.Queue[Iterable[Record] | LossRecord | None] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._closed = closed

    async def records(self) -> AsyncGenerator[Record, None]:
        """Yield the records.

        Raises:
            TubeMQError: as the generator does; or the client was closed.
        """
        self._refuse_if_closed()
        self._task = asyncio.create_task(self._read())
        try:
            while (item := await self._ahead.get()) is not None:
                self._ahead.task_done()
                if isinstance(item, LossRecord):
                    self._on_loss(item)
                    continue
                for record in item:
                    yield record
            self._refuse_if_closed()
            await self._task
        finally:
            await self.close()

    async def close(self) -> None:
        """End the reading, and wait until its leases were given back; may be repeated."""
        self._closed = True
        if self._task is None:
            await self._items.aclose()
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._items) as items:
                async for item in items:
                    await self._ahead.put(item)
                    await self._ahead.join()  # the next one is begun when this one is taken
        except BaseException:
            # Who waits for the next batch gets the end at once.
            if self._ahead.full():
                self._ahead.get_nowait()
            self._ahead.put_nowait(None)
            raise
        await self._ahead.put(None)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")


async def layout_of(config: ClientConfig, connections: Connections, topics: Iterable[str]) -> TopicsLayout:
    """Return where the partitions of topics are; see ``topics_layout``."""
    return await topics_layout(config, connections, topics, web=lambda: usual_web_servers(config.masters))


async def topic_items(config: ClientConfig, connections: Connections, topics: Iterable[str]) -> Items:
    """Yield all records that topics hold now, one partition after the other and each in its order.

    Raises:
        TubeMQError: as ``topics_layout``, ``StoreBounds.complete`` and ``read_range``.
    """
    layout = await layout_of(config, connections, topics)
    bounds = (await store_bounds(config, connections, layout.stores, layout.visit_token)).complete()
    for partition in layout.partitions:
        alone = partition.store_id in layout.alone_in_store and not config.message_types
        request = layout.request(OffsetRange(partition, *bounds[partition.store_id]), own_store=alone)
        async with contextlib.aclosing(range_items(config, connections, request)) as items:
            async for item in items:
                yield item


async def range_items(config: ClientConfig, connections: Connections, request: RangeRequest) -> Items:
    """Yield the records of a range.

    Raises:
        OffsetFormatError: an offset is not a multiple of 28, or is negative.
        TubeMQError: as ``read_range``.
    """
    require_sound(request.range)
    async with contextlib.aclosing(read_range(config, connections, request)) as items:
        async for item in items:
            if isinstance(item, LossRecord):
                yield item
            else:
                yield records_of(item, exact_offsets=request.own_store)


async def items_of_thread(workers: Workers, begin: Callable[[Wait], Batches]) -> Items:
    """Yield what a blocking generator does, each item of which a thread reads: that of a client of gateways.

    Args:
        workers: the threads.
        begin: makes the generator, which waits as it is told.
    """
    wait = Interruptible(_StoppedError)
    batches = begin(wait)
    following: Future[list[Record] | None] | None = None

    def read() -> list[Record] | None:
        wait.check()
        batch = next(batches, None)
        return None if batch is None else list(batch)

    def close() -> None:
        if following is not None:
            futures.wait([following])
        batches.close()

    try:
        while True:
            following = workers.read(read)
            records = await asyncio.wrap_future(following)
            if records is None:
                return
            yield records
    finally:
        wait.end()
        await workers.end(close)


class _StoppedError(Exception):
    """Ends a generator whose client was closed, or which its coroutine has left."""
