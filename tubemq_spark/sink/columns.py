"""Which columns a frame written to TubeMQ may have, and a row's way to a message."""

import dataclasses
import datetime
import difflib
import zoneinfo
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY

SINK_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "brokerId": (IntegerType(),),
    "partition": (IntegerType(),),
    "messageType": (StringType(),),
    "timestamp": (TimestampType(),),
    "attributes": (MapType(StringType(), StringType()),),
}
"""Every column the sink takes, with the types it may have; only ``value`` must be there."""

IGNORED_COLUMNS: Final = frozenset({"offset", "messageId"})
"""Columns of our own source that say where a row came from: a frame read from TubeMQ can be written back."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A row, ready for the producer (whose ``send`` has the same arguments)."""

    topic: str
    value: bytes
    attributes: dict[str, str] | None
    message_type: str | None
    message_time: str | None
    key: bytes | None
    partition: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of one frame, checked; picklable."""

    names: frozenset[str]
    topic: str | None
    message_time_zone: str

    @classmethod
    def bind(cls, schema: StructType, topic: str | None, message_time_zone: str) -> "SinkColumns":
        """Check a frame's columns on the driver, before anything is written.

        Raises:
            OptionError: ``value`` is missing, a column is unknown or has a wrong type, no topic is
                given, or only one of ``brokerId`` and ``partition`` is there.
        """
        for field in schema.fields:
            _check_field(field.name, field.dataType)
        names = frozenset(schema.fieldNames()) - IGNORED_COLUMNS
        if "value" not in names:
            raise OptionError("TUBEMQ_SINK_NO_VALUE", found=", ".join(schema.fieldNames()))
        if topic is None and "topic" not in names:
            raise OptionError("TUBEMQ_SINK_NO_TOPIC")
        if len(names & {"brokerId", "partition"}) == 1:
            raise OptionError("TUBEMQ_SINK_HALF_ROUTE", found=next(iter(names & {"brokerId", "partition"})))
        return cls(names, topic, message_time_zone)

    def messages(self, batch: pa.RecordBatch) -> Iterator[OutgoingMessage]:
        """Yield a record batch's rows as messages.

        Our own source has a message's type and time among the attributes as well; here the columns of
        their own win.

        Raises:
            ProduceError: a row's value or topic is null, it names half a route, or its timestamp is beyond
                the year 9999.
        """
        count = batch.num_rows
        values = self._bytes(batch, "value", count)
        topics = [self.topic] * count if self.topic is not None else self._column(batch, "topic", count)
        columns = zip(
            values,
            topics,
            self._column(batch, "attributes", count),
            self._column(batch, "messageType", count),
            self._times(batch, count),
            self._bytes(batch, "key", count),
            self._routes(batch, count),
            strict=True,
        )
        for value, topic, attributes, message_type, time, key, (broker, partition) in columns:
            if value is None:
                raise ProduceError("TUBEMQ_SINK_NULL_VALUE", topic=topic)
            if topic is None:
                raise ProduceError("TUBEMQ_SINK_NULL_TOPIC")
            if (broker is None) != (partition is None):
                raise ProduceError(
                    "TUBEMQ_SINK_HALF_NULL_ROUTE", topic=topic, broker=broker, partition=partition
                )
            own, inner_type, inner_time = _without_system(attributes)
            yield OutgoingMessage(
                topic,
                value,
                own,
                inner_type if message_type is None else message_type,
                inner_time if time is None else time,
                key,
                None if broker is None else (broker, partition),
            )

    def _column(self, batch: pa.RecordBatch, name: str, count: int) -> list[Any]:
        return batch.column(name).to_pylist() if name in self.names else [None] * count

    def _bytes(self, batch: pa.RecordBatch, name: str, count: int) -> list[bytes | None]:
        """Return a column of texts or bytes as bytes: Spark's texts may hold what is no UTF-8."""
        if name not in self.names:
            return [None] * count
        return batch.column(name).cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]

    def _routes(self, batch: pa.RecordBatch, count: int) -> list[tuple[Any, Any]]:
        brokers = self._column(batch, "brokerId", count)
        return list(zip(brokers, self._column(batch, "partition", count), strict=True))

    def _times(self, batch: pa.RecordBatch, count: int) -> list[str | None]:
        if "timestamp" not in self.names:
            return [None] * count
        seconds = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        zone = zoneinfo.ZoneInfo(self.message_time_zone)
        texts: dict[int, str] = {}
        return [
            None if moment is None else _minute_text(moment // 60_000_000, zone, texts) for moment in seconds
        ]


def _minute_text(minute: int, zone: zoneinfo.ZoneInfo, texts: dict[int, str]) -> str:
    """Format a minute since the epoch as TubeMQ's ``yyyyMMddHHmm``; rows share few minutes."""
    text = texts.get(minute)
    if text is None:
        try:
            moment = datetime.datetime.fromtimestamp(minute * 60, zone)
        except (ValueError, OverflowError, OSError) as error:  # Spark's years go up to 294247
            what = f"its timestamp does not fit into yyyyMMddHHmm ({error})"
            raise ProduceError("TUBEMQ_BAD_MESSAGE", what=what) from error
        # Not strftime("%Y"): it writes the year 800 with three digits on some systems.
        text = f"{moment.year:04d}{moment:%m%d%H%M}"
        texts[minute] = text
    return text


def _without_system(
    pairs: list[tuple[str, str]] | None,
) -> tuple[dict[str, str] | None, str | None, str | None]:
    """Return attributes without TubeMQ's own, and of these the message's type and time."""
    if not pairs:
        return None, None, None
    attributes = dict(pairs)
    message_type = attributes.pop(MSG_TYPE_KEY, None)
    return attributes, message_type, attributes.pop(MSG_TIME_KEY, None)


def _check_field(name: str, data_type: DataType) -> None:
    if name in IGNORED_COLUMNS:
        return
    allowed = SINK_COLUMNS.get(name)
    if allowed is None:
        close = difflib.get_close_matches(name, SINK_COLUMNS, n=1, cutoff=0.6)
        raise OptionError(
            "TUBEMQ_SINK_UNKNOWN_COLUMN",
            column=name,
            suggestion=f"; did you mean '{close[0]}'?" if close else ".",
            known=", ".join(SINK_COLUMNS),
        )
    expected = [one.simpleString() for one in allowed]
    if data_type.simpleString() not in expected:
        raise OptionError(
            "TUBEMQ_SINK_WRONG_TYPE",
            column=name,
            given=data_type.simpleString(),
            expected=" or ".join(expected),
        )
