"""Calling functions of a consumer's user: ``on_loss``, ``on_assigned`` and ``on_revoked``.

They never run in the event loop of the process. Those of a consumer for threads are called in threads of that
consumer, those of a consumer for coroutines in the loop of their user, where they may be coroutine functions.
Both have two lines, in which a call waits for the one before it: one for ``on_loss`` and one for the others,
since what those ask for, such as a ``seek``, may find a loss. A function that never returns holds up its
consumer, of which one warning tells.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from tubemq_spark.client.callback_thread import CallbackThread

logger = logging.getLogger(__name__)

_SLOW_S: Final = 10.0
"""After how long a warning names a function that has not returned."""


_calls_for: contextvars.ContextVar["UserLoop | None"] = contextvars.ContextVar("calls_for", default=None)


class UserCode(Protocol):
    """Where functions of the user are called."""

    name: str
    """That of the consumer, for warnings."""

    def is_current(self) -> bool:
        """Return whether a function of the user calls this."""

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function, and wait for its end; what it raises is passed on."""

    async def end(self) -> None:
        """Call no functions any more."""


class UserThread:
    """Calls functions in threads, each of which is started for its first function."""

    def __init__(self) -> None:
        """Start no thread."""
        self._threads = {"losses": CallbackThread(), "callbacks": CallbackThread()}
        self.name = ""

    def is_current(self) -> bool:
        """Return whether a function of the user calls this."""
        return any(thread.is_current() for thread in self._threads.values())

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function in its thread, and wait for its end; what it raises is passed on."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def make() -> None:
            error: BaseException | None = None
            try:
                function()
            except StopIteration as raised:  # no future may have it
                error = RuntimeError(f"{name} raised {raised!r}")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 (the caller gets it, also sys.exit())
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, error)

        thread = self._threads[_line_of(name)]
        thread.name = f"tubemq-{_line_of(name)}-{self.name}"
        thread.start()
        thread.call_soon(make)
        await _warned_of(ended, f"{name} of {self.name}")

    async def end(self) -> None:
        """End the threads when they have made their calls; return at once."""
        for thread in self._threads.values():
            thread.end()


class UserLoop:
    """Calls functions, and coroutine functions, in the loop that runs."""

    def __init__(self) -> None:
        """Call nothing."""
        self.name = ""
        self._call_locks = {"losses": asyncio.Lock(), "callbacks": asyncio.Lock()}

    def is_current(self) -> bool:
        """Return whether a function of the user calls this, or a task that it has begun."""
        return _calls_for.get() is self

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function, and await what it returns; what it raises is passed on."""
        async with self._call_locks[_line_of(name)]:
            token = _calls_for.set(self)
            try:
                result = function()
                if inspect.isawaitable(result):
                    await _warned_of(asyncio.ensure_future(result), f"{name} of {self.name}")
            finally:
                _calls_for.reset(token)

    async def end(self) -> None:
        """Do nothing."""


def _line_of(name: str) -> str:
    return "losses" if name == "on_loss" else "callbacks"


async def _warned_of(ended: Awaitable[object], what: str) -> None:
    """Wait for the end of a function; warn once when it takes long."""
    warning = asyncio.get_running_loop().call_later(
        _SLOW_S, logger.warning, "%s has not returned for %d s, and holds up its consumer", what, _SLOW_S
    )
    try:
        await ended
    finally:
        warning.cancel()
