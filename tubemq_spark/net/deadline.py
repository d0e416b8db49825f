"""A point in time that is passed down through calls, so that time-outs do not multiply."""

import io
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Clock = Callable[[], float]
"""Returns seconds since some fixed moment; never goes back."""


def monotonic() -> float:
    """Return the seconds of the monotonic clock; looked up each time, since a simulation has its own."""
    return time.monotonic()


class Deadline:
    """The latest moment for an action."""

    def __init__(self, at: float, clock: Clock | None = None) -> None:
        """Take the moment in seconds of ``clock``, by default the monotonic one."""
        self.at = at
        """The moment, in seconds of the clock."""
        self._clock = clock or monotonic

    @classmethod
    def after_ms(cls, milliseconds: float, clock: Clock | None = None) -> Self:
        """Return the deadline that many milliseconds from now."""
        clock = clock or monotonic
        return cls(clock() + milliseconds / 1000, clock)

    def earlier(self, deadline: "Deadline | None") -> "Deadline":
        """Return this deadline or another one of the same clock, whichever comes first."""
        return self if deadline is None or self.at <= deadline.at else deadline

    def later(self, deadline: "Deadline") -> "Deadline":
        """Return this deadline or another one of the same clock, whichever comes last."""
        return deadline if self.at <= deadline.at else self

    def remaining(self) -> float:
        """Return the seconds left, never less than 0."""
        return max(0.0, self.at - self._clock())

    @property
    def expired(self) -> bool:
        """Whether nothing is left."""
        return self._clock() >= self.at


class UntilDeadline(io.RawIOBase):
    """Reads from a connection until a deadline, which single bytes do not postpone."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        """Read from a connection, whose time-out this sets; closing it is its owner's."""
        self._connected = connected
        self._deadline = deadline

    def readable(self) -> bool:
        """Return whether it can be read: always."""
        return True

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of it, as a socket does."""
        return io.BufferedReader(self)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Wait for the next bytes and return how many there are; 0 at the end."""
        remaining = self._deadline.remaining()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(remaining)
        return self._connected.recv_into(buffer)
