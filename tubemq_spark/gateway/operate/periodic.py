"""What a gateway does again and again, each concern in a task of its own, until it stops."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class Periodic:
    """The tasks of one gateway; used in the event loop."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, period_ms: int, work: Callable[[], Awaitable[object]], what: str) -> None:
        """Do something in each period; a mistake in it is logged, and it is done again in the next one."""
        self._tasks.append(asyncio.create_task(_repeat(period_ms / 1000, work, what)))

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _repeat(period_s: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    while True:
        # Gateways that were started together do not work together.
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 (no secret)
        await asyncio.sleep(period_s * jitter)
        try:
            await work()
        except Exception:  # (one mistake must not end it for good)
            logger.exception("%s failed; the next attempt follows", what)
