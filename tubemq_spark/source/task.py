"""One task: read its ranges and hand them to Spark as record batches.

Fetches come from a cluster that reads ahead: Spark's worker does not flush its output after a batch, so
without that the JVM and Python would take turns instead of working at the same time.

Small fetches are put together as long as they come quickly. What is there is handed over when the reader has
to wait for its broker, or when it has been there for a while.
"""

import contextlib
import dataclasses
import logging
import time
import zoneinfo
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import MSG_TIME_KEY, RangeRequest, TopicPartition
from tubemq_spark.net.receive_buffer import keep_freed_memory
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.ledger import Origin
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.offset_spec import timestamps
from tubemq_spark.options import PayloadFormat, ReadOptions, TimestampSearch
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns
from tubemq_spark.source.arrow import TARGET_BYTES, BatchBuilder
from tubemq_spark.source.inlong import InLongBuilder
from tubemq_spark.source.loss_ledger import LossesOfTask, LossLedger, Work, loss_policy
from tubemq_spark.spark.edge import spare_collector

logger = logging.getLogger(__name__)


_LARGEST_PIECE_BYTES: Final = 3 * TARGET_BYTES
"""More than the values of one batch, unless a fetch is unusually long. malloc keeps twice as much, for those
of the batches that wait."""
_MOST_AGE_SECONDS: Final = 0.1
"""How long a row may wait for others of its batch while fetches come; at full speed batches fill sooner."""


def run_task(work: Work, options: ReadOptions, schema: pa.Schema, origin: Origin) -> Iterator[pa.RecordBatch]:
    """Do what a task has to do, and yield its rows; see ``read_rows``."""
    LossLedger(options).write(work.lost, origin)
    if work.requests:
        yield from read_rows(work.requests, options, schema, origin)


