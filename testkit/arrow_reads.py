"""Batch reads that must have the same rows with Spark and without it."""

import datetime
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from testkit.inlong_msg import container, snappy
from tubemq_spark.client import TubeMQClient

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
BODIES = (
    container(1, [("a=1", [(b"one", b""), (b"two", b"")]), ("b=2", [(b"three", b"")])], 1500),
    b"no container",
    container(2, [("c=3", [(b"x" * 50, b"")])], compress=snappy),
)
Options = dict[str, str]


def send_messages(client: TubeMQClient, topic: str, packed: str) -> None:
    """Send sixty messages of an hour, ten of which come out of order, and bodies that InLong packed.

    All partitions have messages of the whole hour.
    """
    places = itertools.cycle(sorted(client.layout(topic).partitions))
    with client.producer() as producer:
        for minute in [*range(30), *range(59, 49, -1), *range(30, 50)]:
            place = next(places)
            producer.send(
                topic,
                b"%d" % minute,
                attributes={"page": f"p{minute % 7}"} if minute % 5 else None,
                message_type=["view", "click", None][minute % 3],
                partition=(place.broker_id, place.partition_id),
                message_time=f"{NOON + datetime.timedelta(minutes=minute):%Y%m%d%H%M}",
            )
        for body in BODIES:
            producer.send(packed, body)


def ms(minute: int) -> str:
    """Return a time of that hour as options take it."""
    return str(int((NOON + datetime.timedelta(minutes=minute)).timestamp() * 1000))


def option_sets(
    topic: str, packed: str, latest: Mapping[str, int]
) -> Iterator[tuple[Options, list[str] | None]]:
    """Yield options and the columns to read, None for the usual ones."""
    begin = json.dumps({topic: {place: min(28, end) for place, end in latest.items()}})
    end = json.dumps({topic: {place: end - min(28, end) for place, end in latest.items()}})
    one = json.dumps({topic: [min(latest)]})
    times = {"startingTimestamp": ms(10), "endingTimestamp": ms(55)}
    yield {"subscribe": topic}, None
    yield {"subscribe": f"{topic},{packed}", "includeAttributes": "true"}, None
    yield {"subscribe": topic, "startingOffsets": begin, "endingOffsets": end}, None
    yield {"subscribe": topic, "startingOffsets": "group"}, None
    yield {"subscribe": topic, "endingTimestamp": ms(20)}, None
    yield {"subscribe": topic, **times}, ["timestamp", "value"]
    yield {"subscribe": topic, **times, "timestampSearch": "exact"}, ["timestamp", "value", "offset"]
    yield {"subscribe": topic, **times, "timestampSearch": "exact", "messageTimeZone": "Asia/Tokyo"}, None
    yield {"assign": one, "minPartitions": "7"}, ["messageUid", "attributes", "partition", "brokerId"]
    yield {"subscribe": topic, "messageTypes": "click", "maxRecordsPerPartition": "5"}, None
    yield {"subscribe": topic, "visibility": "flushed", "failOnDataLoss": "false"}, ["value"]
    yield {"subscribe": packed, "payload": "inlong"}, None
    yield (
        {"subscribe": packed, "payload": "inlong", "mode": "DROPMALFORMED"},
        ["inlongIndex", "value", "inlongAttributes", "inlongTime"],
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Return rows in an order that does not depend on that of the partitions."""
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


def read_without_spark(
    client: TubeMQClient, options: Mapping[str, Any], columns: list[str] | None
) -> list[str]:
    """Read all rows through the client."""
    with client.read_arrow(columns=columns, options=options) as reader:
        return rows_of(reader)
