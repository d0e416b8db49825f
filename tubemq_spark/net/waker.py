"""Ends another thread's wait for connections."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from tubemq_spark.errors import TubeMQConnectionError

_DRAIN_BYTES: Final = 4096


@contextlib.contextmanager
def or_exhausted() -> Iterator[None]:
    """Make a socket, a selector or a thread.

    Raises:
        TubeMQConnectionError: there is no descriptor or no thread left.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error


class Waker:
    """A pair of sockets: what one thread writes wakes the selector of another.

    ``wake`` may be called by any thread, the rest by the thread that waits. Threads that call ``wake`` and
    ``close`` hold a lock around both: a closed socket's number may belong to another one.
    """

    def __init__(self, on_wake: Callable[[], object]) -> None:
        """Call ``on_wake`` in the thread that was woken; what it raises ends that thread's wait.

        Raises:
            TubeMQConnectionError: there is no descriptor left.
        """
        self._on_wake = on_wake
        with or_exhausted():
            self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def wake(self) -> None:
        """End the wait of the other thread, or its next one."""
        with contextlib.suppress(BlockingIOError):  # full of bytes that will wake it
            self._sender.send(b"\0")

    def handle(self, _events: int) -> None:
        """Do what ``Pipelines`` asks of a connection that something has arrived on; there are no data."""
        with contextlib.suppress(BlockingIOError):
            self.receiver.recv(_DRAIN_BYTES)
        self._on_wake()

    def close(self) -> None:
        """Close both sockets; doing it twice is harmless."""
        self.receiver.close()
        self._sender.close()