def read_rows(
    requests: Sequence[RangeRequest], options: ReadOptions, schema: pa.Schema, origin: Origin
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges, one after the other, as record batches of the asked columns."""
    spare_collector()
    keep_freed_memory(_LARGEST_PIECE_BYTES)
    account = _Account(requests, time.monotonic) if logger.isEnabledFor(logging.INFO) else None
    rows = _rows(requests, options, schema, origin, account)
    try:
        yield from rows if account is None else account.handed_over(rows)
    finally:
        rows.close()
        if account is not None:
            account.log()


def _rows(
    requests: Sequence[RangeRequest],
    options: ReadOptions,
    schema: pa.Schema,
    origin: Origin,
    account: "_Account | None",
) -> Generator[pa.RecordBatch, None, None]:
    batch_builder = builder(options, schema)
    cluster = open_cluster(options.cluster, for_task=True)
    losses = LossesOfTask(loss_policy(options), LossLedger(options), origin)
    with contextlib.closing(ranges(requests, options, cluster, losses)) as each:
        for batches, exact_offsets in each:
            counted = batches if account is None else account.fetched(batches)
            yield from _record_batches(batch_builder, counted, exact_offsets=exact_offsets)
    yield from batch_builder.finish()


class _Account:
    """What a task has done, for one line of the log at its end; there is none unless that is shown."""

    def __init__(self, requests: Sequence[RangeRequest], clock: Callable[[], float]) -> None:
        self._requests = requests
        self._clock = clock
        self._began = clock()
        self._rows = self._bytes = self._fetches = 0
        self._fetching_s = self._handing_over_s = 0.0

    def fetched(self, batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
        """Pass on what is fetched."""
        while True:
            before = self._clock()
            batch = next(batches, None)
            self._fetching_s += self._clock() - before
            if batch is None:
                return
            self._fetches += batch.next > batch.start
            yield batch

    def handed_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on what Spark gets."""
        for batch in batches:
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            before = self._clock()
            yield batch
            self._handing_over_s += self._clock() - before

    def log(self) -> None:
        """Write the line."""
        more = len(self._requests) - 1
        logger.info(
            "%s%s: %d rows, %d bytes, %d fetches; %.3f s waiting for the broker, %.3f s for Spark, of %.3f s",
            self._requests[0].range,
            f" and {more} more" if more else "",
            self._rows,
            self._bytes,
            self._fetches,
            self._fetching_s,
            self._handing_over_s,
            self._clock() - self._began,
        )


def _record_batches(
    builder: BatchBuilder | InLongBuilder,
    batches: Iterator[FetchedBatch],
    *,
    exact_offsets: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as record batches, but for the last ones, which the builder keeps."""
    oldest_at = 0.0
    for fetched in batches:
        if builder.empty:
            oldest_at = clock()
        yield from builder.add(fetched, exact_offsets=exact_offsets)
        # A batch of no offsets says that the reader waits for its broker.
        if fetched.next == fetched.start or clock() - oldest_at >= _MOST_AGE_SECONDS:
            yield from builder.finish()


def ranges(
    requests: Sequence[RangeRequest],
    options: ReadOptions,
    cluster: Cluster,
    losses: LossesOfTask,
    wait: Wait = SLEEP,
) -> Generator[tuple[Iterator[FetchedBatch], bool], None, None]:
    """Yield the messages of some ranges, one after the other, each with whether it has exact offsets.

    To close it gives back the lease of the range that is being read.
    """
    times = TimeFilter(options)
    for request in requests:
        with contextlib.closing(cluster.read_range(request, losses, wait)) as batches:
            recorded = losses.recorded(batches, request.range)
            yield times.chosen(request.range.partition, recorded), request.own_store
    times.finish()


def builder(options: ReadOptions, schema: pa.Schema) -> BatchBuilder | InLongBuilder:
    """Return the builder that makes record batches of fetched messages."""
    time_zone = zoneinfo.ZoneInfo(options.message_time_zone)
    if options.payload is PayloadFormat.INLONG:
        return InLongBuilder(schema, time_zone, options.parse_mode)
    return BatchBuilder(schema, time_zone)


_MINUTE_MS: Final = 60_000
_MOST_TEXTS: Final = 20_000
"""How many texts are remembered: those of a minute are equal."""


class TimeFilter:
    """Leaves messages out by their times, for one task of a batch read that must be exact.

    The driver then plans the whole of each partition, since a message of any time may be anywhere. Tasks
    compare what the column ``timestamp`` shows. A message without a time has none, and is left out as
    ``where("timestamp >= ...")`` would leave it out; a task says how many it has left out so.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._zone = zoneinfo.ZoneInfo(options.message_time_zone)
        self._minutes: dict[str | None, int | None] = {}
        self._untimed = 0

    def chosen(self, partition: TopicPartition, batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
        """Yield the batches of a partition, with those of its messages that the read has."""
        options = self._options
        start = timestamps(options.starting, (partition,)).get(partition)
        end = None if options.ending is None else timestamps(options.ending, (partition,)).get(partition)
        if options.timestamp_search is not TimestampSearch.EXACT or (start is None and end is None):
            return batches
        first = None if start is None else start.ms // _MINUTE_MS
        # All messages of a minute that has begun before the end may be before it.
        last = None if end is None else -(-end.ms // _MINUTE_MS) - 1
        return (
            dataclasses.replace(batch, columns=self._within(batch.columns, first, last)) for batch in batches
        )

    def finish(self) -> None:
        """Say what was left out without a time."""
        if self._untimed:
            logger.warning(
                "%d messages carry no time: a read with timestampSearch=exact leaves them out", self._untimed
            )

    def _within(self, columns: MessageColumns, first: int | None, last: int | None) -> MessageColumns:
        minutes = [self._minute(text) for text in columns.each(MSG_TIME_KEY)]
        self._untimed += minutes.count(None)
        rows = [
            row
            for row, minute in enumerate(minutes)
            if minute is not None and (first is None or first <= minute) and (last is None or minute <= last)
        ]
        return columns if len(rows) == len(columns) else columns.take(np.array(rows, np.int64))

    def _minute(self, text: str | None) -> int | None:
        if text not in self._minutes:
            if len(self._minutes) >= _MOST_TEXTS:
                self._minutes.clear()
            meaning = minutes_of(text, self._zone)
            self._minutes[text] = None if meaning is None else meaning.first
        return self._minutes[text]
