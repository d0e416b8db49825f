"""The messages of a gateway's stream for coroutines, read in a thread: gRPC has no other way."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tubemq_spark.client.remote.channels import Call
from tubemq_spark.errors import TubeMQConnectionError

Answered: TypeAlias = Any
"""A message of a type that the method tells."""

_AHEAD: Final = 2
"""How many messages of a stream are read before they are asked for."""


class StreamReader:
    """Reads a stream in a daemon thread, for coroutines of the loop that runs; up to a few messages ahead.

    The thread ends when the stream does. ``_is_cancelled`` is set before the call is looked for, and looked
    at after the call was made: so one of the two threads cancels it.
    """

    def __init__(self, begin: Callable[[], Call], next_of: Callable[[Call], Answered | None]) -> None:
        """Begin the call in the thread, which may read files.

        Args:
            begin: begins the call.
            next_of: waits for the next message of the call; None is the end of the stream.

        Raises:
            TubeMQConnectionError: no thread is left.
        """
        self._begin = begin
        self._next_of = next_of
        self._call: Call = None
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Answered | Exception | None] = asyncio.Queue()
        """Messages, and behind them why there are no more; None: the gateway has ended the stream."""
        self._room = threading.Semaphore(_AHEAD)
        self._is_cancelled = False
        try:
            threading.Thread(target=self._run, name="tubemq-answers", daemon=True).start()
        except RuntimeError as error:
            raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error

    async def next(self) -> Answered | None:
        """Return the next message; None at the end. What ends the stream otherwise is raised."""
        message = await self._arrived.get()
        if isinstance(message, Exception):
            raise message
        self._room.release()
        return message

    def cancel(self) -> None:
        """End the call, if it has not ended; returns at once."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()
        self._room.release()

    def _run(self) -> None:
        message: Answered | Exception | None = None
        try:
            self._call = self._begin()
            while not self._is_cancelled and (message := self._next_of(self._call)) is not None:
                self._hand_over(message)
                self._room.acquire()
        except Exception as error:  # noqa: BLE001 (who waits for messages gets it)
            message = error
        if self._is_cancelled and self._call is not None:
            self._call.cancel()
        else:
            self._hand_over(message)

    def _hand_over(self, message: Answered | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, message)
        except RuntimeError:  # the loop has ended
            self.cancel()
