"""The event loop that something belongs to, and how other threads get something done or noticed there."""

import asyncio
import collections
import contextlib
import inspect
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Final, TypeVar

from tubemq_spark.errors import TubeMQError

Argument = TypeVar("Argument")

_LOOK_S: Final = 0.1
"""How often a thread that waits for a call looks whether the loop has ended."""


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
        self._tasks: set[asyncio.Future[None]] = set()
        """Which an event loop itself does not keep."""

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

    def calling(self, call: Callable[[Argument], object]) -> Callable[[Argument], None]:
        """Return a function that calls another one, or a coroutine function, in the loop and waits for it.

        Threads call it. Where the loop has ended, nothing is called.
        """

        async def make(argument: Argument) -> None:
            outcome = call(argument)
            if inspect.isawaitable(outcome):
                await outcome

        def call_and_wait(argument: Argument) -> None:
            ended: Future[None] = Future()

            def begin() -> None:
                self._tasks.add(task := asyncio.ensure_future(make(argument)))
                task.add_done_callback(end)

            def end(task: "asyncio.Future[None]") -> None:
                self._tasks.discard(task)
                if task.cancelled():
                    ended.set_exception(RuntimeError("its task was cancelled"))
                elif (error := task.exception()) is not None:
                    ended.set_exception(error)
                else:
                    ended.set_result(None)

            self.post(begin)
            while not ended.done() and not self.idle:
                futures.wait([ended], _LOOK_S)
            if ended.done():
                ended.result()

        return call_and_wait

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
