"""The driver's view of a cluster: layout and bounds, asked seldom and asked again when a broker is away.

Spark asks an idle stream for its end some 65 times a second, and an exception in any of its questions
ends the query: so answers are kept for a moment, and failures that may pass are tried again here.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from tubemq_spark.client.range_reader import RangeRequest
from tubemq_spark.cluster.base import Cluster, TopicsLayout
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreId
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.loss import Loss, LossPolicy
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.partition import OffsetRangePartition

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_LAYOUT_SECONDS: Final = 10.0
"""How old a layout may be: a new partition is seen that much later."""
_OLD_LAYOUT_SECONDS: Final = 600.0
"""How old a layout may get while no master answers: its visit token lives about a quarter of an hour."""
_BOUNDS_SECONDS: Final = 0.25
"""How old bounds may be: an idle stream asks its brokers four times a second at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What the cluster held at one moment."""

    layout: TopicsLayout
    bounds: Mapping[StoreId, OffsetBounds]
    bounds_time: float
    """When the bounds came, by the monotonic clock, in seconds."""

    def latest(self) -> dict[StoreId, int]:
        """Return where every store ends, in index bytes."""
        return {store: bounds.latest for store, bounds in self.bounds.items()}


class Planner:
    """Answers a reader's questions about its topics; lives in the driver, is never pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._patience_ms = (
            options.offset_fetch_attempts * options.offset_fetch_retry_ms + options.client.rpc_timeout_ms
        )
        self._cluster: Cluster = open_cluster(options.client)
        self._layout: TopicsLayout | None = None
        self._layout_time = 0.0
        self._ask_layout_at = 0.0
        self.last: Snapshot | None = None
        """What was seen last, however old."""

    def look(self, *, fresh: bool = False) -> Snapshot:
        """Return layout and bounds, at most a quarter of a second old, or asked now.

        Raises:
            TubeMQError: the cluster refused, no master ever answered, or somebody stayed away for
                ``fetchOffset.numRetries`` tries.
        """
        now = time.monotonic()
        if fresh or self.last is None or now - self.last.bounds_time > _BOUNDS_SECONDS:
            self.last = self._until_answered(self._look, fresh=fresh)
        return self.last

    def partitions(self, ranges: Iterable[OffsetRange], on_loss: LossPolicy) -> list[OffsetRangePartition]:
        """Return one task a range, with the address of its broker; the brokers are not asked.

        Raises:
            DataLossError: a partition of a planned range does not exist any more, by the policy.
            TubeMQError: as ``look``.
        """
        tasks = []
        layout = self._until_answered(self._recent_layout, fresh=False)
        sharing = collections.Counter(partition.store_id for partition in layout.partitions)
        for range_ in ranges:
            endpoint = layout.partitions.get(range_.partition)
            if endpoint is None:
                on_loss(Loss.PARTITION_REMOVED, range_.partition, range_.start, range_.end)
                continue
            request = RangeRequest(
                range_,
                endpoint,
                layout.visit_token,
                own_store=sharing[range_.partition.store_id] == 1,
                from_earliest=self._starts_the_log(range_),
            )
            tasks.append(OffsetRangePartition(request))
        return tasks

    def _starts_the_log(self, range_: OffsetRange) -> bool:
        held = None if self.last is None else self.last.bounds.get(range_.partition.store_id)
        return held is not None and range_.start <= held.earliest

    def _until_answered(self, ask: Callable[[bool], Answer], *, fresh: bool) -> Answer:
        attempt = 1
        # Tries and time-outs must not multiply.
        deadline = Deadline.after_ms(self._patience_ms)
        while True:
            try:
                return ask(fresh)
            except TubeMQError as error:
                # Masters that have never answered are more likely a wrong address than ones that restart:
                # the session's own tries must do, and the user hears of it soon.
                last = (
                    self._layout is None or attempt >= self._options.offset_fetch_attempts or deadline.expired
                )
                if last or not error.retriable:
                    raise
                logger.warning("asking for offsets failed and is tried again: %s", error)
            attempt += 1
            fresh = True
            time.sleep(self._options.offset_fetch_retry_ms / 1000)

    def _look(self, fresh: bool) -> Snapshot:
        layout = self._recent_layout(fresh)
        return Snapshot(layout, self._cluster.bounds(layout), time.monotonic())

    def _recent_layout(self, fresh: bool) -> TopicsLayout:
        if self._layout is None or fresh or time.monotonic() >= self._ask_layout_at:
            try:
                self._layout = self._cluster.layout(self._options.topics)
                self._layout_time = time.monotonic()
            except TubeMQError as error:
                # Brokers serve without a master; only the visit token needs one, now and then.
                age = time.monotonic() - self._layout_time
                if self._layout is None or not error.retriable or age > _OLD_LAYOUT_SECONDS:
                    raise
                logger.warning("no master tells where partitions are; going on as before: %s", error)
            self._ask_layout_at = time.monotonic() + _LAYOUT_SECONDS
        return self._layout
