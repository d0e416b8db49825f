"""Times, as arguments and lines of input name them."""

import zoneinfo
from typing import Final

from tubemq_spark.offsets.message_time import MOMENT, is_repeated, minutes_of, moment_ms, text_of

MESSAGE_TIME: Final = (
    f"{MOMENT}, milliseconds since 1970 such as 1769860800000, or the text that is stored, 202601311200"
)
"""What a message's time may be, for help and errors."""
_STORED_DIGITS: Final = 12
_MILLISECONDS_DIGITS: Final = 13


def stored_time(text: str, zone: zoneinfo.ZoneInfo) -> str:
    """Return a message's time as TubeMQ stores it: as the clocks of a zone show it, to the minute.

    Raises:
        ValueError: the text is no time, or the second of two minutes that these clocks show alike.
    """
    digits = len(text) if text.isascii() and text.isdigit() else 0
    if digits == _STORED_DIGITS and minutes_of(text, zone) is not None:
        return text
    try:
        # A number that is shorter is no time of today in milliseconds, but a slip: seconds, or another form.
        minute = (int(text) if digits == _MILLISECONDS_DIGITS else moment_ms(text)) // 60_000
        stored = text_of(minute, zone)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: {MESSAGE_TIME}") from None
    if is_repeated(minute, stored, zone):
        raise ValueError(
            f"{text!r} is {stored} in {zone.key}, which sets its clocks back then, and would be read as an "
            "earlier time (UTC has no such times)"
        )
    return stored
