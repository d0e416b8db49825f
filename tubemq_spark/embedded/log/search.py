"""Finding an entry in a store's index. Positions and times rise along it, so a binary search does."""

from collections.abc import Callable

from tubemq_spark.embedded.log.records import INDEX_ENTRY, RECORD_HEADER
from tubemq_spark.embedded.log.segments import SegmentedLog

IndexEntry = tuple[int, ...]
"""The fields of ``records.INDEX_ENTRY``."""


def first_readable(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the offset of the first entry whose record has not expired."""
    return _first_not(index, index.start, lambda entry: entry[1] < data.start)


def first_since(index: SegmentedLog, start: int, time_ms: int) -> int:
    """Return the offset of the first entry from ``start`` on that was stored at a time or later."""
    return _first_not(index, start, lambda entry: entry[4] < time_ms)


def newest_message_id(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the id of the last message, 0 when there is none.

    Ids continue from there, so that they rise after a restart whatever the clock does.
    """
    raw = index.read(index.end - INDEX_ENTRY.size, INDEX_ENTRY.size)
    if not raw:
        return 0
    _, position, *_ = INDEX_ENTRY.unpack(raw)
    header = data.read(position, RECORD_HEADER.size)
    return int(RECORD_HEADER.unpack(header)[8]) if len(header) == RECORD_HEADER.size else 0


def _first_not(index: SegmentedLog, start: int, is_before: Callable[[IndexEntry], bool]) -> int:
    """Return the offset of the first entry from ``start`` on for which ``is_before`` is false."""
    low, high = start // INDEX_ENTRY.size, index.end // INDEX_ENTRY.size
    while low < high:
        middle = (low + high) // 2
        entry = INDEX_ENTRY.unpack(index.read(middle * INDEX_ENTRY.size, INDEX_ENTRY.size))
        if is_before(entry):
            low = middle + 1
        else:
            high = middle
    return low * INDEX_ENTRY.size
