"""Retries: the pauses between attempts, and the one loop that makes them."""

import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.deadline import Deadline

Result = TypeVar("Result")
Wait = Callable[[float], object]
"""Waits for that many seconds: ``time.sleep``, or an ``Event.wait`` that another thread can end early."""


class Pauses(Protocol):
    """The pauses between the attempts of one call."""

    def wait(self, deadline: Deadline) -> bool:
        """Make the next pause; return False, without waiting, when there must be no further attempt."""


def is_retriable(error: TubeMQError) -> bool:
    """Tell whether the same call may succeed later."""
    return error.retriable


def with_retries(
    call: Callable[[], Result],
    pauses: Pauses,
    deadline: Deadline,
    *,
    is_transient: Callable[[TubeMQError], bool] = is_retriable,
    on_retry: Callable[[TubeMQError, int], object] | None = None,
) -> Result:
    """Call until there is an answer, as long as errors are transient and there are pauses left.

    Args:
        call: what to do.
        pauses: how to wait between two attempts, and how many there may be.
        deadline: the latest moment for an attempt to begin.
        is_transient: whether another attempt is worthwhile after an error.
        on_retry: called with the error and the number of the attempt that failed, from 1 on, before the next
            attempt begins.

    Raises:
        TubeMQError: that of the last attempt.
    """
    attempt = 1
    while True:
        try:
            return call()
        except TubeMQError as error:
            if not is_transient(error) or not pauses.wait(deadline):
                raise
            if on_retry is not None:
                on_retry(error, attempt)
        attempt += 1


def pause(milliseconds: float, deadline: Deadline, wait: Wait = time.sleep) -> bool:
    """Wait that long, or until the deadline; return False, without waiting, when it has passed.

    A pause that the deadline cuts short still returns True: one last attempt is worthwhile.
    """
    if deadline.expired:
        return False
    wait(min(milliseconds / 1000, deadline.remaining()))
    return True


class FixedPauses:
    """Pauses of one length, for a limited number of attempts."""

    def __init__(self, pause_ms: float, attempts: int, wait: Wait = time.sleep) -> None:
        """Allow ``attempts`` attempts, the first one included."""
        self._pause_ms = pause_ms
        self._left = attempts - 1
        self._wait = wait

    def wait(self, deadline: Deadline) -> bool:
        """Make the next pause; return False when the deadline has passed or all attempts are used."""
        if self._left <= 0 or deadline.expired:
            return False
        self._left -= 1
        return pause(self._pause_ms, deadline, self._wait)


class Backoff:
    """Pauses that double from ``first_ms`` to ``max_ms``, each shortened at random by up to a half.

    The randomness keeps tasks that failed together from retrying together.
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
        """Begin again with ``first_ms``: an attempt has succeeded in between."""
        self._next_ms = self._first_ms
