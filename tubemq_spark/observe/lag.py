"""How far a query is behind, as a function of what its progress told so far; no Spark, no clock.

Three numbers per topic:

*rows*
    What the stores hold behind the offsets that the query has read up to. Exact, except where partitions of
    one store stand at different offsets: then it is what the store holds behind the furthest back.
*seconds*
    How long ago the log ended where the query stands now; of the stores the longest. The log's end is known
    at the moments of progress, and interpolated between them, so it is as exact as these are close. For a
    place before the first of these moments it is reckoned with the rate at which rows have come since; None
    until there is a rate. 0 where nothing is unread.
*catch-up seconds*
    How long the query needs to read all that is unread and all that comes until then, if rows are read and
    come as in the last minutes. Infinite where it does not become less; None until there are rates.

Each store has a ``StoreHistory``. Its invariant: times and ends both ascend; an end that goes back (a topic
that was created again, a crash) starts the history over.
"""

import bisect
import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tubemq_spark.model import INDEX_ENTRY_BYTES, StoreId, TopicPartition, rows_between

_RATE_SECONDS: Final = 300.0
"""Rates are those of so many last seconds."""
_MOST_POINTS: Final = 1_000
"""A history with more is thinned out: a query that stays far behind for days needs it all."""


@dataclasses.dataclass(frozen=True, slots=True)
class TopicLag:
    """How far one source of a query is behind in one topic."""

    topic: str
    rows: int
    """Rows that are not read yet."""
    seconds: float | None
    """How long ago the log ended where the query stands; None when that is not known yet."""
    catch_up_seconds: float | None
    """How long the query needs to catch up: infinite when it does not, None when that is not known yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueryLag:
    """How far one source of a query is behind."""

    query: str
    """The query's name, or its id when it has none."""
    source: int
    """The source's place in the query, from 0, other kinds of sources counted."""
    at: float
    """When it was so, in seconds since 1970."""
    topics: tuple[TopicLag, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one source of a query is behind in one partition."""

    partition: TopicPartition
    rows: int
    """Rows that are not read yet; in a store of several partitions, what the store holds of all of them."""
    seconds: float | None
    """As in ``TopicLag``."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Point:
    """Where a store ended, and how far it was read, in index bytes."""

    at: float
    latest: int
    position: int


@dataclasses.dataclass(slots=True)
class _LogEnd:
    """Where a log ended, and when it was first and last seen to end there."""

    latest: int
    first: float
    last: float


class StoreHistory:
    """What is known about one store over time."""

    def __init__(self) -> None:
        self._ends: list[_LogEnd] = []
        self._recent: collections.deque[_Point] = collections.deque()

    def add(self, at: float, latest: int, position: int) -> None:
        """Learn where a store ends and how far it was read, at a moment in seconds.

        Moments that are not later than the last one are left out.
        """
        if self._recent and at <= self._recent[-1].at:
            return
        last = self._recent[-1] if self._recent else None
        if last is not None and (latest < last.latest or position < last.position):
            self._ends.clear()
            self._recent.clear()
        self._recent.append(_Point(at, latest, position))
        while len(self._recent) > 2 and self._recent[1].at <= at - _RATE_SECONDS:
            self._recent.popleft()
        if self._ends and self._ends[-1].latest == latest:
            self._ends[-1].last = at
        else:
            self._ends.append(_LogEnd(latest, at, at))
        # Of what is read, where the log ended at the position or before is enough.
        del self._ends[: max(0, self._behind(position) - 1)]
        if len(self._ends) > _MOST_POINTS:
            del self._ends[1:-1:2]

    @property
    def rows(self) -> int:
        """How many rows were not read at the last moment."""
        return self.rows_at(self._recent[-1].position)

    @property
    def seconds(self) -> float | None:
        """How long ago the log ended where it was read up to; 0 when it ends there now."""
        return self.seconds_at(self._recent[-1].position)

    def rows_at(self, position: int) -> int:
        """Return how many rows were behind a position, in index bytes, at the last moment."""
        return rows_between(position, self._recent[-1].latest)

    def seconds_at(self, position: int) -> float | None:
        """Return how long ago the log ended at a position that is not before where it was read up to."""
        now = self._recent[-1]
        if position >= now.latest:
            return 0.0
        after = self._behind(position)
        if after == 0:
            coming = self.coming_per_second
            if not coming:
                return None
            return now.at - self._ends[0].first + rows_between(position, self._ends[0].latest) / coming
        begin, end = self._ends[after - 1], self._ends[after]
        part = (position - begin.latest) / (end.latest - begin.latest)
        return now.at - (begin.last + part * (end.first - begin.last))

    @property
    def coming_per_second(self) -> float | None:
        """How many rows have come per second of late; None until there are two moments."""
        return self._per_second(lambda point: point.latest)

    @property
    def read_per_second(self) -> float | None:
        """How many rows have been read per second of late; None until there are two moments."""
        return self._per_second(lambda point: point.position)

    def _per_second(self, of: Callable[[_Point], int]) -> float | None:
        first, last = self._recent[0], self._recent[-1]
        if last.at <= first.at:
            return None
        return (of(last) - of(first)) / INDEX_ENTRY_BYTES / (last.at - first.at)

    def _behind(self, position: int) -> int:
        """Return the place of the first end that is behind a position."""
        return bisect.bisect_right(self._ends, position, key=lambda end: end.latest)


class SourceHistory:
    """What is known about one source of a query."""

    def __init__(self) -> None:
        self._stores: dict[StoreId, StoreHistory] = {}
        self._positions: Mapping[TopicPartition, int] = {}

    def add(
        self, at: float, latest: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]
    ) -> None:
        """Learn where partitions end and how far they were read, in index bytes, at a moment in seconds.

        Stores that are in only one of the two are not known at this moment; those in neither are forgotten.
        """
        self._positions = positions
        furthest_back: dict[StoreId, int] = {}
        for partition, position in positions.items():
            store = partition.store_id
            furthest_back[store] = min(position, furthest_back.get(store, position))
        ends = {partition.store_id: end for partition, end in latest.items()}
        self._stores = {
            store: history
            for store, history in self._stores.items()
            if store in furthest_back or store in ends
        }
        for store in furthest_back.keys() & ends.keys():
            self._stores.setdefault(store, StoreHistory()).add(at, ends[store], furthest_back[store])

    def lags(self) -> list[TopicLag]:
        """Return the lag of each topic, in their order."""
        of_topic: dict[str, list[StoreHistory]] = {}
        for store, history in sorted(self._stores.items()):
            of_topic.setdefault(store.topic, []).append(history)
        return [
            TopicLag(
                topic,
                sum(store.rows for store in stores),
                longest(store.seconds for store in stores),
                longest(_catch_up_seconds(store) for store in stores),
            )
            for topic, stores in of_topic.items()
        ]

    def partition_lags(self) -> list[PartitionLag]:
        """Return the lag of each partition, in their order; of those whose end is known."""
        return [
            PartitionLag(partition, store.rows_at(position), store.seconds_at(position))
            for partition, position in sorted(self._positions.items())
            if (store := self._stores.get(partition.store_id)) is not None
        ]


def _catch_up_seconds(store: StoreHistory) -> float | None:
    if not store.rows:
        return 0.0
    read, coming = store.read_per_second, store.coming_per_second
    if read is None or coming is None:
        return None
    return store.rows / (read - coming) if read > coming else math.inf


def longest(values: Iterable[float | None]) -> float | None:
    """Return the largest of some numbers; None if one is not known."""
    numbers: list[float] = []
    for value in values:
        if value is None:
            return None
        numbers.append(value)
    return max(numbers, default=0.0)
