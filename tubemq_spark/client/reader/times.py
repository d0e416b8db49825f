"""Looks at the times that the messages of a partition carry, for a search (``offsets/time_search.py``)."""

import functools
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from tubemq_spark.model import MSG_TIME_KEY, OffsetBounds, OffsetRange, TopicPartition
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.time_search import Look, PartitionTimes, Timed
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_MOST_ENTRIES: Final = 65_536
"""How much of a store one look passes over that has no record of its partition: about sixteen fetches."""

Peek = Callable[[OffsetRange], AbstractContextManager[Iterator[FetchedBatch]]]
"""Reads a range within a ``with`` block, and passes over records that are gone."""


def times_of(
    partition: TopicPartition, bounds: OffsetBounds, peek: Peek, zone: zoneinfo.ZoneInfo
) -> PartitionTimes:
    """Return a search for times in a partition, which has looked at nothing.

    Args:
        partition: the partition.
        bounds: what its store has.
        peek: reads its records.
        zone: the time zone in which messages carry their times.
    """
    return PartitionTimes(bounds, functools.partial(_look, partition, peek, zone))


def _look(
    partition: TopicPartition,
    peek: Peek,
    zone: zoneinfo.ZoneInfo,
    begin: int,
    end: int,
    until: int,
    most_fetches: int,
) -> Look:
    at, has_records, fetches = begin, False, 0
    while True:
        fetches += 1
        stop = min(end, at + _MOST_ENTRIES * INDEX_ENTRY_BYTES)
        with peek(OffsetRange(partition, at, stop)) as batches:
            batch = next(batches, None)
        timed = [] if batch is None else _timed(batch, zone)
        if batch is not None and timed:
            return Look(batch.start, batch.next, timed, seen=True, fetches=fetches)
        has_records |= batch is not None and len(batch.columns) > 0
        at = stop if batch is None else batch.next
        if at >= min(end, until) or fetches >= most_fetches:
            return Look(at, at, (), has_records, fetches)


def _timed(batch: FetchedBatch, zone: zoneinfo.ZoneInfo) -> list[Timed]:
    """Return the records that carry a time."""
    columns = batch.columns
    meanings = {text: minutes_of(text, zone) for text in set(columns.each(MSG_TIME_KEY))}
    return [
        Timed(*minutes, batch.start + INDEX_ENTRY_BYTES * ordinal if batch.dense else None)
        for ordinal, text in zip(columns.ordinals.tolist(), columns.each(MSG_TIME_KEY), strict=True)
        if (minutes := meanings[text]) is not None
    ]
