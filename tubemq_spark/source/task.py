"""One task: read a range and hand it to Spark as record batches, fetching ahead while Spark drains.

Spark's worker does not flush its output after a batch: without a thread that fetches and decodes ahead,
the JVM and Python take turns instead of working at the same time.
"""

import queue
import threading
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from tubemq_spark.client.range_reader import RangeRequest
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import LossPolicy, LossRecorder, fail_on_loss
from tubemq_spark.options import ReadOptions
from tubemq_spark.source.arrow import BatchBuilder

_READ_AHEAD_BATCHES: Final = 2
_POLL_SECONDS: Final = 0.1


def read_rows(work: RangeRequest, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as record batches of the asked columns.

    Raises:
        DataLossError: records of the range are gone or damaged and ``failOnDataLoss`` is on.
        TubeMQTimeoutError: the broker made no progress for ``tubemq.fetchTimeoutMs``.
    """
    yield from _ahead(
        lambda wait: _batches(work, options, schema, wait), name=f"tubemq-read-{work.range.partition}"
    )


def loss_policy(options: ReadOptions) -> LossPolicy:
    """Return what to do with a loss: fail, or log it and go on (``failOnDataLoss``)."""
    return fail_on_loss if options.fail_on_data_loss else LossRecorder()


def _batches(
    work: RangeRequest, options: ReadOptions, schema: StructType, wait: Wait
) -> Iterator[pa.RecordBatch]:
    builder = BatchBuilder(schema, zoneinfo.ZoneInfo(options.message_time_zone), exact_offsets=work.own_store)
    cluster = open_cluster(options.client)
    for fetched in cluster.read_range(work, loss_policy(options), wait):
        yield from builder.add(fetched)
    yield from builder.finish()


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    pass


class _AbandonedError(Exception):
    """Nobody wants the rows any more."""


def _ahead(make: Callable[[Wait], Iterator[pa.RecordBatch]], name: str) -> Iterator[pa.RecordBatch]:
    """Yield what an iterator yields while a thread runs it a few items ahead.

    An abandoned generator (LIMIT, a cancelled job) stops the thread and closes the iterator, also while
    that waits for its broker by the ``Wait`` it was made with.
    """
    items: queue.Queue[pa.RecordBatch | _Failed | _End] = queue.Queue(_READ_AHEAD_BATCHES)
    abandoned = threading.Event()

    def wait(seconds: float) -> None:
        if abandoned.wait(seconds):
            raise _AbandonedError

    thread = threading.Thread(target=_fill, args=(make(wait), items, abandoned), name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(item := items.get(), _End):
            if isinstance(item, _Failed):
                raise item.error
            yield item
    finally:
        abandoned.set()
        thread.join()


def _fill(
    batches: Iterator[pa.RecordBatch],
    items: "queue.Queue[pa.RecordBatch | _Failed | _End]",
    abandoned: threading.Event,
) -> None:
    last: _Failed | _End = _End()
    try:
        for batch in batches:
            if not _put(items, batch, abandoned):
                break
    except BaseException as error:  # noqa: BLE001 - carried over to the reading thread, which raises it
        last = _Failed(error)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    _put(items, last, abandoned)


def _put(
    items: "queue.Queue[pa.RecordBatch | _Failed | _End]",
    item: "pa.RecordBatch | _Failed | _End",
    abandoned: threading.Event,
) -> bool:
    while not abandoned.is_set():
        try:
            items.put(item, timeout=_POLL_SECONDS)
        except queue.Full:
            continue
        return True
    return False
