"""What a consumer may see of a store, and how fast it should ask, by its query priority (MessageStore)."""

import dataclasses
from typing import Final

from tubemq_spark.embedded.log.bounds import LogBounds
from tubemq_spark.embedded.log.records import INDEX_ENTRY

_FLUSHED_ONLY: Final = 1
"""At this level and below, a consumer sees only what is flushed to the disk."""

_USUAL_ENTRIES: Final = 1000
_LEAST_ENTRIES, _MOST_ENTRIES = 8000, 13_500
_FILTERED_FACTOR: Final = 3
_SLOW_FACTOR: Final = 10
_FAR_BEHIND_BYTES: Final = 14 << 30
"""With this much left to read (twice defaultDeduceReadSize), a read returns at most half as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One consumer's view of a store."""

    level: int
    """1: what is flushed to the disk; 2 and 3: everything. TubeMQ's levels 2 and 3 differ in what they show
    of the messages in memory; here there are none."""
    filtered: bool

    @classmethod
    def of(cls, priority: int, *, filtered: bool) -> "View":
        """Return the view of a priority such as 301: hundreds without a filter, units with a filter."""
        return cls(priority % 100 if filtered else priority // 100, filtered)

    @property
    def files_only(self) -> bool:
        """Whether it shows only what is flushed to the disk."""
        return self.level <= _FLUSHED_ONLY

    def end(self, bounds: LogBounds) -> int:
        """Return the offset where what the consumer may see ends."""
        return bounds.flushed if self.files_only else bounds.latest

    def slow(self, bounds: LogBounds, start: int, end: int, partitions: int) -> bool:
        """Whether a consumer that read from one offset to another should fetch less often.

        That is so for a consumer with a filter that reads from files, near the end of what is flushed.
        """
        if not self.filtered or end == start or (self.level > _FLUSHED_ONLY and start >= bounds.flushed):
            return False
        entries = min(max(_USUAL_ENTRIES * partitions, _LEAST_ENTRIES), _MOST_ENTRIES)
        return bounds.flushed - end < entries * _FILTERED_FACTOR * _SLOW_FACTOR * INDEX_ENTRY.size


def read_bytes(allowed: int, data_end: int, bounds: LogBounds, transfer_bytes: int) -> int:
    """Return how many bytes one read may return: less than allowed if the consumer is far behind.

    ``data_end`` is where its last read ended in the data log.
    """
    if bounds.data_latest - data_end >= _FAR_BEHIND_BYTES:
        return min(allowed, transfer_bytes // 2)
    return allowed
