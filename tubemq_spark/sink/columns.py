"""Which columns a frame written to TubeMQ may have, and a row's way to a message."""

import collections
import dataclasses
import datetime
import logging
import time
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from tubemq_spark.columns import ORIGIN, WRITTEN, suggestion
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import excerpt
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.sink.mended import Mended

logger = logging.getLogger(__name__)

_NO_ATTRIBUTES: Final = (None, None, None)
_ROUTE: Final = frozenset({"brokerId", "partition"})


class OutgoingMessage(NamedTuple):
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
    message_time: MessageTime = MessageTime.NOW

    @classmethod
    def bind(cls, schema: StructType, options: WriteOptions) -> "SinkColumns":
        """Check a frame's columns on the driver, before anything is written.

        A frame with a column of ``ORIGIN`` was read from TubeMQ. Its ``brokerId`` and ``partition``
        say where a row came from, and the target has other partitions, so they are no route.

        Raises:
            OptionError: ``value`` is missing, a column is unknown, there twice or has a wrong type, no topic
                is given, or only one of ``brokerId`` and ``partition`` is there.
        """
        for field in schema.fields:
            _check_field(field.name, field.dataType)
        names = frozenset(schema.fieldNames())
        if len(names) < len(schema.fields):
            counts = collections.Counter(schema.fieldNames())
            raise OptionError("TUBEMQ_SINK_DUPLICATE_COLUMN", column=counts.most_common(1)[0][0])
        if "value" not in names:
            raise OptionError("TUBEMQ_SINK_NO_VALUE", found=", ".join(schema.fieldNames()))
        if options.topic is None and "topic" not in names:
            raise OptionError("TUBEMQ_SINK_NO_TOPIC")
        if len(names & _ROUTE) == 1:
            raise OptionError("TUBEMQ_SINK_HALF_ROUTE", found=next(iter(names & _ROUTE)))
        if names & ORIGIN and names >= _ROUTE:
            logger.info(
                "the frame was read from TubeMQ: its brokerId and partition tell where rows came from, "
                "not where they go; to write to those partitions, drop offset and messageId"
            )
            names -= _ROUTE
        return cls(names - ORIGIN, options.topic, options.message_time_zone, options.message_time)

    def messages(
        self, batch: pa.RecordBatch, mended: Mended, first: int = 1, now: Callable[[], float] = time.time
    ) -> Iterator[OutgoingMessage]:
        """Yield a record batch's rows as messages.

        Our own source has a message's type and time among the attributes as well; here the columns of
        their own win. ``first`` is the number of the first row in its task.

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
            self._times(batch, count, first),
            self._bytes(batch, "key", count),
            self._routes(batch, count),
            strict=True,
        )
        default_time = self._default_time(now())
        with_time = self.message_time is not MessageTime.NONE
        for number, (value, topic, attributes, message_type, row_time, key, route) in enumerate(
            columns, first
        ):
            if value is None:
                raise ProduceError("TUBEMQ_SINK_NULL_VALUE", row=row_name(number), topic=topic)
            if topic is None:
                raise ProduceError("TUBEMQ_SINK_NULL_TOPIC", row=row_name(number, value))
            broker, partition = route
            if (broker is None) != (partition is None):
                raise ProduceError(
                    "TUBEMQ_SINK_HALF_NULL_ROUTE",
                    row=row_name(number, value),
                    topic=topic,
                    broker=broker,
                    partition=partition,
                )
            own, inner_type, inner_time = mended.attributes(attributes) if attributes else _NO_ATTRIBUTES
            text = inner_type if message_type is None else message_type
            yield OutgoingMessage(
                topic,
                value,
                own,
                text and mended.message_type(text),
                (row_time or inner_time or default_time) if with_time else None,
                key,
                None if broker is None else (broker, partition),
            )

    def _default_time(self, now_s: float) -> str | None:
        if self.message_time is not MessageTime.NOW:
            return None
        return _minute_text(int(now_s // 60), zoneinfo.ZoneInfo(self.message_time_zone), {})

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

    def _times(self, batch: pa.RecordBatch, count: int, first: int) -> list[str | None]:
        if "timestamp" not in self.names:
            return [None] * count
        moments = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        zone = zoneinfo.ZoneInfo(self.message_time_zone)
        texts: dict[int, str] = {}
        return [
            None if moment is None else _row_time(moment // 60_000_000, zone, texts, number)
            for number, moment in enumerate(moments, first)
        ]


def _row_time(minute: int, zone: zoneinfo.ZoneInfo, texts: dict[int, str], number: int) -> str:
    try:
        return texts.get(minute) or _minute_text(minute, zone, texts)
    except (ValueError, OverflowError, OSError) as error:  # Spark's years go up to 294247
        what = f"the timestamp of row {row_name(number)} does not fit into yyyyMMddHHmm ({error})"
        raise ProduceError("TUBEMQ_BAD_MESSAGE", what=what) from error


def _minute_text(minute: int, zone: zoneinfo.ZoneInfo, texts: dict[int, str]) -> str:
    """Format a minute since the epoch as TubeMQ's ``yyyyMMddHHmm``; rows share few minutes."""
    moment = datetime.datetime.fromtimestamp(minute * 60, zone)
    # Not strftime("%Y"): it writes the year 800 with three digits on some systems.
    texts[minute] = f"{moment.year:04d}{moment:%m%d%H%M}"
    return texts[minute]


def row_name(number: int, value: bytes | None = None) -> str:
    """Return words that let the user find a row: its number, its task and how its value begins."""
    shown = "" if value is None else f" ({excerpt(value)})"
    return f"{number} of {task_name()}{shown}"


def task_name() -> str:
    """Return the name of the task that runs here, as Spark's own messages number it."""
    context = TaskContext.get()
    return "this task" if context is None else f"task {context.partitionId()}"


def _check_field(name: str, data_type: DataType) -> None:
    if name in ORIGIN:
        return
    known = WRITTEN.get(name)
    if known is None:
        raise OptionError(
            "TUBEMQ_SINK_UNKNOWN_COLUMN",
            column=name,
            suggestion=suggestion(name, WRITTEN),
            known=", ".join(WRITTEN),
        )
    if not known.accepts(data_type):
        raise OptionError(
            "TUBEMQ_SINK_WRONG_TYPE", column=name, given=data_type.simpleString(), expected=known.expected
        )
