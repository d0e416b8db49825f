"""Coroutines that wait until something holds that other threads change."""

import asyncio
from collections.abc import Callable

from tubemq_spark.client.aio.home import HomeLoop


class Changes:
    """Tells coroutines of an event loop when to look again.

    Whoever makes changes keeps this object, which therefore must not keep its users.
    """

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._event = asyncio.Event()
        self._watching = 0

    def note(self) -> None:
        """Let those who wait look again; any thread may call this."""
        if self._watching:
            self._home.post(self._event.set)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when a condition holds; what it raises is passed on."""
        self._watching += 1
        try:
            while True:
                # Before looking: what changes from now on sets it again.
                self._event.clear()
                if holds():
                    return
                await self._event.wait()
        finally:
            self._watching -= 1
