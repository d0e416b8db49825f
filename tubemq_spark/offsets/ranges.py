"""The ranges that are read between two offsets, cut so that more tasks read them, and grouped by task.

``minPartitions`` and ``maxRecordsPerPartition`` cut ranges. The arithmetic is that of Spark's Kafka source
(``KafkaOffsetRangeCalculator``), so that users get the numbers of tasks they know: ranges longer than
``maxRecordsPerPartition`` are cut first; when there are then fewer than ``minPartitions``, ranges whose share
is one task stay whole and the others are cut in proportion. A range counts as many records as its store has
between its offsets: one partition of a store that several share has fewer.

A task costs Spark about ten milliseconds, and a range of few rows costs three or four requests. So a task
reads several small ranges of one broker, one after another. A range of many rows is a task of its own.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tubemq_spark.errors import OptionError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange, RangeRequest, TopicPartition
from tubemq_spark.offsets.audit import removals
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, start_of

SMALL_RANGE_ROWS: Final = 1_000
"""A range of at most so many rows, including those of other partitions of its store, may share a task."""
MOST_RANGES: Final = 32
"""The maximum of ranges per task."""
MOST_ROWS: Final = 8_000
"""The maximum of rows in all ranges of a shared task."""


def ranges_between(start: StreamOffset, end: SourceOffset, on_loss: LossPolicy) -> list[OffsetRange]:
    """Return the ranges of a micro-batch, ordered by partition, without empty ones.

    A function of its arguments alone, so that the replay of a batch reads the same records. A partition of
    ``start`` that ``end`` lacks was removed; one that ``end`` puts before ``start`` moved back; and of some
    ``end`` says that their logs were replaced. All were reported when ``end`` was made, and are reported
    again here, since this may be the replay of a batch that another run of the query planned.
    """
    if start == end:
        return []
    for loss in removals(start.next_offsets, end.next_offsets.keys()):
        on_loss(loss)
    ranges = []
    for partition in sorted(end.next_offsets):
        begin, stop = start_of(partition, start, end), end.next_offsets[partition]
        if partition in end.replaced and partition in start.next_offsets:
            reached = start.next_offsets[partition]
            on_loss(LossRecord(Loss.REPLACED, partition, reached, reached))
        if stop < begin:
            on_loss(LossRecord(Loss.MOVED_BACK, partition, stop, begin))
        elif begin < stop:
            ranges.append(OffsetRange(partition, begin, stop))
    return ranges


def batch_ranges(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the ranges of a batch read, ordered by partition, without empty ones."""
    ranges = [OffsetRange(partition, starts[partition], ends[partition]) for partition in sorted(starts)]
    for backward in ranges:
        if backward.end < backward.start:
            raise OptionError(
                "TUBEMQ_START_AFTER_END", partition=backward.partition, start=backward.start, end=backward.end
            )
    return [range_ for range_ in ranges if range_.start < range_.end]


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return ranges that hold the same records in the same order, none of them empty.

    There are ``min_partitions`` ranges or more where there are enough records and rounding allows.
    """
    whole = [range_ for range_ in ranges if range_.rows]
    if max_records is not None:
        whole = [part for range_ in whole for part in _cut(range_, -(-range_.rows // max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    return _split_in_proportion(whole, min_partitions)


def _split_in_proportion(ranges: Sequence[OffsetRange], parts: int) -> list[OffsetRange]:
    total = sum(range_.rows for range_ in ranges)
    small = {range_ for range_ in ranges if _share(range_.rows, total, parts) == 1}
    # Small ranges would otherwise count twice: as tasks, and as records that large ranges divide by.
    rest = total - sum(range_.rows for range_ in small)
    others = max(parts - len(small), 1)
    return [
        piece
        for range_ in ranges
        for piece in ([range_] if range_ in small else _cut(range_, _share(range_.rows, rest, others)))
    ]


def _share(rows: int, total: int, parts: int) -> int:
    return max(math.floor(rows / total * parts + 0.5), 1)


def _cut(range_: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into nearly equal parts, shorter ones first; into fewer where it has fewer records."""
    rows = range_.rows
    parts = min(parts, rows)  # before a list has as many numbers as a user wishes
    length, longer = divmod(rows, parts)
    records = [length * part + max(0, part - (parts - longer)) for part in range(parts + 1)]
    cuts = [range_.start + INDEX_ENTRY_BYTES * before for before in records]
    return [OffsetRange(range_.partition, start, end) for start, end in itertools.pairwise(cuts)]


def grouped(
    requests: Sequence[RangeRequest],
    *,
    most_ranges: int | None = None,
    most_rows: int | None = None,
    fewest_tasks: int | None = None,
) -> list[list[RangeRequest]]:
    """Return the ranges of each task, every range in exactly one task, in the given order.

    Where there would be fewer tasks than ``fewest_tasks``, so few ranges share one that there are as many.
    """
    most_rows = min(most_rows or MOST_ROWS, MOST_ROWS)
    tasks = _shared(requests, most_ranges or MOST_RANGES, most_rows)
    if fewest_tasks is not None and len(tasks) < fewest_tasks:
        return _shared(requests, max(1, len(requests) // fewest_tasks), most_rows)
    return tasks


def _shared(requests: Iterable[RangeRequest], most_ranges: int, most_rows: int) -> list[list[RangeRequest]]:
    tasks: list[list[RangeRequest]] = []
    filling: dict[int, tuple[list[RangeRequest], int]] = {}
    for request in requests:
        rows = request.range.rows
        task, rows_in_task = filling.get(request.range.partition.broker_id, ([], most_rows))
        if rows > SMALL_RANGE_ROWS:
            tasks.append([request])
            continue
        if rows_in_task + rows > most_rows or len(task) >= most_ranges:
            task, rows_in_task = [], 0
            tasks.append(task)
        task.append(request)
        filling[request.range.partition.broker_id] = task, rows_in_task + rows
    return tasks
