"""What a producer tells the log: what delays its messages, without saying it over and over.

An *outage* is something that is away for a while (a broker, a topic's partitions, the masters): one warning
when it begins, one when it is over. An *event* (a refusal, an answer that did not come) is told at once,
then at most each ``_QUIET_S`` with the number of those in between.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.net.deadline import monotonic

logger = logging.getLogger(__name__)

_QUIET_S: Final = 30.0


@dataclasses.dataclass(slots=True)
class _Outage:
    began: float
    is_logged: bool
    waiting: int = 0


@dataclasses.dataclass(slots=True)
class _Events:
    told_at: float
    untold: int = 0


class SendLog:
    """The log of one producer, whose name stands in each line; threads may share it."""

    def __init__(self, sender: str, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.begin(sender)

    def begin(self, sender: str) -> None:
        """Reset the log, under another name."""
        self.sender = sender
        self._began = self._clock()
        self.outages = 0
        self.outage_s = 0.0
        """How long those took that are over."""
        self._now: dict[str, _Outage] = {}
        self._told_at: dict[str, float] = {}
        self._events: dict[str, _Events] = {}

    @property
    def elapsed_s(self) -> float:
        """How long ago it began, in seconds."""
        return self._clock() - self._began

    def away(self, what: str, cause: str, waiting: int) -> None:
        """Tell that something is away, and that so many more messages wait for it."""
        with self._lock:
            outage = self._now.get(what)
            if outage is None:
                now = self._clock()
                is_logged = now - self._told_at.get(what, -_QUIET_S) >= _QUIET_S
                outage = self._now[what] = _Outage(now, is_logged)
                self.outages += 1
                if is_logged:
                    self._told_at[what] = now
                    logger.warning("%s: %s is away: %s", self.sender, what, cause)
            outage.waiting += waiting

    def back(self, what: str) -> None:
        """Tell that it is back; cheap when it was not away."""
        outage = self._now.pop(what, None) if self._now else None
        if outage is None:
            return
        took_s = self._clock() - outage.began
        with self._lock:
            self.outage_s += took_s
        if outage.is_logged:
            logger.warning(
                "%s: %s is back after %.1f s, %d messages waited", self.sender, what, took_s, outage.waiting
            )

    def event(self, kind: str, text: str) -> None:
        """Tell something that happened; equal kinds are told together."""
        now = self._clock()
        with self._lock:
            events = self._events.get(kind)
            if events is None or now - events.told_at >= _QUIET_S:
                more = f" (and {events.untold} more of this kind since the last such line)" if events else ""
                self._events[kind] = _Events(now)
                logger.warning("%s: %s%s", self.sender, text, more)
            else:
                events.untold += 1

    def summary(self, text: str) -> None:
        """Tell what the producer did, at its end."""
        outages = f"; {self.outages} outages, {self.outage_s:.1f} s" if self.outages else ""
        logger.info("%s: %s%s", self.sender, text, outages)
