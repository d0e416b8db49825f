"""A stream's questions on the driver: where the next micro-batch ends, and what its tasks are.

Spark keeps offsets as JSON and asks with them again and again, mostly when nothing is new. So the last answer
is kept in both forms, and given again as long as start, limit and snapshot are the same.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tubemq_spark.errors import LocalProtocolError, OptionError, TubeMQError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.advance import next_offset
from tubemq_spark.offsets.audit import stores_resumed_at_earliest
from tubemq_spark.offsets.offset_spec import stores_started_at_earliest
from tubemq_spark.offsets.ranges import ranges_between
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset, read_stream_offset
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.partition import OffsetRangePartition
from tubemq_spark.source.planner import Planner, Snapshot
from tubemq_spark.source.task import loss_policy
from tubemq_spark.source.warnings import NullOffsetWarning

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """What was answered to a question, and what to."""

    snapshot: Snapshot
    max_rows: int | None
    start: Mapping[str, Any]
    start_offset: StreamOffset
    end: dict[str, Any]
    end_offset: StreamOffset

    def holds_for(self, snapshot: Snapshot, start: Mapping[str, Any], max_rows: int | None) -> bool:
        """Tell whether the same question has the same answer."""
        if self.snapshot is not snapshot or self.max_rows != max_rows:
            return False
        # Without a limit the end is the end of everything: what comes behind it is nothing.
        return self.start == start or (max_rows is None and self.end == start)


class StreamDriver:
    """Lives in the driver for the life of a query; is never pickled."""

    def __init__(self, options: ReadOptions, columns: Iterable[str]) -> None:
        """Ask nobody yet; ``columns`` are those of the frame."""
        self._options = options
        self._null_offsets = NullOffsetWarning(columns)
        self._planner = Planner(options)
        self._on_loss = loss_policy(options)
        self._target: dict[TopicPartition, int] | None = None
        self._answer: _Answer | None = None
        self._report: tuple[Snapshot, dict[str, Any]] | None = None
        self._told_of_others = False

    def latest_offset(self, start: dict[str, Any], max_rows: int | None) -> dict[str, Any]:
        """Return where the next micro-batch ends; ``start`` itself when there is nothing new.

        Raises:
            TubeMQError: a start cannot be resolved, records are gone (by the policy), or the checkpoint
                belongs to a query that read other topics.
        """
        offset = self._parsed(start)
        snapshot = self._snapshot_for(offset)
        last = self._answer
        if last is not None and last.holds_for(snapshot, start, max_rows):
            return last.end
        self._null_offsets.look(snapshot.layout.partitions)
        bounds = self._readable_bounds(snapshot, offset)
        end = next_offset(
            self._subscribed(offset),
            snapshot.partitions,
            bounds,
            on_loss=self._on_loss,
            max_rows=max_rows,
            target=self._target,
        )
        text = start if end is offset else end.to_json()
        complete = len(bounds) == len(snapshot.bounds)
        self._answer = _Answer(snapshot, max_rows, start, offset, text, end) if complete else None
        return text

    def report(self) -> dict[str, Any] | None:
        """Return where the topics' stores end as far as known; None before the first look."""
        seen = self._planner.last
        if seen is None:
            return None
        if self._report is None or self._report[0] is not seen:
            latest = self._planner.latest_known
            ends = {
                partition: latest[store]
                for partition in seen.layout.partitions
                if (store := partition.store_id) in latest
            }
            self._report = seen, SourceOffset(ends).to_json()
        return self._report[1]

    def fix_target(self) -> None:
        """Fix where ``Trigger.AvailableNow`` ends: where every store ends now.

        Raises:
            TubeMQError: a store had no answer for as long as ``fetchOffset.numRetries`` says.
        """
        # A restart is likely: this trigger is made for runs that stop and start again. A new query's topics
        # have to exist when its start is resolved.
        snapshot = self._planner.look_complete(resumed=True)
        self._target = {
            partition: snapshot.bounds[partition.store_id].latest for partition in snapshot.layout.partitions
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRangePartition]:
        """Plan a micro-batch: a function of its two offsets, but for where the brokers are now.

        Raises:
            TubeMQError: no master answers, or partitions are gone (by the policy).
        """
        begin, stop = self._subscribed(self._parsed(start)), self._subscribed(self._parsed(end))
        if not isinstance(stop, SourceOffset):
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"a micro-batch ends at {end}")
        ranges = ranges_between(begin, stop, self._on_loss)
        return self._planner.partitions(ranges, stop.next_offsets.keys(), self._on_loss) if ranges else []

    def _parsed(self, offset: Mapping[str, Any]) -> StreamOffset:
        last = self._answer
        if last is not None and last.end == offset:
            return last.end_offset
        if last is not None and last.start == offset:
            return last.start_offset
        return read_stream_offset(offset)

    def _snapshot_for(self, start: StreamOffset) -> Snapshot:
        if isinstance(start, StartToken):
            return self._planner.look_complete()
        return self._planner.look(start.next_offsets)

    def _readable_bounds(self, snapshot: Snapshot, start: StreamOffset) -> Mapping[StoreId, OffsetBounds]:
        """Return the bounds; where reading begins at a store's earliest offset, that can be read."""
        if isinstance(start, StartToken):
            stores = stores_started_at_earliest(start.spec, snapshot.partitions, snapshot.bounds)
            return self._planner.readable_bounds(snapshot, stores, patient=True)
        stores = stores_resumed_at_earliest(start.next_offsets, snapshot.partitions, snapshot.bounds)
        try:
            return self._planner.readable_bounds(snapshot, stores, patient=False)
        except TubeMQError as error:
            # A running stream does not end because a broker goes away: these stores wait for the next look.
            logger.info("stores wait until it is known where they can be read: %s", error)
            return {store: held for store, held in snapshot.bounds.items() if store not in stores}

    def _subscribed(self, offset: StreamOffset) -> StreamOffset:
        """Leave out topics that the query no longer names; nothing of them is lost.

        Raises:
            OptionError: there are some, and ``failOnDataLoss`` is on.
        """
        topics = set(self._options.topics)
        others = sorted({partition.topic for partition in offset.next_offsets} - topics)
        if not others or isinstance(offset, StartToken):
            return offset
        if self._options.fail_on_data_loss:
            raise OptionError("TUBEMQ_CHECKPOINT_TOPICS", topics=", ".join(others))
        self._tell_once(others)
        return SourceOffset(
            *(_of_topics(offsets, topics) for offsets in (offset.next_offsets, offset.first_offsets))
        )

    def _tell_once(self, others: list[str]) -> None:
        if not self._told_of_others:
            logger.warning("topics of the checkpoint that are no longer subscribed to: %s", ", ".join(others))
        self._told_of_others = True


def _of_topics(offsets: Mapping[TopicPartition, int], topics: set[str]) -> dict[TopicPartition, int]:
    return {partition: offset for partition, offset in offsets.items() if partition.topic in topics}
