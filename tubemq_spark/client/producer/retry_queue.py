"""Messages whose last attempt came to nothing, until the next one."""

import dataclasses
import heapq
import itertools
import random
from collections.abc import Iterator
from typing import Final

from tubemq_spark.client.producer.runs import Run

SERVER_ERRORS: Final = 6
"""A broker that fails inside may have stored the message: so many copies at most."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_FIRST_SERVER_ERROR_PAUSE_S: Final = 0.5
_LONGEST_SERVER_ERROR_PAUSE_S: Final = 8.0


@dataclasses.dataclass(order=True, slots=True)
class _Retry:
    due: float
    ticket: int
    message: Run = dataclasses.field(compare=False)


class RetryQueue:
    """Runs of one message, by when they are due; those due at one time are in the order of waiting."""

    def __init__(self) -> None:
        self._waiting: list[_Retry] = []
        self._tickets = itertools.count()
        # Spreads many tasks that failed together; one number, so that pauses keep messages in order.
        self._spread = 1 - random.random() / 2  # noqa: S311 (keeps no secret)

    @property
    def next_due(self) -> float | None:
        """When the first of them is due; None when nothing waits."""
        return self._waiting[0].due if self._waiting else None

    def add(self, message: Run, due: float) -> None:
        """Let a message wait."""
        heapq.heappush(self._waiting, _Retry(due, next(self._tickets), message))

    def take_due(self, now: float) -> Iterator[Run]:
        """Take the messages whose pause is over; they may be added again meanwhile, for later."""
        while self._waiting and self._waiting[0].due <= now:
            yield heapq.heappop(self._waiting).message

    def take_late(self, now: float) -> list[Run]:
        """Take the messages whose time is over, in the order of their next attempts."""
        late = sorted(retry for retry in self._waiting if retry.message.give_up_at <= now)
        if late:
            self._waiting = [retry for retry in self._waiting if retry.message.give_up_at > now]
            heapq.heapify(self._waiting)
        return [retry.message for retry in late]

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()

    def pause_s(self, failures: int) -> float:
        """Return the pause before the next attempt: doubling, capped, other in each producer."""
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * (1 << min(failures, 16))) * self._spread

    def pause_after_server_error_s(self, server_errors: int) -> float:
        """Return the pause after a failure inside a broker: longer, for each attempt may store a copy."""
        pause_s = _FIRST_SERVER_ERROR_PAUSE_S * (1 << (server_errors - 1))
        return min(_LONGEST_SERVER_ERROR_PAUSE_S, pause_s) * self._spread
