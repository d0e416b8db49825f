"""How large the next rows of stores are: what ``maxBytesPerTrigger`` is reckoned with.

Brokers say where a store begins and ends in its index, which has entries of one size, and not how much data
lies behind. So the driver reads the first messages of what a query has not read yet, and takes the mean of
their sizes: a *sample*.

A sample holds for a store until one of these, so that sampling costs a small part of what the tasks read:

- the query has passed the sampled entries ``_HOLDS_TIMES`` times over, or went back behind them;
- the sample is ``_HOLDS_SECONDS`` old: producers may have begun to send other messages.

Where a broker does not answer there is no new sample; the last one counts instead, if there is one. Otherwise
the size is not known, and a stream leaves the store where it is, as it does with stores whose ends are not
known. Brokers are asked beside the trigger (``background``), in one question at a time for all stores that
need a sample.
"""

import collections
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import peek
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.source.background import BackgroundQuestions

logger = logging.getLogger(__name__)

_MOST_ENTRIES: Final = 10_000
"""The most index entries of a sample. A fetch that is not filtered ends earlier, after about 512 KiB."""
_ENOUGH_ROWS: Final = 100
_ENOUGH_BYTES: Final = 262_144
"""A sample with so many rows, or so many bytes, needs no further fetch."""
_HOLDS_TIMES: Final = 4
_HOLDS_SECONDS: Final = 10.0
_PATIENCE_MS: Final = 2_000
"""How long a store's sample may take."""
_ASSUMED_BYTES: Final = 1_024
"""The size of rows where none was seen: what was looked at is gone, or of message types that are not read."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """What was seen of one store."""

    start: int
    next: int
    """Offsets of the index entries that were looked at, in index bytes: ``start <= x < next``."""
    row_bytes: int
    at: float

    def holds_at(self, offset: int, now: float) -> bool:
        """Tell whether it still counts for rows from an offset on."""
        passed, sampled = offset - self.start, self.next - self.start
        return 0 <= passed <= _HOLDS_TIMES * sampled and now - self.at < _HOLDS_SECONDS


class RowSizes:
    """The sizes of one query's rows; for use by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._samples: dict[StoreId, _Sample] = {}
        self._questions: BackgroundQuestions[dict[StoreId, _Sample]] = BackgroundQuestions("tubemq-row-sizes")

    def of(
        self, layout: TopicsLayout, unread: Mapping[StoreId, OffsetBounds], *, assume: bool
    ) -> dict[StoreId, int]:
        """Return how many bytes the next rows of stores have on average, at least 1; brokers are asked.

        Stores whose brokers never answered are left out, unless a size is to be assumed for them.
        """
        self._take_over()
        now = time.monotonic()
        outdated = {
            store: rest
            for store, rest in unread.items()
            if (last := self._samples.get(store)) is None or not last.holds_at(rest.earliest, now)
        }
        if outdated and not self._questions.under_way:
            self._questions.begin(functools.partial(self._sampled, layout, outdated, self._samples))
            self._take_over()
        sizes = {store: self._samples[store].row_bytes for store in unread if store in self._samples}
        return dict.fromkeys(unread, _ASSUMED_BYTES) | sizes if assume else sizes

    def _take_over(self) -> None:
        """Take the samples that have come."""
        ended = self._questions.ended()
        if ended is not None:
            self._samples = self._samples | ended.answer()

    def _sampled(
        self,
        layout: TopicsLayout,
        unread: Mapping[StoreId, OffsetBounds],
        known: Mapping[StoreId, _Sample],
    ) -> dict[StoreId, _Sample]:
        """Return samples of the stores that answer, all asked at once."""
        of_store: dict[StoreId, list[TopicPartition]] = collections.defaultdict(list)
        for partition in layout.partitions if unread else ():
            if partition.store_id in unread:
                of_store[partition.store_id].append(partition)
        samples, errors = answers_and_errors(
            lambda store: self._sample(layout, of_store[store], unread[store], known.get(store)),
            list(of_store),
        )
        for store, error in errors.items():
            logger.info("the size of the rows of %s is not known: %s", store, error)
        return samples

    def _sample(
        self,
        layout: TopicsLayout,
        partitions: list[TopicPartition],
        unread: OffsetBounds,
        last: _Sample | None,
    ) -> _Sample:
        """Look at the first partition of a store, or at the next ones if there is none of its rows."""
        deadline = Deadline.after_ms(_PATIENCE_MS, time.monotonic)
        end = min(unread.latest, unread.earliest + INDEX_ENTRY_BYTES * _MOST_ENTRIES)
        for partition in partitions:
            rows = row_bytes = 0
            reached = unread.earliest
            range_ = OffsetRange(partition, unread.earliest, end)
            with peek(self._cluster, layout, range_, round(deadline.remaining() * 1000)) as batches:
                for batch in batches:
                    rows += len(batch.columns)
                    row_bytes += batch.columns.nbytes
                    reached = batch.next
                    if rows >= _ENOUGH_ROWS or row_bytes >= _ENOUGH_BYTES:
                        break
            if rows:
                mean = max(1, math.ceil(row_bytes / rows))
                return _Sample(unread.earliest, reached, mean, time.monotonic())
        row_bytes = _ASSUMED_BYTES if last is None else last.row_bytes
        return _Sample(unread.earliest, end, row_bytes, time.monotonic())
