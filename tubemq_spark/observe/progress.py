"""What progress events of Spark say about sources of TubeMQ, and what is known of one run of a query."""

import collections
import dataclasses
import datetime
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Row, functions
from pyspark.sql.streaming.listener import SourceProgress

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import StoreId, TopicPartition, rows_between
from tubemq_spark.observe.lag import PartitionLag, QueryLag, SourceHistory
from tubemq_spark.offsets.source_offset import ReportedEnd, SourceOffset, StreamOffset, read_stream_offset

_BYTES_OBSERVATION: Final = "tubemq.bytes."
"""How the names of observations begin that count bytes."""
_BYTES: Final = "bytes"


@dataclasses.dataclass(frozen=True, slots=True)
class SourceOffsets:
    """How far one source was read, and where it ends, in index bytes; and its brokers."""

    begins: Mapping[TopicPartition, int]
    """Where the micro-batch began."""
    positions: Mapping[TopicPartition, int]
    """Where it ended."""
    end: ReportedEnd


def source_offsets(source: SourceProgress) -> SourceOffsets | None:
    """Return the offsets of a source; None for one of another kind, or of which nothing was read yet."""
    try:
        end = SourceOffset.from_json(_object(source.endOffset))
        reported = ReportedEnd.from_json(_object(source.latestOffset))
        start = _start(source.startOffset)
    except (ValueError, RecursionError, OffsetFormatError):
        return None
    known = {**end.first_offsets, **start.next_offsets, **({} if start == end else end.replaced)}
    begins = {partition: known.get(partition, position) for partition, position in end.next_offsets.items()}
    return SourceOffsets(begins, end.next_offsets, reported)


def moment(timestamp: str) -> float:
    """Return a progress's timestamp, which is when its trigger began, in seconds since 1970."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def with_bytes(frame: DataFrame, column: str = "value") -> DataFrame:
    """Return a frame whose micro-batches tell a ``LagListener`` how many bytes a column of them had.

    Spark sums them up where the rows are, with ``DataFrame.observe``, so the column is read even if nothing
    else needs it.
    """
    size = functions.sum(functions.octet_length(column)).alias(_BYTES)
    return frame.observe(f"{_BYTES_OBSERVATION}{uuid.uuid4()}", size)


def observed_bytes(observed: Mapping[str, Row] | None) -> int | None:
    """Return how many bytes a micro-batch had by what ``with_bytes`` observed; None without that."""
    sums = [row[_BYTES] or 0 for name, row in (observed or {}).items() if name.startswith(_BYTES_OBSERVATION)]
    return sum(one for one in sums if isinstance(one, int)) if sums else None


def _object(text: object) -> dict[str, Any]:
    """Return the JSON object in a text."""
    data = json.loads(text) if isinstance(text, str) else None
    if not isinstance(data, dict):
        raise ValueError(f"not an object: {text!r}")
    return data


def _start(text: object) -> StreamOffset:
    """Return where a micro-batch starts: the first one of a query at nothing that Spark knows."""
    return SourceOffset({}) if text in {None, "null", "None"} else read_stream_offset(_object(text))


@dataclasses.dataclass(frozen=True, slots=True)
class SourceState:
    """One source of a query at one moment; what it has read is counted from the run's first progress on."""

    lag: QueryLag
    partitions: tuple[PartitionLag, ...]
    read_by_topic: Mapping[str, int]
    """How many rows lie between the offsets that micro-batches began and ended at."""
    read_by_partition: Mapping[TopicPartition, int]
    """The same; of a store with several partitions each has the rows of all."""
    input_rows: int
    """How many rows Spark got."""
    away: int
    """How many brokers are away."""
    outages: int
    """How often one went."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueryState:
    """One run of a query at one moment."""

    name: str
    """The query's name, or its id when it has none."""
    idle: bool
    """Whether the last that Spark told is that nothing was new."""
    batches: int
    """How many micro-batches have ended."""
    batch_seconds: float
    """How long they took together."""
    observed_bytes: int | None
    """How many bytes ``with_bytes`` counted; None without it."""
    sources: tuple[SourceState, ...]


class _Source:
    def __init__(self) -> None:
        self.history = SourceHistory()
        self.read_by_topic: collections.Counter[str] = collections.Counter()
        self.read_by_partition: collections.Counter[TopicPartition] = collections.Counter()
        self.input_rows = 0
        self.end = ReportedEnd({})

    def look(self, at: float, offsets: SourceOffsets) -> None:
        self.history.add(at, offsets.end.latest, offsets.positions)
        self.end = offsets.end

    def count(self, offsets: SourceOffsets, input_rows: int) -> None:
        self.input_rows += input_rows
        stores: dict[StoreId, int] = {}
        for partition, position in offsets.positions.items():
            rows = rows_between(offsets.begins[partition], position)
            self.read_by_partition[partition] += rows
            stores[partition.store_id] = max(rows, stores.get(partition.store_id, 0))
        for store, rows in stores.items():
            self.read_by_topic[store.topic] += rows


class QueryRun:
    """One run of a query: how far behind it is, what it has read, and whether it is idle.

    Counters only grow while a run lasts. Not for use by several threads at once: the listener has a lock.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """The query's name, or its id when it has none."""
        self._sources: dict[int, _Source] = {}
        self._at = self._looked_at = -math.inf
        self._idle = False
        self._batches = 0
        self._batch_seconds = 0.0
        self._observed_bytes: int | None = None

    def batch_ended(
        self,
        at: float,
        seconds: float,
        sources: Mapping[int, tuple[SourceOffsets, int]],
        observed_bytes: int | None,
    ) -> None:
        """Learn of a micro-batch."""
        self._idle = False
        self._batches += 1
        self._batch_seconds += seconds
        if observed_bytes is not None:
            self._observed_bytes = (self._observed_bytes or 0) + observed_bytes
        for number, (offsets, input_rows) in sources.items():
            self._sources.setdefault(number, _Source()).count(offsets, input_rows)
        self.looked(at, {number: offsets for number, (offsets, _) in sources.items()})

    def found_nothing(self, at: float) -> None:
        """Learn that nothing was new at a moment."""
        self._idle, self._at = True, at

    def looked(self, at: float, sources: Mapping[int, SourceOffsets]) -> None:
        """Learn where sources ended at a moment; one that is not later than the last is left out."""
        if at <= self._looked_at:
            return
        self._at = max(at, self._at)
        self._looked_at = at
        for number, offsets in sources.items():
            self._sources.setdefault(number, _Source()).look(at, offsets)

    def lags(self) -> list[QueryLag]:
        """Return the lag of each source."""
        return [self._lag(number, source) for number, source in sorted(self._sources.items())]

    def state(self) -> QueryState:
        """Return all that is known."""
        return QueryState(
            self.name,
            self._idle,
            self._batches,
            self._batch_seconds,
            self._observed_bytes,
            tuple(
                SourceState(
                    self._lag(number, source),
                    tuple(source.history.partition_lags()),
                    dict(source.read_by_topic),
                    dict(source.read_by_partition),
                    source.input_rows,
                    len(source.end.away),
                    source.end.outages,
                )
                for number, source in sorted(self._sources.items())
            ),
        )

    def _lag(self, number: int, source: _Source) -> QueryLag:
        return QueryLag(self.name, number, self._at, tuple(source.history.lags()))
