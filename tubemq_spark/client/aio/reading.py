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
from collections.abc import AsyncGenerator, Iterable

from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.reader.topic_reader import Items
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.offsets.loss import LossPolicy, LossRecord


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
