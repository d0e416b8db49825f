"""Damaged records of a store: each is counted and logged once, however often it is read."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

logger = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 10_000
"""Offsets that are remembered; damaged records beyond that are neither counted nor logged."""


class DamagedRecords:
    """The offsets of the damaged records of one store; safe to use from any thread."""

    def __init__(self, store: str) -> None:
        """Take the name that the log gives the store."""
        self._store = store
        self._lock = threading.Lock()
        self._offsets: set[int] = set()

    def report(self, offsets: Sequence[int]) -> int:
        """Log those of some damaged records that are new; return how many that were."""
        with self._lock:
            new = [offset for offset in offsets if offset not in self._offsets]
            new = new[: max(0, _MAX_REMEMBERED - len(self._offsets))]
            self._offsets.update(new)
            total = len(self._offsets)
        if new:
            logger.error(
                "Store %s: %d damaged records from offset %d to %d are not delivered; %d have been found "
                "since the start. Check the disk, or restore the directory from a backup",
                self._store,
                len(new),
                new[0],
                new[-1],
                total,
            )
        return len(new)
