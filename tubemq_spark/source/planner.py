"""The driver's view of a cluster: layout and bounds, asked seldom and asked again when a broker is away.

Spark asks an idle stream for its end some 65 times a second, and an exception in any of its questions
ends the query: so answers are kept for a moment, and failures that may pass are tried again here.
"""

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from tubemq_spark.client.range_reader import RangeRequest
from tubemq_spark.cluster.base import Cluster, TopicsLayout
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreId
from tubemq_spark.offsets.loss import Loss, LossPolicy
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.partition import OffsetRangePartition

logger = logging.getLogger(__name__)

_LAYOUT_SECONDS: Final = 10.0
"""How old a layout may be: a new partition is seen that much later."""
_BOUNDS_SECONDS: Final = 0.25
"""How old bounds may be: an idle stream asks its brokers four times a second at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What the cluster held at one moment."""

    layout: TopicsLayout
    bounds: Mapping[StoreId, OffsetBounds]
    layout_time: float
    """When the layout was asked, by the monotonic clock, in seconds."""
    bounds_time: float

    def latest(self) -> dict[StoreId, int]:
        """Return where every store ends, in index bytes."""
        return {store: bounds.latest for store, bounds in self.bounds.items()}


class Planner:
    """Answers a reader's questions about its topics; lives in the driver, is never pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster: Cluster = open_cluster(options.client)
        self.last: Snapshot | None = None
        """What was seen last, however old."""

    def look(self, *, fresh: bool = False) -> Snapshot:
        """Return layout and bounds, at most a quarter of a second old, or asked now.

        Raises:
            TubeMQError: the cluster refused, never answered, or stayed away for ``fetchOffset.numRetries``
                tries.
        """
        now = time.monotonic()
        if fresh or self.last is None or now - self.last.bounds_time > _BOUNDS_SECONDS:
            self.last = self._look_until_answered(fresh=fresh)
        return self.last

    def partitions(self, ranges: Iterable[OffsetRange], on_loss: LossPolicy) -> list[OffsetRangePartition]:
        """Return one task a range, with the address of its broker.

        Raises:
            DataLossError: a partition of a planned range does not exist any more, by the policy.
        """
        tasks = []
        snapshot = self.look()
        sharing = collections.Counter(partition.store_id for partition in snapshot.layout.partitions)
        for range_ in ranges:
            endpoint = snapshot.layout.partitions.get(range_.partition)
            if endpoint is None:
                on_loss(Loss.PARTITION_REMOVED, range_.partition, range_.start, range_.end)
                continue
            request = RangeRequest(range_, endpoint, snapshot.layout.visit_token)
            own_store = sharing[range_.partition.store_id] == 1
            tasks.append(OffsetRangePartition(request, own_store=own_store))
        return tasks

    def _look_until_answered(self, *, fresh: bool) -> Snapshot:
        # A cluster that has never answered is more likely a wrong address than one that restarts: the
        # session's own tries must do, and the user hears of it soon.
        attempts = 1 if self.last is None else self._options.offset_fetch_attempts
        for _ in range(attempts - 1):
            try:
                return self._look(fresh=fresh)
            except TubeMQError as error:
                if not error.retriable:
                    raise
                logger.warning("asking for offsets failed and is tried again: %s", error)
            fresh = True
            threading.Event().wait(self._options.offset_fetch_retry_ms / 1000)
        return self._look(fresh=fresh)

    def _look(self, *, fresh: bool) -> Snapshot:
        now = time.monotonic()
        if fresh or self.last is None or now - self.last.layout_time > _LAYOUT_SECONDS:
            layout, layout_time = self._cluster.layout(self._options.topics), now
        else:
            layout, layout_time = self.last.layout, self.last.layout_time
        return Snapshot(layout, self._cluster.bounds(layout), layout_time, time.monotonic())
