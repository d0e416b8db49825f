"""Message times: the minute in which a producer says that a message was made, as text without a time zone.

The text does not say which of two times is meant where the clocks of its zone show an hour twice, and means
none where they skip one. Everything that turns texts into times, or times into texts, goes through here, so
that each caller decides what such a text is to it.
"""

import datetime
import zoneinfo
from typing import Final, NamedTuple

MOMENT: Final = "2026-01-31T12:00 or 2026-01-31T12:00+08:00"
"""What a moment may be, for help and errors."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DIGITS: Final = len("yyyyMMddHHmm")
_MINUTE: Final = datetime.timedelta(minutes=1)


def moment_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601, which is UTC unless it names another zone."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


class Minutes(NamedTuple):
    """The minutes since 1970, in UTC, that a text may mean: the same one twice where it means one."""

    first: int
    last: int

    @property
    def certain(self) -> bool:
        """Whether the text means one time."""
        return self.first == self.last


def minutes_of(text: str | None, zone: zoneinfo.ZoneInfo) -> Minutes | None:
    """Return what a message's time means; None where it has none, or something that is no time."""
    if text is None or len(text) != _DIGITS or not (text.isascii() and text.isdigit()):
        return None
    try:
        moment = datetime.datetime(
            int(text[:4]), int(text[4:6]), int(text[6:8]), int(text[8:10]), int(text[10:]), tzinfo=zone
        )
    except ValueError:  # such as the 30th of February
        return None
    # Python's clock shows a time twice, fold=0 and fold=1, and where it skips one both differ as well.
    either = ((moment - _EPOCH) // _MINUTE, (moment.replace(fold=1) - _EPOCH) // _MINUTE)
    return Minutes(min(either), max(either))


def text_of(minute: int, zone: zoneinfo.ZoneInfo) -> str:
    """Return a minute since 1970, in UTC, as a message carries it; ``minutes_of`` tells how it is read.

    It raises where the text has no room for the year.
    """
    moment = datetime.datetime.fromtimestamp(minute * 60, zone)
    # Not strftime("%Y"): it writes the year 800 with three digits on some systems.
    return f"{moment.year:04d}{moment:%m%d%H%M}"


def is_repeated(minute: int, text: str, zone: zoneinfo.ZoneInfo) -> bool:
    """Tell whether readers take the text of a minute for an earlier one: where an hour comes twice."""
    read = minutes_of(text, zone)
    return read is not None and not read.certain and read.first != minute
