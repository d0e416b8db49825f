"""The line of those who wait for batches of one consumer, wherever its engine is.

What comes is for none in particular. A coroutine that waits takes a batch, or an error, by itself, when there
is one for each that has waited longer, and for it. So it may stop waiting at any time, and nothing is lost.
"""

import abc
import asyncio
import collections
import contextlib
import itertools
from collections.abc import Callable

from tubemq_spark.client.consumer.cache import PATIENCE_S
from tubemq_spark.client.consumer.life import ConsumerLife
from tubemq_spark.client.consumer.values import Batch


class WaitingLine(abc.ABC):
    """Those who wait, and the errors that a fetch is to raise; what is fetched for them is a subclass's."""

    def __init__(self, state: ConsumerLife) -> None:
        self._changes = state.changes
        self._check_fetch = state.check_fetch
        self._numbers = itertools.count(1)
        self._waiting: dict[int, None] = {}
        """Those who wait, by numbers, in the order in which they came."""
        self._ended = 0
        """How many fetches have ended."""
        self._errors: collections.deque[BaseException] = collections.deque()
        """Of fetches and callbacks; each is raised once."""
        state.tell = self.tell

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def fetch(self, timeout_s: float | None, *, patient: bool) -> Batch | None:
        """Wait for a batch and hand it out; None: there was none in time.

        ``patient``: that takes ``PATIENCE_S`` longer at most, while a partition is asked that was not before.
        """
        began, ended, number = asyncio.get_running_loop().time(), self._ended, next(self._numbers)
        self._waiting[number] = None
        try:
            while True:
                self._begin_fetches()
                await self._until(lambda: self._is_over(number), began, timeout_s)
                if patient and timeout_s is not None:
                    await self._until(
                        lambda: self._is_over(number) or not self._comes_soon(ended),
                        began,
                        self._longest_s(timeout_s),
                    )
                if not self._is_served(number):
                    return None
                if self._errors:
                    raise self._errors.popleft()
                if (batch := self._hand_out()) is not None:
                    return batch
        finally:
            self._waiting.pop(number, None)
            if self._outcomes:
                self._changes.note()  # another one may take it

    def release(self) -> None:
        """End the wait of all for whom there is nothing."""
        for number in list(self._waiting)[self._outcomes :]:
            del self._waiting[number]
        self._changes.note()

    def tell(self, error: BaseException) -> None:
        """Make a fetch raise an error."""
        self._errors.append(error)
        self._changes.note()

    async def _until(self, holds: Callable[[], bool], began: float, seconds: float | None) -> None:
        """Return when something holds, or so long after the beginning."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if seconds is None else began + seconds):
                await self._changes.until(holds)

    def _is_over(self, number: int) -> bool:
        return self._is_served(number) or number not in self._waiting

    def _is_served(self, number: int) -> bool:
        """Whether there is something for each that has waited longer, and for this one."""
        self._check_fetch()
        return number in itertools.islice(self._waiting, self._outcomes)

    @property
    @abc.abstractmethod
    def _outcomes(self) -> int:
        """How many batches and errors wait to be taken."""

    @abc.abstractmethod
    def _begin_fetches(self) -> None:
        """Begin what is missing for those who wait."""

    def _longest_s(self, timeout_s: float) -> float:
        """Return for how long one that is patient waits at most."""
        return timeout_s + PATIENCE_S

    @abc.abstractmethod
    def _comes_soon(self, ended: int) -> bool:
        """Whether a fetch may soon bring something to one that came when so many had ended.

        Not any more when each partition had one since then.
        """

    @abc.abstractmethod
    def _hand_out(self) -> Batch | None:
        """Return the batch that comes next, which its user has to confirm; None: it must come again."""
