"""One task: read its ranges and hand them to Spark as record batches, fetching ahead while Spark drains.

Spark's worker does not flush its output after a batch: without a thread that fetches and decodes ahead,
the JVM and Python take turns instead of working at the same time.

Small fetches are put together as long as they come quickly. What is there is handed over when the reader has
to wait for its broker, or when it has been there for a while.
"""

import contextlib
import logging
import queue
import threading
import time
import zoneinfo
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import pyarrow as pa

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import RangeRequest
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.ledger import Origin
from tubemq_spark.options import PayloadFormat, ReadOptions
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.source.arrow import TARGET_BYTES, BatchBuilder
from tubemq_spark.source.inlong import InLongBuilder
from tubemq_spark.source.loss_ledger import LossesOfTask, LossLedger, loss_policy
from tubemq_spark.source.time_filter import TimeFilter
from tubemq_spark.source.work import Work
from tubemq_spark.spark.worker import spare_collector

logger = logging.getLogger(__name__)

_READ_AHEAD_BATCHES: Final = 2
_LARGEST_PIECE_BYTES: Final = 3 * TARGET_BYTES
"""More than the values of one batch, unless a fetch is unusually long. malloc keeps twice as much, for those
of the batches that wait."""
_POLL_SECONDS: Final = 0.1
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
    """Yield the rows of some ranges, one after the other, as record batches of the asked columns.

    Args:
        requests: the ranges.
        options: how to read.
        schema: the columns.
        origin: who reads, for the ledger of losses.

    Raises:
        DataLossError: records of a range are gone or damaged and ``failOnDataLoss`` is on.
        FolderError: a loss could not be written to the ledger.
        TubeMQTimeoutError: the broker made no progress for ``tubemq.fetchTimeoutMs``.
    """
    spare_collector()
    keep_freed_memory(_LARGEST_PIECE_BYTES)
    name = f"tubemq-read-{requests[0].range.partition}"
    yield from _ahead(lambda feed: _read(requests, options, schema, origin, feed), name)


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


class _AbandonedError(Exception):
    """Spark wants no more rows."""


class _Feed:
    """What the reading thread has ready for Spark's."""

    def __init__(self) -> None:
        self._items: queue.Queue[pa.RecordBatch | _Failed | _End] = queue.Queue(_READ_AHEAD_BATCHES)
        self._abandoned = threading.Event()

    def put(self, item: pa.RecordBatch | _Failed | _End) -> None:
        """Hand something over, when there is room.

        Raises:
            _AbandonedError: Spark wants no more rows.
        """
        while True:
            self.check()
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=_POLL_SECONDS)
                return

    def pause(self, seconds: float) -> None:
        """Wait that long, or raise ``_AbandonedError`` as soon as Spark wants no more rows."""
        if self._abandoned.wait(seconds):
            raise _AbandonedError

    def check(self) -> None:
        """Raise ``_AbandonedError`` if Spark wants no more rows."""
        self.pause(0)

    @property
    def has_room(self) -> bool:
        """Whether ``put`` would return at once; the reading thread alone may ask."""
        return not self._items.full()

    def get(self) -> pa.RecordBatch | _Failed | _End:
        """Return what comes next."""
        return self._items.get()

    def abandon(self) -> None:
        """Want no more rows."""
        self._abandoned.set()


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
            self._fetches += 1
            yield batch

    def handed_over(self, batch: pa.RecordBatch, since: float) -> None:
        """Note a record batch that waited for Spark since then."""
        self._handing_over_s += self._clock() - since
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

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


class _Reading:
    """Ranges on their way from the broker to the feed."""

    def __init__(
        self,
        builder: BatchBuilder | InLongBuilder,
        feed: _Feed,
        clock: Callable[[], float] = time.monotonic,
        account: _Account | None = None,
    ) -> None:
        self._builder = builder
        self._feed = feed
        self._clock = clock
        self._account = account
        self._oldest_at = 0.0

    def add_range(self, batches: Iterator[FetchedBatch], *, exact_offsets: bool) -> None:
        """Add all rows of a range; see ``BatchBuilder.add``."""
        for fetched in batches if self._account is None else self._account.fetched(batches):
            if self._builder.empty:
                self._oldest_at = self._clock()
            self._hand_over(self._builder.add(fetched, exact_offsets=exact_offsets))
            if self._clock() - self._oldest_at >= _MOST_AGE_SECONDS:
                self._hand_over_all()

    def finish(self) -> None:
        """Hand over what is left."""
        self._hand_over(self._builder.finish())

    def pause(self, seconds: float) -> None:
        """Wait for the reader that long; Spark gets what is there first."""
        self._hand_over_all()
        self._feed.pause(seconds)

    def check(self) -> None:
        """Do the same without waiting."""
        self.pause(0)

    def _hand_over_all(self) -> None:
        # A full feed keeps Spark busy, and the reader's time-outs must not pass here.
        if self._feed.has_room:
            self._hand_over(self._builder.finish())

    def _hand_over(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            before = 0.0 if self._account is None else self._clock()
            self._feed.put(batch)
            if self._account is not None:
                self._account.handed_over(batch, before)


def _read(
    requests: Sequence[RangeRequest],
    options: ReadOptions,
    schema: pa.Schema,
    origin: Origin,
    feed: _Feed,
) -> None:
    account = _Account(requests, time.monotonic) if logger.isEnabledFor(logging.INFO) else None
    reading = _Reading(builder(options, schema), feed, account=account)
    cluster = open_cluster(options.cluster, own_channels=True)
    losses = LossesOfTask(loss_policy(options), LossLedger(options), origin)
    try:
        with contextlib.closing(ranges(requests, options, cluster, losses, reading)) as each:
            for batches, exact_offsets in each:
                reading.add_range(batches, exact_offsets=exact_offsets)
        reading.finish()
    finally:
        if account is not None:
            account.log()


def ranges(
    requests: Sequence[RangeRequest], options: ReadOptions, cluster: Cluster, losses: LossesOfTask, wait: Wait
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
    """Return what makes record batches of fetched messages."""
    time_zone = zoneinfo.ZoneInfo(options.message_time_zone)
    if options.payload is PayloadFormat.INLONG:
        return InLongBuilder(schema, time_zone, options.parse_mode)
    return BatchBuilder(schema, time_zone)


def _ahead(read: Callable[[_Feed], None], name: str) -> Iterator[pa.RecordBatch]:
    """Yield what a function puts into a feed, while a thread runs it a few batches ahead.

    An abandoned generator (LIMIT, a cancelled job) stops the thread, also while that waits for its broker.
    """
    feed = _Feed()
    thread = threading.Thread(target=_fill, args=(read, feed), name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(item := feed.get(), _End):
            if isinstance(item, _Failed):
                raise item.error
            yield item
    finally:
        feed.abandon()
        thread.join()


def _fill(read: Callable[[_Feed], None], feed: _Feed) -> None:
    last: _Failed | _End = _End()
    try:
        read(feed)
    except BaseException as error:  # noqa: BLE001 - carried over to the reading thread, which raises it
        last = _Failed(error)
    with contextlib.suppress(_AbandonedError):
        feed.put(last)
