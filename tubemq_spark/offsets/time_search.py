"""Where a partition's records of some time begin, found by looking into it: TubeMQ has no index of times.

A message may carry the minute in which its producer says it was made, and later messages of a producer carry
later minutes. So the place is found by bisection, each look being one fetch. The answer is as good as the
producers' clocks and exact to a minute; messages out of order by more shift it.
"""

from collections.abc import Callable
from typing import NamedTuple

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds


class Look(NamedTuple):
    """What the first records from an offset on say; without any there is none up to the end of the log."""

    end: int
    """Behind the last of these records, in index bytes."""
    earlier: bool
    """Whether the first of them is earlier than wanted."""
    later: bool
    """Whether one of them is of the wanted time or later."""
    first_later: int | None = None
    """Where the first of these is, if that is known."""


def first_at(bounds: OffsetBounds, look: Callable[[int], Look]) -> int | None:
    """Return the offset from which on records are of the wanted time or later, as far as they are in order.

    Args:
        bounds: what the store holds.
        look: looks at the first records from an offset on.

    Returns:
        None when all records are earlier.
    """
    # All records before ``low`` are earlier; none between ``high`` and what was found later is earlier.
    low, high = bounds
    some_later, span = False, 0
    while low < high:
        # What one look shows of whole need not be divided.
        begin = low if high - low <= span else _between(low, high)
        records = look(begin)
        some_later |= records.later
        if not records.earlier:
            high = begin
        elif not records.later:
            low = records.end
        elif records.first_later is not None:
            return records.first_later
        else:
            low, high = begin + INDEX_ENTRY_BYTES, min(high, records.end)
        # Where places are not known, looking from ``low`` on would find them one by one.
        span = records.end - begin if records.first_later is not None or not records.later else 0
    return high if some_later else None


def _between(low: int, high: int) -> int:
    return low + (high - low) // INDEX_ENTRY_BYTES // 2 * INDEX_ENTRY_BYTES
