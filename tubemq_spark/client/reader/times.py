"""Where the messages of a time begin and end in partitions; no position moves by asking.

A search (``offsets/time_search.py``) says what to look at, and gets the times that the messages there carry.
"""

import contextlib
import datetime
import functools
import zoneinfo
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.errors import OptionError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    MSG_TIME_KEY,
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.side_by_side import each_of
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.offset_spec import LATEST_MS
from tubemq_spark.offsets.time_search import Look, PartitionTimes, Timed
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.settings.fields import bad_setting

_MOST_ENTRIES: Final = 65_536
"""How much of a store one look passes over that has no record of its partition: about sixteen fetches."""

Value = TypeVar("Value")
Search = Generator[OffsetRange, FetchedBatch | None, Value]
"""Yields ranges, and is sent the first batch of each; None if there is none."""
Times = PartitionTimes[OffsetRange, FetchedBatch | None]


def times_of(partition: TopicPartition, bounds: OffsetBounds, zone: zoneinfo.ZoneInfo) -> Times:
    """Return a search for times in a partition, which has looked at nothing."""
    return PartitionTimes(bounds, functools.partial(_look, partition, zone))


def search_in_thread(
    search: Search[Value], peek: Callable[[OffsetRange], AbstractContextManager[Iterator[FetchedBatch]]]
) -> Value:
    """Return what a search finds, in this thread.

    ``peek`` reads a range within a ``with`` block, and passes over records that are gone.
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
    partition: TopicPartition, zone: zoneinfo.ZoneInfo, begin: int, end: int, until: int, most_fetches: int
) -> Search[Look]:
    """Fetch from an offset on until records have times; yield the ranges to fetch."""
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


TIME_RULE: Final = "a datetime with a time zone, or milliseconds since 1970"
_A_MINUTE_MS: Final = 60_000
_MOST_SEARCHES: Final = 16
"""How many partitions are searched at once."""


def milliseconds(time: object, name: str = "time", rule: str = TIME_RULE) -> int:
    """Return a time that a user gave in milliseconds since 1970."""
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        time = round(time.timestamp() * 1000)
    if isinstance(time, int) and not isinstance(time, bool) and 0 <= time <= LATEST_MS:
        return time
    raise bad_setting(name, repr(time), rule)


class TimeOffsets:
    """Looks for times in some partitions; what one search has seen is known to the next."""

    def __init__(
        self,
        questions: Questions,
        layout: TopicsLayout,
        bounds: Mapping[StoreId, OffsetBounds],
        partitions: Collection[TopicPartition],
    ) -> None:
        """Begin with nothing."""
        zone = zoneinfo.ZoneInfo(questions.config.message_time_zone)
        self._questions = questions
        self._layout = layout
        self._searches = {
            partition: times_of(partition, bounds[partition.store_id], zone) for partition in partitions
        }

    async def begin(self, ms: int, name: str) -> dict[TopicPartition, int | None]:
        """Return where the messages of a time or later begin; None where there are none.

        The argument's name is for the error about messages that carry no time.
        """
        return await self._search(lambda times: times.first_of(ms // _A_MINUTE_MS), name)

    async def end(self, ms: int, name: str) -> dict[TopicPartition, int]:
        """Return where the messages before a time end; see ``begin``."""
        # Of a minute that has begun before the time, all messages may be earlier.
        return await self._search(lambda times: times.end_of(-(-ms // _A_MINUTE_MS)), name)

    async def _search(
        self, begin: Callable[[Times], Search[Value]], name: str
    ) -> dict[TopicPartition, Value]:
        async def place(partition: TopicPartition) -> Value:
            times = self._searches[partition]
            offset = await search_in_loop(begin(times), self._peek)
            if times.has_records and not times.has_times:
                raise OptionError("TUBEMQ_NO_MESSAGE_TIME", option=name, partition=partition)
            return offset

        return await each_of(place, self._searches, _MOST_SEARCHES)

    async def _peek(self, records: OffsetRange) -> AsyncGenerator[FetchedBatch, None]:
        # A member of a group is not told which other partitions are in the store.
        async with contextlib.aclosing(self._questions.read_range(self._layout.request(records))) as items:
            async for item in items:
                if not isinstance(item, LossRecord):
                    yield item


async def offsets_of_time(
    questions: Questions, layout: TopicsLayout, time: datetime.datetime | int
) -> dict[TopicPartition, int]:
    """Return where the messages of a time or later begin in partitions; where there are none, their ends.

    An end is that of before the search: what came during it may have the time.
    """
    ms = milliseconds(time)
    bounds = (await questions.bounds(layout)).complete()
    begins = await TimeOffsets(questions, layout, bounds, layout.partitions).begin(ms, "time")
    return {
        partition: bounds[partition.store_id].latest if offset is None else offset
        for partition, offset in begins.items()
    }
