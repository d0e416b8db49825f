"""A look at a few records, to plan with: the tasks that read them report what is lost."""

import contextlib
import math
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Sleep
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.offsets.marks import Mark
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns

_GRACE_S: Final = 0.1
"""How much longer a look may take than a reader has patience: one that gives up by itself knows why."""


@contextlib.contextmanager
def peek(
    cluster: Cluster, layout: TopicsLayout, range_: OffsetRange, patience_ms: int | None = None
) -> Iterator[Iterator[FetchedBatch]]:
    """Read a range within the ``with`` block, and pass over records that are gone.

    ``patience_ms`` bounds it, for any cause: a broker that limits its readers asks for pauses without end.
    """
    wait = waiting_at_most(patience_ms, range_)
    alone = range_.partition.store_id in layout.alone_in_store
    request = layout.request(range_, own_store=alone)
    with contextlib.closing(cluster.read_range(request, _pass_over, wait)) as batches:
        yield batches


def record_at(
    cluster: Cluster,
    layout: TopicsLayout,
    offset: int,
    partitions: Iterable[TopicPartition],
    patience_ms: int,
) -> Mark | None:
    """Return which record a store has at an offset; None if none is there that can be read.

    It may be of any of these partitions of the store; the likeliest comes first. The cluster must not pass
    over types of messages.
    """
    for partition in partitions:
        range_ = OffsetRange(partition, offset, offset + INDEX_ENTRY_BYTES)
        with peek(cluster, layout, range_, patience_ms) as batches:
            for batch in batches:
                if len(batch.columns):
                    return _mark_of(range_, batch.columns)
    return None


def _mark_of(range_: OffsetRange, columns: MessageColumns) -> Mark:
    """Return the mark of the only record of a range."""
    attributes = bytes(columns.data[columns.attribute_start[0] : columns.attribute_end[0]])
    message_id, body = columns.identity(0)
    checksum = zlib.crc32(body, zlib.crc32(attributes))
    return Mark(range_.partition, range_.start, message_id, checksum, len(attributes) + len(body))


def waiting_at_most(patience_ms: int | None, range_: OffsetRange) -> Sleep:
    """Return a wait that raises ``TUBEMQ_NO_PROGRESS`` so long from now on; None for no limit."""
    deadline = Deadline.after_ms(math.inf if patience_ms is None else patience_ms, time.monotonic)

    def check(late_s: float = _GRACE_S) -> None:
        if time.monotonic() - deadline.at >= late_s:
            raise TubeMQTimeoutError(
                "TUBEMQ_NO_PROGRESS",
                partition=range_.partition,
                position=range_.start,
                end=range_.end,
                timeout_ms=patience_ms,
                trouble="its broker lets readers wait",
            )

    def pause(seconds: float) -> None:
        check(0.0)
        time.sleep(min(seconds, deadline.remaining()))

    return Sleep(pause, check)


def _pass_over(_: LossRecord) -> None:
    """Look behind records that are gone."""


_SILENT_MS: Final = 1_000


def bounds_after(cluster: Cluster, layout: TopicsLayout, silent: Collection[int]) -> StoreBounds:
    """Ask all brokers of a layout for the bounds of their stores; none costs its whole time-out twice.

    Brokers that are ``silent``, since they did not answer a question before, are waited for a second.
    """
    late = [store for store in layout.stores if store.broker_id in silent]
    bounds = cluster.bounds(layout, [store for store in layout.stores if store.broker_id not in silent])
    if not late:
        return bounds
    rest = cluster.bounds(layout, late, timeout_ms=_SILENT_MS)
    return StoreBounds({**bounds.by_store, **rest.by_store}, {**bounds.failures, **rest.failures})
