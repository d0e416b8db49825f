"""Threads for the calls of one kind, since the client package blocks.

So many run at a time; so many more wait, each only for a while; further ones are refused at once. A call that
its client has cancelled keeps its thread until what it does in there comes to an end.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from tubemq_spark.errors import GatewayError

Result = TypeVar("Result")

_LOOK_S: Final = 0.01
_SHORTLY_MS: Final = 100
"""When to try again after a queue was full."""


class Workers:
    """The threads of one kind of call; used in the event loop."""

    def __init__(self, kind: str, threads: int, waiting: int, queue_ms: int, gateway: str) -> None:
        """Take the limits.

        Args:
            kind: what they do, for errors, such as ``reads``.
            threads: how many calls run at a time.
            waiting: how many more may wait.
            queue_ms: how long one may wait.
            gateway: the gateway's name, for errors.
        """
        self._kind = kind
        self._most = threads
        self._most_waiting = waiting
        self._queue_ms = queue_ms
        self._gateway = gateway
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, f"tubemq-gateway-{kind}")
        self._turn = asyncio.Semaphore(threads)
        self.waiting = 0
        """How many wait for a thread."""
        self.running = 0
        """How many run now."""

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what a function returns, which runs in a thread.

        Raises:
            GatewayError: there was no thread for it in time.
        """
        await self._enter()
        loop = asyncio.get_running_loop()
        try:
            future = self._executor.submit(work)
        except BaseException:
            self._leave()
            raise
        # Not when this coroutine ends: when it is cancelled, the thread may still be at work.
        future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._leave))
        return await asyncio.wrap_future(future)

    async def close(self, patience_s: float) -> int:
        """Take no more calls, and wait for those that run; return how many have not ended in time."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.running:
                    await asyncio.sleep(_LOOK_S)
        return self.running

    async def _enter(self) -> None:
        if self._turn.locked():
            if self.waiting >= self._most_waiting:
                raise self._busy(
                    f"{self.waiting} calls wait already for one of its {self._most} {self._kind}"
                )
            self.waiting += 1
            try:
                async with asyncio.timeout(self._queue_ms / 1000):
                    await self._turn.acquire()
            except TimeoutError:
                what = f"none of its {self._most} {self._kind} came to an end within {self._queue_ms} ms"
                raise self._busy(what) from None
            finally:
                self.waiting -= 1
        else:
            await self._turn.acquire()
        self.running += 1

    def _leave(self) -> None:
        self.running -= 1
        self._turn.release()

    def _busy(self, what: str) -> GatewayError:
        return GatewayError(
            "TUBEMQ_GATEWAY_BUSY", gateway=self._gateway, what=what, retry_after_ms=_SHORTLY_MS
        )
