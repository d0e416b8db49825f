"""Reading for coroutines: a thread fetches and decodes the next batch while the coroutine takes records.

A reading is a generator, which blocks. It is in one of these states:

=========  =============================================================================================
state      meaning
=========  =============================================================================================
*new*      nothing was asked of any server: the coroutine has not begun
*ahead*    ``_following`` is the batch that comes next; a thread reads it, or has
*ended*    there is no next one, or ``close`` was called: the generator is closed, its leases given back
=========  =============================================================================================

Invariants:

- One thread at a time carries on with the generator: the next batch is begun when the last one has come, and
  the generator is closed behind it.
- So two batches are held at most, of some MiB each: the one that is taken from, and the next.
- ``close`` ends what the thread waits for within a tenth of a second, but for a broker that is being asked.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent import futures
from concurrent.futures import Future

from tubemq_spark.client.aio.workers import Workers
from tubemq_spark.client.reader.records import Record
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.net.retry import Interruptible, Wait

Batches = Generator[Iterable[Record], None, None]


class Reading:
    """What one coroutine reads."""

    def __init__(self, workers: Workers, begin: Callable[[Wait], Batches]) -> None:
        """Ask nothing.

        Args:
            workers: the threads.
            begin: makes the generator, which waits as it is told.
        """
        self._workers = workers
        self._wait = Interruptible(_StoppedError)
        self._batches = begin(self._wait)
        self._following: Future[list[Record] | None] | None = None

    async def records(self) -> AsyncGenerator[Record, None]:
        """Yield the records.

        Raises:
            TubeMQError: as the generator does; or the client was closed.
        """
        try:
            self._following = self._workers.read(self._next)
            while (records := await asyncio.wrap_future(self._following)) is not None:
                self._following = self._workers.read(self._next)
                for record in records:
                    yield record
        except _StoppedError:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED") from None
        finally:
            await self.close()

    async def close(self) -> None:
        """End the reading, and wait until its leases were given back; may be repeated."""
        self._wait.end()
        if not self._workers.closed:
            await self._workers.end(self._close)

    def _close(self) -> None:
        if self._following is not None:
            futures.wait([self._following])
        self._batches.close()

    def _next(self) -> list[Record] | None:
        self._wait.check()
        batch = next(self._batches, None)
        return None if batch is None else list(batch)


class _StoppedError(Exception):
    """Ends a generator whose client was closed, or which its coroutine has left."""
