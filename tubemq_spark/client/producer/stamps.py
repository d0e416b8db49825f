"""The time of sending, as messages carry it."""

import time
import zoneinfo
from collections.abc import Callable

from tubemq_spark.offsets.message_time import text_of


class MinuteClock:
    """Tells the minute that it is in one zone; threads may share it."""

    def __init__(self, zone: str, now: Callable[[], float] = time.time) -> None:
        self._zone = zoneinfo.ZoneInfo(zone)
        self._now = now
        self._last = (0, text_of(0, self._zone))

    def text(self) -> str:
        """Return the minute as TubeMQ writes it; it is made once a minute."""
        minute = int(self._now()) // 60
        last, text = self._last
        if minute != last:
            text = text_of(minute, self._zone)
            self._last = minute, text
        return text
