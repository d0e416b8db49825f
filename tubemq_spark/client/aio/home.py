"""The event loop that something belongs to, and how other threads get something done there."""

import asyncio
import collections
import contextlib
from collections.abc import Callable

from tubemq_spark.errors import TubeMQError


class HomeLoop:
    """The event loop of a producer or a consumer: the first that uses it.

    Threads leave calls there with ``post``. They are made in their order, in the loop, which is woken once
    for all that were left meanwhile: with many answers at a time, waking it would be most of the work.

    ``_scheduled`` is true from when the loop was woken until it begins to make calls. Whoever leaves a call
    appends it first and then looks; the loop resets the flag first and then takes calls: none is missed.
    """

    def __init__(self, refusal: Callable[[], TubeMQError]) -> None:
        """Belong to no loop yet; ``refusal`` makes the error for another loop."""
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
        """Let the loop make a call; any thread may ask. A loop that was closed makes no more."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return  # nobody is left to be told
        self._calls.append(call)
        if self._scheduled:
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        self._scheduled = False
        for _ in range(len(self._calls)):  # what comes meanwhile wakes the loop again
            self._calls.popleft()()
