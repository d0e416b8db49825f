"""The threads of an asynchronous client, for what cannot but block: a few, made when they are first needed.

There are two kinds, so that no wait can be for a thread that waits for it:

- **calls** open and close producers and consumers, connect to partitions, and ask masters. They may wait for
  a partition that a step is using.
- **steps** carry on with a partition that is in use already, where that takes a new connection or a master.
  They never wait for a partition.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Value = TypeVar("Value")

_MOST: Final = 8
"""Threads of each kind; what comes meanwhile waits."""


class Workers:
    """The threads that all producers and consumers of one client share."""

    def __init__(self) -> None:
        """Start none yet."""
        self.steps = ThreadPoolExecutor(_MOST, "tubemq-aio-steps")
        self._calls = ThreadPoolExecutor(_MOST, "tubemq-aio-calls")

    def start(self, call: Callable[[], Value]) -> "asyncio.Future[Value]":
        """Make a call in a thread and return at once; whoever awaits the future should shield it."""
        future = asyncio.wrap_future(self._calls.submit(call))
        future.add_done_callback(_look_at)
        return future

    async def run(self, call: Callable[[], Value]) -> Value:
        """Make a call in a thread and wait for it; it is carried out also when nobody waits any more."""
        return await asyncio.shield(self.start(call))

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self.steps.shutdown(wait=False)
        self._calls.shutdown(wait=False)


def _look_at(future: "asyncio.Future[Value]") -> None:
    """Let asyncio not complain of an error that nobody waits for any more."""
    if not future.cancelled():
        future.exception()
