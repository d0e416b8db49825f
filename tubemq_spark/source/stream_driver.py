"""A stream's questions on the driver: where the next micro-batch ends, and what its tasks are.

Spark keeps offsets as JSON and asks with them again and again, mostly when nothing is new. So the last end is
kept in both forms, and returned again as long as start, limit and snapshot are the same.

Invariants:

- ``partitions`` is a function of its two offsets, except for where the brokers are now: a micro-batch that is
  replayed, by another process or after a change of the cluster, reads the same rows.
- An end offset is computed in ``latest_offset`` only; Spark writes it down before anything of it is read.
- The target of ``Trigger.AvailableNow`` is fixed once, before the first ``latest_offset``.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tubemq_spark.errors import LocalProtocolError, OptionError, TubeMQError
from tubemq_spark.model import (
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
    alone_in_store,
    rows_between,
)
from tubemq_spark.offsets.advance import next_offset
from tubemq_spark.offsets.audit import stores_resumed_at_earliest
from tubemq_spark.offsets.ledger import planning
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.marks import Place, newest, passed, place_of
from tubemq_spark.offsets.notation import listed
from tubemq_spark.offsets.offset_spec import (
    Edge,
    begun_again,
    ends_of,
    passed_marks,
    stores_started_at_earliest,
)
from tubemq_spark.offsets.ranges import ranges_between
from tubemq_spark.offsets.source_offset import (
    ReportedEnd,
    SourceOffset,
    StartToken,
    StreamOffset,
    read_stream_offset,
    start_of,
)
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.advice import NullOffsetWarning, StartTimes
from tubemq_spark.source.background import GroupProgress
from tubemq_spark.source.loss_ledger import LossesOfDriver, LossLedger, Work, loss_policy
from tubemq_spark.source.marks import Findings, Marks
from tubemq_spark.source.planner import Planner
from tubemq_spark.source.row_sizes import RowSizes
from tubemq_spark.source.visibility import Snapshot

logger = logging.getLogger(__name__)

_LARGE_BACKLOG_ROWS: Final = 10_000_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _LastEnd:
    """The end offset that was computed last, and from what."""

    snapshot: Snapshot
    limits: "_Limits"
    start: Mapping[str, Any]
    start_offset: StreamOffset
    end: dict[str, Any]
    end_offset: StreamOffset

    def holds_for(self, snapshot: Snapshot, start: Mapping[str, Any], limits: "_Limits") -> bool:
        """Tell whether the end is the same for these arguments."""
        if self.snapshot is not snapshot or self.limits != limits:
            return False
        # Without a limit the end is the end of all stores: nothing comes after it.
        return self.start == start or (limits == _UNLIMITED and self.end == start)


class _Limits(NamedTuple):
    """How large a micro-batch may be."""

    max_rows: int | None
    """None for no limit."""
    min_rows: int
    """As long as there are fewer, there is none at all."""
    max_bytes: int | None = None
    """And about how many bytes; None for no limit."""


_UNLIMITED: Final = _Limits(None, 0)


class StreamDriver:
    """Lives in the driver for the life of a query; is never pickled."""

    def __init__(self, options: ReadOptions, columns: Iterable[str]) -> None:
        """``columns``: those of the frame."""
        self._options = options
        self._null_offsets = NullOffsetWarning(columns, filtered=bool(options.cluster.client.message_types))
        self._planner = Planner(options)
        self._group_progress = GroupProgress(self._planner.cluster)
        self._row_sizes = RowSizes(self._planner.cluster)
        client = options.cluster.client
        self._marks = Marks(lambda: self._planner.of_all_types, client.rpc_timeout_ms)
        self._start_times = StartTimes(self._planner.cluster, options.message_time_zone)
        self._policy = loss_policy(options)
        self._ledger = LossLedger(options)
        self._ledger_is_ready = False
        self._target: dict[TopicPartition, int] | None = None
        self._triggered_at = -math.inf
        self._last_end: _LastEnd | None = None
        self._report: tuple[tuple[Snapshot, Collection[int], int], dict[str, Any]] | None = None
        """What was reported last, and what that depended on."""
        self._warned_of_others = False
        self._looked_at_backlog = False
        self._has_marks = False

    def latest_offset(self, start: dict[str, Any], max_rows: int | None) -> dict[str, Any]:
        """Return where the next micro-batch ends; ``start`` itself when there is nothing new.

        Without ``max_rows``, ``minOffsetsPerTrigger`` and ``maxBytesPerTrigger`` do not count either.
        """
        if self._options.until is not None and self._target is None:
            raise OptionError("TUBEMQ_UNTIL_WITHOUT_AVAILABLE_NOW", option="availableNowUntil")
        offset = self._parsed(start)
        snapshot = self._snapshot_for(offset)
        outages = self._planner.outages
        self._marks.notice(snapshot, self._planner.asked_at, {*outages.away, *outages.beside})
        limits = _UNLIMITED
        if max_rows is not None:
            limits = _Limits(max_rows, self._min_rows(start), self._options.max_bytes_per_trigger)
        last = self._last_end
        if last is not None and last.holds_for(snapshot, start, limits):
            return last.end
        on_loss = self._losses_from(start)
        self._null_offsets.check(snapshot.layout)
        held_back: set[StoreId] = set()
        looked = self._look(offset, snapshot)
        resolved = self._with_offsets(offset, snapshot, looked, on_loss)
        bounds = self._readable_bounds(snapshot, resolved, looked)
        waiting = _places_waiting(looked, snapshot.layout, bounds)
        bounds = {store: span for store, span in bounds.items() if store[:2] not in waiting}
        target = self._target and {
            partition: end for partition, end in self._target.items() if place_of(partition) not in waiting
        }
        end = next_offset(
            self._subscribed(resolved),
            snapshot.layout.partitions,
            bounds,
            on_loss=on_loss,
            max_rows=limits.max_rows,
            min_rows=limits.min_rows,
            max_bytes=limits.max_bytes,
            row_bytes=functools.partial(self._row_bytes, snapshot, held_back),
            ends=snapshot.ends,
            target=target,
            chosen_one_by_one=self._options.subscription.chosen_one_by_one,
            partial=snapshot.partial,
            replaced={} if isinstance(offset, StartToken) else looked.replaced,  # it begins again already
        )
        if end is not offset:
            end = self._with_marks(offset, end, snapshot)
        on_loss.write(self._stores_of_one(snapshot), offset.next_offsets)
        if end is not offset and _is_moved(offset, end):
            self._triggered_at = time.monotonic()
        if not self._looked_at_backlog:
            self._looked_at_backlog = True
            if limits == _UNLIMITED:
                _warn_of_backlog(offset, end)
            if len(self._options.cluster.client.reader_groups) > 1:  # the look leaves one to the tasks
                ranges = {one: (start_of(one, offset, end), stop) for one, stop in end.next_offsets.items()}
                self._start_times.look(snapshot.layout, ranges)
        data = start if end is offset else end.to_json()
        complete = len(bounds) == len(snapshot.bounds) and not held_back
        self._last_end = _LastEnd(snapshot, limits, start, offset, data, end) if complete else None
        return data

    def report(self) -> dict[str, Any] | None:
        """Return where what may be read ends, as far as known, and which brokers are away.

        None before the first snapshot.
        """
        snapshot, outages = self._planner.last_snapshot, self._planner.outages
        if snapshot is None:
            return None
        told = snapshot, outages.away, outages.count
        if self._report is None or self._report[0] != told:
            latest = self._planner.latest_known
            ends = {
                partition: latest[store]
                for partition in snapshot.layout.partitions
                if (store := partition.store_id) in latest
            }
            self._report = told, ReportedEnd(ends, outages.away, outages.count).to_json()
        return self._report[1]

    def fix_target(self) -> None:
        """Fix where ``Trigger.AvailableNow`` stops: where what may be read of every store ends now.

        With ``availableNowUntil`` it stops there, where that is before.
        """
        # A restart is likely: this trigger is for runs that stop and start again. The topics of a new query
        # must exist when its start is resolved.
        snapshot = self._planner.complete_snapshot(resumed=True)
        option, until = "availableNowUntil", self._options.until or Edge.LATEST
        spec = self._planner.with_offsets(until, snapshot, edge="ending", option=option)
        self._target = ends_of(spec, snapshot.layout.partitions, snapshot.ends, option=option)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Work]:
        """Plan a micro-batch: a function of its two offsets, except for where the brokers are now."""
        on_loss = self._losses_from(start)
        begin, stop = self._subscribed(self._parsed(start)), self._subscribed(self._parsed(end))
        if not isinstance(stop, SourceOffset):
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"a micro-batch ends at {end}")
        ranges = ranges_between(begin, stop, on_loss)
        planned = stop.next_offsets.keys()
        if ranges:
            ranges = self._ranges_of_planned_logs(ranges, begin, stop, on_loss)
        tasks = self._planner.partitions(ranges, planned, on_loss, partial=stop.partial) if ranges else []
        on_loss.write()
        return tasks

    def move_group(self, end: dict[str, Any]) -> None:
        """Move the user's group to where a finished micro-batch ended, without waiting for it."""
        layout = self._planner.layouts.last
        if layout is not None:
            positions = self._parsed(end).next_offsets
            self._group_progress.show(layout, positions, self._planner.outages.beside)

    def _row_bytes(
        self, snapshot: Snapshot, held_back: set[StoreId], unread: Mapping[StoreId, OffsetBounds]
    ) -> Mapping[StoreId, int]:
        """Return how large the rows of stores are; the stores of which that is not known are held back."""
        # A run of AvailableNow is not over before it has read every store.
        sizes = self._row_sizes.of(snapshot.layout, unread, assume=self._target is not None)
        held_back.update(unread.keys() - sizes.keys())
        return sizes

    def _losses_from(self, start: Mapping[str, Any]) -> LossesOfDriver:
        """Return the receiver of the losses of a micro-batch that begins there."""
        if not self._ledger_is_ready:
            self._ledger.prepare()
            self._ledger_is_ready = True
        group = self._options.cluster.client.group
        return LossesOfDriver(self._policy, self._ledger, lambda: planning(group, start))

    def _stores_of_one(self, snapshot: Snapshot) -> Collection[StoreId]:
        """Return the stores in which offsets tell how many of the wanted records are lost."""
        filtered = self._options.cluster.client.message_types
        return () if filtered else snapshot.layout.alone_in_store.keys()

    def _min_rows(self, start: Mapping[str, Any]) -> int:
        """Return how many rows a micro-batch waits for now."""
        waited_s = time.monotonic() - self._triggered_at
        over = waited_s >= self._options.max_trigger_delay_ms / 1000
        last = self._last_end
        is_planned = last is not None and last.start == start and last.end != start
        return 0 if over or is_planned or self._target is not None else self._options.min_offsets_per_trigger

    def _parsed(self, offset: Mapping[str, Any]) -> StreamOffset:
        last = self._last_end
        if last is not None and last.end == offset:
            return last.end_offset
        if last is not None and last.start == offset:
            return last.start_offset
        return read_stream_offset(offset)

    def _snapshot_for(self, start: StreamOffset) -> Snapshot:
        if isinstance(start, StartToken):
            return self._planner.complete_snapshot()
        # A run of AvailableNow is over when nothing is new, so it waits for who may have something.
        return self._planner.snapshot(start.next_offsets, patient=self._target is not None)

    def _look(self, start: StreamOffset, snapshot: Snapshot) -> Findings:
        """Look at the marks of where a micro-batch begins, as far as their brokers answer."""
        if isinstance(start, StartToken):
            marks = passed_marks(self._options.starting)  # a token has none
        else:
            marks = passed(start.marks, start.next_offsets)
        known = {store[:2] for store in snapshot.bounds} if marks else set()
        # A run of AvailableNow plans stores without bounds too, and a start is fixed permanently.
        patient = self._target is not None or isinstance(start, StartToken)
        marks = [mark for mark in marks if mark.place in known]
        return self._marks.look(marks, snapshot.layout, patient=patient)

    def _with_marks(self, start: StreamOffset, end: SourceOffset, snapshot: Snapshot) -> SourceOffset:
        """Return the end of a micro-batch with the newest marks."""
        replaced = {place_of(partition) for partition in end.replaced}
        if replaced:
            self._marks.begin_again(replaced)
        first = not self._has_marks or bool(replaced)
        last = self._target is not None and all(
            end.next_offsets.get(partition, offset) >= offset for partition, offset in self._target.items()
        )
        self._has_marks = True
        self._marks.take(snapshot, end, last=last)
        before = start.marks if isinstance(start, SourceOffset) else ()
        marks = self._marks.newest_for(end, before, wait=first or last)
        return dataclasses.replace(end, marks=marks)

    def _ranges_of_planned_logs(
        self,
        ranges: list[OffsetRange],
        start: StreamOffset,
        end: SourceOffset,
        on_loss: LossPolicy,
    ) -> list[OffsetRange]:
        """Return the ranges whose logs are still those that they were planned of, as marks tell."""
        marks = [*end.marks]
        if isinstance(start, SourceOffset):
            again = {place_of(partition) for partition in end.replaced}
            before = passed(start.marks, start.next_offsets)
            marks = [*(mark for mark in before if mark.place not in again), *marks]
        # What waits for a look, or for its broker, has no range.
        planned = {place_of(range_.partition) for range_ in ranges}
        marks = [mark for mark in newest(marks) if mark.place in planned]
        if not marks:
            return ranges
        layout = self._planner.with_retries(self._planner.layouts.recent)
        try:
            looked = self._marks.look(marks, layout, patient=True)
        except TubeMQError as error:
            # Tasks wait for a broker that is away, and what is planned behind this looks again.
            logger.warning("it is not known whether logs are those that were planned of: %s", error)
            return ranges
        # With a filter, offsets do not tell how many of the wanted records there were.
        filtered = self._options.cluster.client.message_types
        alone = {} if filtered or end.partial else alone_in_store(end.next_offsets)
        remaining = []
        for range_ in ranges:
            partition, first, until = range_.partition, range_.start, range_.end
            evidence = looked.replaced.get(place_of(partition))
            if evidence is None:
                remaining.append(range_)
                continue
            rows = rows_between(first, until) if partition.store_id in alone else None
            on_loss(LossRecord(Loss.REPLACED, partition, first, until, rows, evidence))
        return remaining

    def _with_offsets(
        self, start: StreamOffset, snapshot: Snapshot, looked: Findings, on_loss: LossPolicy
    ) -> StreamOffset:
        if not isinstance(start, StartToken):
            return start
        spec = self._planner.with_offsets(start.spec, snapshot, edge="starting")
        return StartToken(begun_again(spec, looked.replaced, on_loss))

    def _readable_bounds(
        self, snapshot: Snapshot, start: StreamOffset, looked: Findings
    ) -> Mapping[StoreId, OffsetBounds]:
        """Return the bounds; if reading begins at a store's earliest offset, that is one that can be read."""
        if isinstance(start, StartToken):
            stores = stores_started_at_earliest(start.spec, snapshot.layout.partitions, snapshot.bounds)
            return self._planner.readable_bounds(snapshot, stores, patient=True)
        stores = stores_resumed_at_earliest(
            start.next_offsets, snapshot.layout.partitions, snapshot.bounds, looked.replaced
        )
        return self._planner.readable_bounds(snapshot, stores, patient=False)

    def _subscribed(self, offset: StreamOffset) -> StreamOffset:
        """Leave out what the query no longer reads; none of its records is lost."""
        subscription = self._options.subscription
        others = subscription.others(offset.next_offsets.keys())
        if not others or isinstance(offset, StartToken):
            return offset
        topics = sorted({partition.topic for partition in others})
        names = listed(sorted(others) if subscription.chosen_one_by_one else topics)
        if self._options.fail_on_data_loss:
            raise OptionError("TUBEMQ_CHECKPOINT_TOPICS", topics=names, option=subscription.option)
        self._warn_once(names)
        remaining = offset.next_offsets.keys() - others
        next_offsets, first_offsets = (
            {partition: offsets[partition] for partition in offsets if partition in remaining}
            for offsets in (offset.next_offsets, offset.first_offsets)
        )
        marks = tuple(mark for mark in offset.marks if mark.partition in remaining)
        replaced = {place: at for place, at in offset.replaced.items() if place in remaining}
        return SourceOffset(next_offsets, first_offsets, offset.partial, marks, replaced)

    def _warn_once(self, others: str) -> None:
        if not self._warned_of_others:
            logger.warning("what the checkpoint has and the query no longer reads: %s", others)
        self._warned_of_others = True


