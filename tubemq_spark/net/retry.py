"""Waiting between attempts."""

import random
import time
from collections.abc import Callable

from tubemq_spark.net.deadline import Deadline

Wait = Callable[[float], object]
"""Waits that many seconds: ``time.sleep``, or an ``Event.wait`` that somebody can end early."""


def pause(milliseconds: float, deadline: Deadline, wait: Wait = time.sleep) -> bool:
    """Wait that long, or until the deadline; return False, without waiting, when it has passed.

    The wait that the deadline cuts short still returns True: one last attempt is worth it.
    """
    if deadline.expired:
        return False
    wait(min(milliseconds / 1000, deadline.remaining()))
    return True


class Backoff:
    """Pauses that double from ``first_ms`` up to ``max_ms``, each shortened at random by up to a half.

    The randomness keeps many tasks that failed together from coming back together.
    """

    def __init__(
        self,
        first_ms: float,
        max_ms: float,
        random: Callable[[], float] = random.random,
        wait: Wait = time.sleep,
    ) -> None:
        """Take ``random`` as a function to [0, 1)."""
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._next_ms = first_ms
        self._random = random
        self._wait = wait

    def wait(self, deadline: Deadline) -> bool:
        """Make the next pause; return False, without waiting, when the deadline has passed."""
        milliseconds = min(self._next_ms, self._max_ms)
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return pause(milliseconds * (1 - self._random() / 2), deadline, self._wait)

    def reset(self) -> None:
        """Begin again with ``first_ms``: something went well in between."""
        self._next_ms = self._first_ms
