"""Which brokers may be asked for messages now; a state machine without lock, thread or network.

========  ====================================================================================================
state     meaning
========  ====================================================================================================
sound     any number of its partitions may be asked at once
silent    sound, but what was asked first has no answer for ``PATIENCE_S``: nothing else is asked before one
          comes, so a broker that stands still takes one turn from those that wait and not one per partition
away      it did not answer, or could not be reached: all of its partitions rest together. After a pause,
          which doubles with each failure in a row, one partition is tried. Any answer makes it sound
========  ====================================================================================================

A request counts as a failure only if it began after the last one: several that were under way together are
one failure.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Final

from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.retry import BROKER_AWAY

PATIENCE_S: Final = 0.2
"""A sound broker answers within a few milliseconds, whether it has messages or not."""


@dataclasses.dataclass(slots=True)
class _Broker:
    """One broker."""

    under_way: dict[int, float] = dataclasses.field(default_factory=dict)
    """When the requests without an answer began, by the number of their booking."""
    failures: int = 0
    failed_at: float = float("-inf")
    until: float = 0.0
    """When the pause ends, after a failure."""


class Brokers:
    """The brokers of one consumer, by their numbers."""

    def __init__(self, clock: Clock = monotonic, random: Callable[[], float] = random.random) -> None:
        """Take ``random`` as a function to [0, 1): it shortens pauses by up to a half."""
        self._clock = clock
        self._random = random
        self._brokers: dict[int, _Broker] = {}

    def may_be_asked(self, broker_id: int) -> bool:
        """Whether one more partition of a broker may be fetched."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            return True
        now = self._clock()
        if broker.failures:
            return not broker.under_way and now >= broker.until
        return all(began + PATIENCE_S > now for began in broker.under_way.values())

    def is_away(self, broker_id: int) -> bool:
        """Whether a broker failed last."""
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.failures > 0

    def ask(self, broker_id: int, number: int) -> None:
        """Note that a request begins."""
        self._brokers.setdefault(broker_id, _Broker()).under_way[number] = self._clock()

    def end(self, broker_id: int, number: int) -> None:
        """Note that a request has ended, if that is not known; it says nothing about the broker."""
        if (broker := self._brokers.get(broker_id)) is not None:
            broker.under_way.pop(number, None)

    def answer(self, broker_id: int) -> None:
        """Note that a broker answers."""
        if (broker := self._brokers.get(broker_id)) is not None:
            broker.failures = 0

    def fail(self, broker_id: int, number: int) -> None:
        """Note that a request has failed."""
        broker = self._brokers.setdefault(broker_id, _Broker())
        now = self._clock()
        if broker.under_way.pop(number, now) < broker.failed_at:
            return
        broker.failures += 1
        broker.failed_at = now
        pause_ms = BROKER_AWAY.after_ms(broker.failures) * (1 - self._random() / 2)
        broker.until = now + pause_ms / 1000

    def next_attempt(self) -> float | None:
        """Return the next moment of the clock at which a pause ends."""
        now = self._clock()
        moments = [one.until for one in self._brokers.values() if one.failures and one.until > now]
        return min(moments, default=None)
