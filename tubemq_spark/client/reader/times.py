"""Looks at the times that the messages of a partition carry, for a search (``offsets/time_search.py``)."""

import contextlib
import functools
import zoneinfo
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from tubemq_spark.model import INDEX_ENTRY_BYTES, MSG_TIME_KEY, OffsetBounds, OffsetRange, TopicPartition
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.time_search import Look, PartitionTimes, Timed
from tubemq_spark.protocol.fetch_columns import FetchedBatch

_MOST_ENTRIES: Final = 65_536
"""How much of a store one look passes over that has no record of its partition: about sixteen fetches."""

Value = TypeVar("Value")
Search = Generator[OffsetRange, FetchedBatch | None, Value]
"""Yields ranges, and is sent the first batch of each; None if there is none."""
Times = PartitionTimes[OffsetRange, FetchedBatch | None]


def times_of(partition: TopicPartition, bounds: OffsetBounds, zone: zoneinfo.ZoneInfo) -> Times:
    """Return a search for times in a partition, which has looked at nothing.

    Args:
        partition: the partition.
        bounds: what its store has.
        zone: the time zone in which messages carry their times.
    """
    return PartitionTimes(bounds, functools.partial(_look, partition, zone))


def search_in_thread(
    search: Search[Value], peek: Callable[[OffsetRange], AbstractContextManager[Iterator[FetchedBatch]]]
) -> Value:
    """Return what a search finds, in this thread.

    Args:
        search: the search, which has not begun.
        peek: reads a range within a ``with`` block, and passes over records that are gone.
    """
    batch: FetchedBatch | None = None
    while True:
        try:
            records = search.send(batch)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        with peek(records) as batches:
            batch = next(batches, None)


async def search_in_loop(
    search: Search[Value], peek: Callable[[OffsetRange], AsyncGenerator[FetchedBatch, None]]
) -> Value:
    """Return what a search finds; see ``search_in_thread``."""
    batch: FetchedBatch | None = None
    while True:
        try:
            records = search.send(batch)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        async with contextlib.aclosing(peek(records)) as batches:
            batch = await anext(batches, None)


def _look(
    partition: TopicPartition,
    zone: zoneinfo.ZoneInfo,
    begin: int,
    end: int,
    until: int,
    most_fetches: int,
) -> Search[Look]:
    at, has_records, fetches = begin, False, 0
    while True:
        fetches += 1
        stop = min(end, at + _MOST_ENTRIES * INDEX_ENTRY_BYTES)
        batch = yield OffsetRange(partition, at, stop)
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
