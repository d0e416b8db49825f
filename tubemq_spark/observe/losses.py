"""The losses in a ledger, counted for Prometheus."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.files.folder_uri import EXPECTED, FolderUri, redacted
from tubemq_spark.offsets.ledger import SUFFIX, gaps, observations_of

logger = logging.getLogger(__name__)

_READ_SECONDS: Final = 30.0
"""The ledger is not read more often, however often Prometheus asks: it may be in an object store."""
_PATIENCE_SECONDS: Final = 2.0
"""So long who asks waits for a read that begins; one that takes longer goes on, and holds up no metrics."""


class Kind(NamedTuple):
    """What losses are counted by."""

    group: str
    """The consumer group of the query that passed over them."""
    topic: str
    reason: str


class Count(NamedTuple):
    """How many losses, and how many rows of those of which that is known."""

    losses: int
    rows: int


class LedgerLosses:
    """Counts what is in a ledger; both counts only grow, although gaps that touch become one."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        """Take the folder of ``lossLedger``."""
        place = FolderUri.parse(folder)
        if place is None:
            shown = redacted(folder)
            raise OptionError("TUBEMQ_OPTION_VALUE", option="loss_ledger", value=shown, expected=EXPECTED)
        self._place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._tried_at: float | None = None
        self._reading: threading.Thread | None = None
        self._failed = False
        self._counts: dict[Kind, Count] = {}
        self.read_at: float | None = None
        """When it was last read, in seconds since 1970; None before."""

    def counts(self) -> Mapping[Kind, Count]:
        """Return the losses as of a moment ago; if the ledger cannot be read, those that were read last."""
        if (reading := self._begin_to_read()) is not None:
            reading.join(_PATIENCE_SECONDS)
        with self._lock:
            return dict(self._counts)

    def _begin_to_read(self) -> threading.Thread | None:
        """Read in a thread if it is time; return the thread, or None if none has begun."""
        with self._lock:
            now = self._clock()
            if self._tried_at is not None and 0 <= now - self._tried_at < _READ_SECONDS:
                return None
            if self._reading is not None and self._reading.is_alive():
                return None
            self._tried_at = now
            self._reading = threading.Thread(
                target=self._take, args=(now,), name="tubemq-loss-ledger", daemon=True
            )
            self._reading.start()
            return self._reading

    def _take(self, now: float) -> None:
        try:
            seen = self._read()
        except TubeMQError as error:
            logger.log(logging.DEBUG if self._failed else logging.WARNING, "%s", error)
            self._failed = True
            return
        self._failed = False
        with self._lock:
            self.read_at = now
            for kind, count in seen.items():
                before = self._counts.get(kind, Count(0, 0))
                self._counts[kind] = Count(max(before.losses, count.losses), max(before.rows, count.rows))

    def _read(self) -> Mapping[Kind, Count]:
        # Arrow's file systems take a while to load.
        from tubemq_spark.files.text_files import TextFiles

        # All of it first: threads that read go on until the last file is taken.
        files = list(TextFiles(self._place, "lossLedger", SUFFIX).read())
        observations = [
            observation
            for name, text in files
            for observation in observations_of(text, f"{self._place}/{name}")
        ]
        seen: dict[Kind, Count] = {}
        for gap in gaps(observations):
            kind = Kind(gap.origin.consumer_group, gap.loss.partition.topic, gap.loss.loss.value)
            losses, rows = seen.get(kind, Count(0, 0))
            seen[kind] = Count(losses + 1, rows + (gap.loss.rows or 0))
        return seen
