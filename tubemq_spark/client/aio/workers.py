"""The threads of an asynchronous client, for what cannot but block: a few, made when they are first needed.

They open and close producers and consumers, connect to partitions, and ask masters. What ends something has
threads of its own: it waits for no question. So have readings, each for one batch at a time.

A forked child has none of its parent's threads, and makes its own.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from tubemq_spark.errors import TubeMQConnectionError

Value = TypeVar("Value")

_MOST: Final = 8
"""More calls wait."""


class Workers:
    """The threads that all producers and consumers of one client share."""

    def __init__(self) -> None:
        self.closed = False
        """Whether the client was closed, and with it everything that it has made."""
        self._make()

    def start(self, call: Callable[[], Value]) -> "asyncio.Future[Value]":
        """Make a call in a thread and return at once; shield the future when awaiting it.

        Raises:
            TubeMQConnectionError: the client is closed.
        """
        self._check()
        return _submitted(self._calls, call)

    async def run(self, call: Callable[[], Value]) -> Value:
        """Make a call in a thread and wait for it; it is carried out also when its caller waits no more.

        Raises:
            TubeMQConnectionError: the client is closed.
        """
        return await asyncio.shield(self.start(call))

    def read(self, call: Callable[[], Value]) -> "Future[Value]":
        """Make a call that reads in a thread, and return at once.

        Raises:
            TubeMQConnectionError: the client is closed.
        """
        self._check()
        return self._reads.submit(call)

    async def end(self, call: Callable[[], Value]) -> Value:
        """As ``run``, for a call that ends something: calls that ask or open something are not before it."""
        return await asyncio.shield(_submitted(self._ends, call))

    def close(self) -> None:
        """Make the threads end when they have nothing to do."""
        self.closed = True
        self._calls.shutdown(wait=False)
        self._ends.shutdown(wait=False)
        self._reads.shutdown(wait=False)

    def _check(self) -> None:
        if self.closed:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")
        if self._process != os.getpid():
            self._make()

    def _make(self) -> None:
        self._process = os.getpid()
        self._calls = ThreadPoolExecutor(_MOST, "tubemq-aio-calls")
        self._ends = ThreadPoolExecutor(_MOST, "tubemq-aio-ends")
        self._reads = ThreadPoolExecutor(_MOST, "tubemq-aio-reads")


def _submitted(pool: ThreadPoolExecutor, call: Callable[[], Value]) -> "asyncio.Future[Value]":
    future = asyncio.wrap_future(pool.submit(call))
    future.add_done_callback(look_at)
    return future


def look_at(future: "asyncio.Future[Value]") -> None:
    """Take a future's error, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