def _warn_of_backlog(start: StreamOffset, end: SourceOffset) -> None:
    """Warn if a run's first micro-batch is so large that it may last for hours, or not fit into memory."""
    rows_of = {
        (partition.store_id, begin): rows_between(begin, offset)
        for partition, offset in end.next_offsets.items()
        for begin in [start_of(partition, start, end)]
    }
    rows = sum(rows_of.values())
    if rows >= _LARGE_BACKLOG_ROWS:
        logger.warning(
            "the first micro-batch has %d rows, all there are; maxOffsetsPerTrigger would divide them",
            rows,
        )


def _places_waiting(
    looked: Findings, layout: TopicsLayout, bounds: Mapping[StoreId, OffsetBounds]
) -> set[Place]:
    """Return the topics on brokers of which nothing is planned now.

    Of some it is not known whether their logs are those that were read. Logs that were replaced begin again
    together, when all of them answer.
    """
    incomplete = {
        place for store in layout.stores if looked.replaced and store not in bounds for place in [store[:2]]
    }
    return {*looked.unknown, *(looked.replaced.keys() & incomplete)}


def _is_moved(start: StreamOffset, end: SourceOffset) -> bool:
    """Tell whether a micro-batch does more than to begin with new partitions."""
    ends = end.next_offsets
    return (
        isinstance(start, StartToken)
        or bool(end.replaced)
        or any(ends.get(partition) != offset for partition, offset in start.next_offsets.items())
    )
