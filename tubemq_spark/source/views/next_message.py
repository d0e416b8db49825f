"""The next messages that a reader has not read yet: how old the first is, and how much data there is.

TubeMQ tells neither, so the first messages are read, one fetch per partition: they carry the minute in which
their producer says they were made, and the answer says how much data follows.
"""

import datetime
import zoneinfo
from collections.abc import Mapping
from typing import Final, NamedTuple

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.peek import peek
from tubemq_spark.model import OffsetRange, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns

_RECORD_OVERHEAD_BYTES: Final = 52
"""What a message takes in the broker's log besides its payload (``DataStoreUtils.STORE_DATA_HEADER_LEN``)."""


class Next(NamedTuple):
    """What is known of the messages from an offset on."""

    time: datetime.datetime | None = None
    """When the first was made, to the minute; None when it does not say, or may mean two times, or there is
    none."""
    bytes: int | None = None
    """How much the broker's log has of them, and of those of the store's other partitions."""
    error: str | None = None
    """Why they could not be read."""


def next_messages(
    cluster: Cluster,
    layout: TopicsLayout,
    unread: Mapping[TopicPartition, tuple[int, int]],
    zone: zoneinfo.ZoneInfo,
    patience_ms: int,
) -> dict[TopicPartition, Next]:
    """Read the first messages of several partitions at once; an error is part of the answer."""

    def look(partition: TopicPartition) -> Next:
        range_ = OffsetRange(partition, *unread[partition])
        with peek(cluster, layout, range_, patience_ms) as batches:
            batch = next(batches, None)
        if batch is None:
            return Next()
        return Next(_time(batch.columns, zone), _bytes_from(range_.start, batch))

    messages, errors = answers_and_errors(look, unread)
    return messages | {partition: Next(error=str(error)) for partition, error in errors.items()}


def _time(columns: MessageColumns, zone: zoneinfo.ZoneInfo) -> datetime.datetime | None:
    minutes = minutes_of(columns.message(0).message_time, zone)
    if minutes is None or not minutes.certain:
        return None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(minutes=minutes.first)


def _bytes_from(start: int, batch: FetchedBatch) -> int | None:
    """Return what the messages take, those of other partitions between them, and all that follow."""
    if batch.bytes_behind is None:
        return None
    count = len(batch.columns)
    each = batch.columns.nbytes / count + _RECORD_OVERHEAD_BYTES
    return batch.bytes_behind + round(each * rows_between(start, batch.next))
