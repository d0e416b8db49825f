"""Where a store begins and ends."""

import dataclasses

from tubemq_spark.embedded.log.records import INDEX_ENTRY


@dataclasses.dataclass(frozen=True, slots=True)
class LogBounds:
    """Offsets in index bytes; ``data_earliest`` and ``data_latest`` are bytes of the data log."""

    earliest: int
    latest: int
    flushed: int
    """``latest`` as far as it is on the disk."""
    data_earliest: int
    data_latest: int

    def clamp(self, offset: int) -> int:
        """Return the nearest offset within the bounds, rounded down to a whole index entry."""
        inside = min(max(offset, self.earliest), self.latest)
        return inside - inside % INDEX_ENTRY.size
