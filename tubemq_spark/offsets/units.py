"""What an offset counts.

An offset of TubeMQ is a byte position in the index of a store, and the index has one entry of a fixed size
per message (``DataStoreUtils.STORE_INDEX_HEAD_LEN``). An offset names the *next* message to read, and ranges
are half open: a range ``[28, 84)`` contains the store's second and third message.
"""

from typing import Final

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import INDEX_ENTRY_BYTES

__all__ = ["INDEX_ENTRY_BYTES", "MAX_OFFSET", "is_aligned", "require_aligned", "rows_between"]

MAX_OFFSET: Final = (2**63 - 1) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
"""The highest offset there can be: TubeMQ keeps offsets in a signed 64-bit integer."""


def rows_between(start: int, end: int) -> int:
    """Return how many messages a *store* holds between two offsets; 0 if ``end`` is not after ``start``.

    All partitions of a store together hold that many; the share of one partition is unknown.
    """
    return max(0, end - start) // INDEX_ENTRY_BYTES


def is_aligned(offset: int) -> bool:
    """Tell whether a number can be an offset: 0 to ``MAX_OFFSET``, at the boundary of an index entry."""
    return 0 <= offset <= MAX_OFFSET and offset % INDEX_ENTRY_BYTES == 0


def require_aligned(offset: int, what: object = "the position") -> int:
    """Return a number that can be an offset, and refuse any other."""
    if not is_aligned(offset):
        raise OffsetFormatError(
            "TUBEMQ_OFFSET_UNALIGNED",
            offset=offset,
            what=what,
            unit=INDEX_ENTRY_BYTES,
            nearest=nearest_to(offset),
        )
    return offset


def nearest_to(number: int) -> str:
    """Return which offsets are nearest to a number that is none: ``the nearest are 28 and 56``."""
    below = min(max(0, number), MAX_OFFSET) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
    if below < number < MAX_OFFSET:
        return f"the nearest are {below} and {below + INDEX_ENTRY_BYTES}"
    return f"the nearest is {below}"
