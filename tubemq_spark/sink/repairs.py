"""What other producers wrote in a way that we may read but not write, and how it is written again.

A topic that is mirrored may hold messages of any producer. Our source hands them over as they are, and
nothing about them is the user's fault, so they must not end the query. What changes is logged once per task.
"""

import collections
import logging
from collections.abc import Iterable
from typing import Final

from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY
from tubemq_spark.protocol.payload import RESERVED_NAMES, is_message_time

logger = logging.getLogger(__name__)

_MINUTE_DIGITS: Final = 12


class Repairs:
    """Mends the rows of one task, and counts."""

    def __init__(self, *, mend: bool = True) -> None:
        """Begin with nothing; without ``mend`` rows stay as they are, whether they can be written or not."""
        self._mend = mend
        self._counts: collections.Counter[str] = collections.Counter()

    def attributes(
        self, pairs: Iterable[tuple[str, str | None]], rows: int
    ) -> tuple[dict[str, str] | None, str | None, str | None]:
        """Return the attributes of some rows without TubeMQ's own, and of these the message's type and time.

        Attributes without a name or a value, and those that hold a reserved name, are left out: TubeMQ's
        clients do not find them, or find something else.
        """
        kept = dict(pairs)
        message_type = kept.pop(MSG_TYPE_KEY, None)
        message_time = kept.pop(MSG_TIME_KEY, None)
        if not self._mend:
            return {name: value or "" for name, value in kept.items()} or None, message_type, message_time
        unfit = [name for name, value in kept.items() if _is_unfit(name, value)]
        for name in unfit:
            del kept[name]
            self._counts["attributes that are blank or hold a reserved name were left out"] += rows
        own = {name: value for name, value in kept.items() if value is not None}
        return (
            own or None,
            message_type,
            None if message_time is None else self._message_time(message_time, rows),
        )

    def message_type(self, text: str | None, rows: int) -> str | None:
        """Return the type of some rows without the blanks around it, which TubeMQ's clients cut off, too."""
        if text is None or not self._mend or (text and text == text.strip()):
            return text
        self._counts["blanks around a message type were removed"] += rows
        return text.strip() or None

    def _message_time(self, text: str, rows: int) -> str | None:
        """Return a time in minutes: some producers add seconds; None when it is not a time."""
        if is_message_time(text):
            return text
        minute = text.strip()[:_MINUTE_DIGITS]
        if is_message_time(minute) and text.strip().isdigit():
            self._counts["a message time was cut to the minute"] += rows
            return minute
        self._counts["a message time that is not a time was left out"] += rows
        return None

    def tell(self, task: str) -> None:
        """Log what was changed."""
        for what, count in self._counts.items():
            logger.warning("%s: %s, in %d rows", task, what, count)


def _is_unfit(name: str, value: str | None) -> bool:
    if not name or name.isspace() or value is None or not value or value.isspace():
        return True
    return any(reserved in part for part in (name, value) for reserved in RESERVED_NAMES if "$" in part)
