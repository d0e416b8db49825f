"""How long reading may make no progress, and what its user sees of that.

A reader that is stopped (by a broker that is away or frozen, a refusal, nothing to read) tries again until
``fetch_timeout_ms`` have passed without progress. The user sees one warning once that has lasted for a few
seconds, and another one when reading resumes.
"""

import logging
from typing import Final

from tubemq_spark.errors import TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import OffsetRange
from tubemq_spark.net.deadline import Clock, Deadline, monotonic
from tubemq_spark.net.retry import Backoff

logger = logging.getLogger(__name__)

_WARN_AFTER_S: Final = 3.0
"""A connection that is lost and made again, or a lease that is lost and made again, needs no warning."""


class Patience:
    """The pauses while reading one range."""

    def __init__(self, reading: OffsetRange, timeout_ms: int, clock: Clock = monotonic) -> None:
        """Create the pauses, and start the clock.

        Args:
            reading: what is read.
            timeout_ms: how long reading may make no progress.
            clock: returns the time.
        """
        self._range = reading
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._backoff = Backoff()
        self._warned = False
        self.restart()

    def restart(self) -> None:
        """Start the clock again: the broker is not to blame for the time until now.

        This is done for every fetch, so what only pauses need is made by them.
        """
        self.pauses = 0
        """How often the reader has waited since the last progress."""
        self._since = self._clock()

    def progress(self) -> None:
        """Note that something was read."""
        if self._warned:
            seconds = self._clock() - self._since
            logger.warning("reading %s resumed after %.0f s", self._range.partition, seconds)
            self._warned = False
        self.restart()

    def next_pause_s(self, trouble: TubeMQError | str, position: int, at_least_s: float = 0.0) -> float:
        """Return how long to wait before the next attempt, in seconds: a little longer each time.

        Args:
            trouble: why it has to wait.
            position: where it stands.
            at_least_s: how much longer the other side wants it to wait, in seconds.

        Raises:
            TubeMQTimeoutError: ``TUBEMQ_NO_PROGRESS``: there was none for too long.
        """
        self._warn(trouble, position)
        if self.pauses == 0:
            self._backoff.reset()
        pause_s = self._backoff.next_s(self._deadline)
        if pause_s is None:
            raise self._no_progress(trouble, position) from (
                trouble if isinstance(trouble, TubeMQError) else None
            )
        self.pauses += 1
        return min(pause_s + at_least_s, self._deadline.remaining())

    @property
    def _deadline(self) -> Deadline:
        return Deadline(self._since + self._timeout_ms / 1000, self._clock)

    def _warn(self, trouble: TubeMQError | str, position: int) -> None:
        if self._warned or self._clock() - self._since < _WARN_AFTER_S:
            logger.debug("reading %s waits at offset %d: %s", self._range.partition, position, trouble)
            return
        self._warned = True
        logger.warning(
            "reading %s has stopped at offset %d; retrying for up to %.0f s (tubemq.fetchTimeoutMs): %s",
            self._range.partition,
            position,
            self._deadline.remaining(),
            trouble,
        )

    def _no_progress(self, trouble: TubeMQError | str, position: int) -> TubeMQTimeoutError:
        return TubeMQTimeoutError(
            "TUBEMQ_NO_PROGRESS",
            partition=self._range.partition,
            position=position,
            end=self._range.end,
            timeout_ms=self._timeout_ms,
            trouble=trouble,
        )
