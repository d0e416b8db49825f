"""Cutting ranges so that more tasks read them: ``minPartitions`` and ``maxRecordsPerPartition``.

The arithmetic is that of Spark's Kafka source (``KafkaOffsetRangeCalculator``), so that users get the
numbers of tasks they know: ranges longer than ``maxRecordsPerPartition`` are cut first; when there are then
fewer than ``minPartitions``, ranges whose share is one task stay whole and the others are cut in proportion.

A range counts as many records as its store has between its offsets: one partition of a store that several
share has fewer.
"""

import itertools
import math
from collections.abc import Sequence

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange
from tubemq_spark.offsets.units import rows_between


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return ranges that hold the same records in the same order, none of them empty.

    There are ``min_partitions`` ranges or more where there are enough records and rounding allows.
    """
    whole = [range_ for range_ in ranges if _rows(range_)]
    if max_records is not None:
        whole = [part for range_ in whole for part in _cut(range_, -(-_rows(range_) // max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    return _split_in_proportion(whole, min_partitions)


def _split_in_proportion(ranges: Sequence[OffsetRange], parts: int) -> list[OffsetRange]:
    total = sum(map(_rows, ranges))
    small = {range_ for range_ in ranges if _share(_rows(range_), total, parts) == 1}
    # Small ranges would otherwise count twice: as tasks, and as records that large ranges divide by.
    rest = total - sum(map(_rows, small))
    others = max(parts - len(small), 1)
    return [
        piece
        for range_ in ranges
        for piece in ([range_] if range_ in small else _cut(range_, _share(_rows(range_), rest, others)))
    ]


def _share(rows: int, total: int, parts: int) -> int:
    return max(math.floor(rows / total * parts + 0.5), 1)


def _cut(range_: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into nearly equal parts, shorter ones first; into fewer where it has fewer records."""
    rows = _rows(range_)
    parts = min(parts, rows)  # before a list has as many numbers as a user wishes
    length, longer = divmod(rows, parts)
    records = [length * part + max(0, part - (parts - longer)) for part in range(parts + 1)]
    cuts = [range_.start + INDEX_ENTRY_BYTES * before for before in records]
    return [OffsetRange(range_.partition, start, end) for start, end in itertools.pairwise(cuts)]


def _rows(range_: OffsetRange) -> int:
    return rows_between(range_.start, range_.end)
