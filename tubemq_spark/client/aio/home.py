"""The event loop that something belongs to, and how other threads get something done or noticed there."""

import asyncio
import collections
import contextlib
from collections.abc import Callable

from tubemq_spark.errors import TubeMQError


class HomeLoop:
    """The event loop of a producer or a consumer: the first that uses it.

    Threads leave calls there with ``post``. They are made in their order, in the loop, which is woken once
    for all that were left until then: with many answers at a time, waking it would be most of the work.

    ``_scheduled`` is true from when the loop was woken until it begins to make calls. A call is
    appended first, and then the flag is looked at; the loop resets the flag first and then takes calls: none
    is missed.
    """

    def __init__(self, refusal: Callable[[], TubeMQError]) -> None:
        """Wait for the first loop; ``refusal`` makes the error for another one."""
        self._refusal = refusal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._scheduled = False

    @property
    def idle(self) -> bool:
        """Whether the loop does not run: not yet, not now, or not any more."""
        return self._loop is None or not self._loop.is_running()

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which is the one that runs.

        Raises:
            TubeMQError: another loop was first.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise self._refusal()
        return running

    def post(self, call: Callable[[], object]) -> None:
        """Leave a call to the loop; any thread may. A loop that was closed makes no more."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return  # none is left to be told
        self._calls.append(call)
        if self._scheduled:
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # closed since
            loop.call_soon_threadsafe(self._make_calls)

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Arrange a call in the loop after some seconds; in the loop only."""
        return self.enter().call_later(seconds, call)

    def _make_calls(self) -> None:
        self._scheduled = False
        for _ in range(len(self._calls)):  # what comes after these wakes the loop again
            self._calls.popleft()()


class Changes:
    """Tells coroutines of an event loop when to look again.

    What makes changes keeps this object, which therefore must not keep its users.
    """

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._event = asyncio.Event()
        self._watching = 0

    def note(self) -> None:
        """Make those who wait look again; any thread may call this."""
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
