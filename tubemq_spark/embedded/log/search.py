"""Finding an entry in a store's index. Positions rise along it, so a binary search does."""

from tubemq_spark.embedded.log.records import INDEX_ENTRY, RECORD_HEADER
from tubemq_spark.embedded.log.segments import SegmentedLog


def first_readable(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the offset of the first entry whose record has not expired."""
    low, high = index.start // INDEX_ENTRY.size, index.end // INDEX_ENTRY.size
    while low < high:
        middle = (low + high) // 2
        _, position, *_ = INDEX_ENTRY.unpack(index.read(middle * INDEX_ENTRY.size, INDEX_ENTRY.size))
        if position < data.start:
            low = middle + 1
        else:
            high = middle
    return low * INDEX_ENTRY.size


def newest_message_id(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the id of the last message, 0 when there is none.

    Ids continue from there, so that they rise after a restart even if the clock was set back.
    """
    raw = index.read(index.end - INDEX_ENTRY.size, INDEX_ENTRY.size)
    if not raw:
        return 0
    _, position, *_ = INDEX_ENTRY.unpack(raw)
    header = data.read(position, RECORD_HEADER.size)
    return int(RECORD_HEADER.unpack(header)[8]) if len(header) == RECORD_HEADER.size else 0
