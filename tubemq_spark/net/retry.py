"""Retries: the pauses between attempts by name, and the one loop that makes them.

DESIGN.md (*Waits*) lists every wait with its owner and its bound.
"""

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.deadline import Deadline

Result = TypeVar("Result")


class Pace(NamedTuple):
    """Pauses that double with every failure in a row."""

    first_ms: int
    longest_ms: int

    def after_ms(self, failures: int) -> int:
        """Return the pause after that many failures in a row, from 1 on: milliseconds."""
        return min(self.longest_ms, self.first_ms << min(failures - 1, 16))


USUAL: Final = Pace(50, 1_000)
"""For a server that is away or has nothing to read: it may be back within milliseconds."""
FREE_READER_GROUP: Final = Pace(100, 2_000)
"""Until another reader gives a reader group back."""
PUBLISHABLE_TOPIC: Final = Pace(200, 1_000)
"""Until the master lists a topic that is new, closed, or whose brokers restart."""
BROKER_OUTAGE: Final = Pace(500, 5_000)
"""Until a broker without an answer is asked again where its stores end."""
BROKER_AWAY: Final = Pace(300, 10_000)
"""Until a consumer tries a broker again that did not answer; its partitions rest together."""
RESEND: Final = Pace(50, 2_000)
"""Between two attempts to send a message."""
RESEND_AFTER_SERVER_ERROR: Final = Pace(500, 8_000)
"""The same, after a failure inside the broker: longer, for each attempt may store a copy."""
REGISTER_MS: Final = 1_000
"""Between two attempts of a consumer to register at a broker."""
LEAVE_MS: Final = 1_000
"""How long a client that closes waits for its master, which would forget it anyway."""
ERROR_REST_MS: Final = 300
"""How long a consumer's partition rests after an error, unless its code has a time of its own."""
STARTING_REST_MS: Final = 2_000
"""The same, while its broker starts or its topic is being closed (403)."""
MOVED_REST_MS: Final = 200
"""The same, when the position lies before the store's first record (301)."""


CHECK_S: Final = 0.1
"""How often who waits looks whether the work is abandoned."""


class Wait(Protocol):
    """How a thread waits; what either method raises ends the work that waits."""

    def pause(self, seconds: float) -> object:
        """Wait that long, or until another thread ends the wait."""

    def check(self) -> object:
        """Return at once unless the work is abandoned; called again and again while an answer is awaited."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sleep:
    """A wait of two functions; by default it only sleeps, and no other thread can abandon it."""

    pause: Callable[[float], object] = time.sleep
    check: Callable[[], object] = lambda: None


SLEEP: Final = Sleep()


class Interruptible:
    """A wait that another thread can end for good: for all that is read on behalf of a user who may close."""

    def __init__(self, ended: Callable[[], Exception]) -> None:
        """Create the wait; ``ended`` returns what its methods raise once it was ended."""
        self._ended = ended
        self._has_ended = threading.Event()

    def end(self) -> None:
        """End the waits under way, and those that begin; may be repeated."""
        self._has_ended.set()

    def pause(self, seconds: float) -> None:
        """Wait that long, in seconds."""
        if self._has_ended.wait(seconds):
            raise self._ended()

    def check(self) -> None:
        """Return at once unless it was ended."""
        self.pause(0)


def with_retries(
    call: Callable[[], Result],
    pause_ms: float,
    attempts: int,
    deadline: Deadline,
    sleep: Callable[[float], object],
    on_retry: Callable[[TubeMQError, int], object] | None = None,
) -> Result:
    """Call until there is an answer, as long as errors are transient and there are attempts and time left.

    ``on_retry`` gets the error and the number of the attempt that failed, before the next one begins.
    """
    attempt = 1
    while True:
        try:
            return call()
        except TubeMQError as error:
            if not error.retriable or attempt >= attempts or not pause(pause_ms, deadline, Sleep(sleep)):
                raise
            if on_retry is not None:
                on_retry(error, attempt)
        attempt += 1


def pause(milliseconds: float, deadline: Deadline, wait: Wait = SLEEP) -> bool:
    """Wait that long, or until the deadline; return False, without waiting, when it has passed.

    A pause that the deadline cuts short still returns True: one last attempt is worthwhile.
    """
    if deadline.expired:
        return False
    wait.pause(min(milliseconds / 1000, deadline.remaining()))
    return True


class Backoff:
    """The pauses of a pace, each shortened at random by up to a half.

    The randomness keeps tasks that failed together from retrying together.
    """

    def __init__(self, pace: Pace = USUAL, random: Callable[[], float] = random.random) -> None:
        """Take ``random`` as a function to [0, 1)."""
        self._pace = pace
        self._failures = 0
        self._random = random

    def next_s(self, deadline: Deadline) -> float | None:
        """Return the next pause in seconds, no longer than until the deadline; None when it has passed.

        A pause that the deadline cuts short is one all the same: one last attempt is worthwhile.
        """
        self._failures += 1
        if deadline.expired:
            return None
        pause_ms = self._pace.after_ms(self._failures) * (1 - self._random() / 2)
        return min(pause_ms / 1000, deadline.remaining())

    def reset(self) -> None:
        """Begin again with the first pause: an attempt has succeeded in between."""
        self._failures = 0
