"""The event loop that a producer or a consumer belongs to: the first that uses it."""

import asyncio
import contextlib
from collections.abc import Callable

from tubemq_spark.errors import TubeMQError


class UsersLoop:
    """The event loop of one user, which is known from the first ``enter`` on."""

    def __init__(self, refusal: Callable[[], TubeMQError]) -> None:
        """Wait for the first loop; ``refusal`` returns the error for all others."""
        self._refusal = refusal
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_known(self) -> bool:
        """Whether a loop was entered."""
        return self._loop is not None

    def enter(self) -> None:
        """Bind it to the loop that runs.

        Raises:
            TubeMQError: another loop was first.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise self._refusal()

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, soon; only from inside the loop."""
        if self._loop is not None:
            self._loop.call_soon(function, *arguments)

    def call_soon_threadsafe(self, function: Callable[..., object]) -> None:
        """Call a function in the loop, soon; from anywhere. A loop that has ended calls nothing."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)
