"""Which columns a frame written to TubeMQ may have, and what a sender gets of them."""

import collections
import dataclasses
import functools
import logging
import time
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tubemq_spark.errors import OptionError
from tubemq_spark.model import MESSAGE_UID_KEY, MSG_TIME_KEY, MSG_TYPE_KEY
from tubemq_spark.offsets.message_time import is_repeated, text_of
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.send_batch import Bools, BytesColumn, Coded, MessageHeader, SendBatch
from tubemq_spark.sink import coding
from tubemq_spark.sink.checked_rows import CheckedRows
from tubemq_spark.sink.uids import Described, TaskUids, row_uids
from tubemq_spark.spark.columns import ORIGIN, WRITTEN, suggestion
from tubemq_spark.spark.types import name_beside

logger = logging.getLogger(__name__)

_ROUTE: Final = frozenset({"brokerId", "partition"})


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
        """
        names = frozenset(schema.fieldNames())
        if "value" not in names:
            raise OptionError("TUBEMQ_SINK_NO_VALUE", found=", ".join(schema.fieldNames()))
        for field in schema.fields:
            _check_field(field.name, field.dataType)
        if len(names) < len(schema.fields):
            counts = collections.Counter(schema.fieldNames())
            raise OptionError("TUBEMQ_SINK_DUPLICATE_COLUMN", column=max(counts, key=counts.__getitem__))
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

    @property
    def have_no_ids(self) -> bool:
        """Whether no row can have an id of its own, among its attributes or beside them."""
        return self.names.isdisjoint({MESSAGE_UID_KEY, "attributes"})

    def rows(
        self,
        batch: pa.RecordBatch,
        first: int,
        now: Callable[[], float] = time.time,
        stamp: TaskUids | None = None,
    ) -> CheckedRows:
        """Return a record batch's rows as messages, and which of them cannot be messages.

        Our own source has a message's type and time among the attributes as well; here the columns of
        their own win. ``first`` is the number of the first row in its task. ``stamp`` makes ids for rows
        that have none.

        A row is refused if its value or topic is null, it names half a partition, its timestamp is beyond the
        year 9999, or a text has bytes that are not UTF-8.
        """
        refused = self._refused(batch)
        times, unwritable = self._times(batch)
        topics, described = self._topics(batch), self._described(batch, times)
        unwritable |= _no_texts(topics, lambda topic: [("topic", topic)])
        unwritable |= _no_texts(described, _texts_of)
        refused[list(unwritable)] = True
        values, keys = coding.bytes_column(batch.column("value")), self._bytes(batch, "key")
        uids = row_uids(self._bytes(batch, MESSAGE_UID_KEY), described, topics, keys, values, stamp)
        headers = self._headers(described, now)
        messages = SendBatch(topics, values, headers, keys, self._routes(batch), first, uids)
        return CheckedRows(messages, refused, unwritable)

    def _refused(self, batch: pa.RecordBatch) -> Bools:
        """Tell which rows cannot be messages; timestamps are not examined."""
        refused = coding.nulls(batch.column("value")).copy()
        if self.topic is None:
            refused |= coding.nulls(batch.column("topic"))
        if self.names >= _ROUTE:
            refused |= coding.nulls(batch.column("brokerId")) != coding.nulls(batch.column("partition"))
        return refused

    def _topics(self, batch: pa.RecordBatch) -> Coded[str]:
        if self.topic is not None:
            return coding.constant(self.topic, batch.num_rows)
        return coding.coded(batch.column("topic"))

    def _routes(self, batch: pa.RecordBatch) -> Coded[tuple[int, int] | None] | None:
        if not self.names >= _ROUTE:
            return None
        named = coding.combined(
            coding.coded(batch.column("brokerId")), coding.coded(batch.column("partition"))
        )
        return Coded(tuple(None if pair == (None, None) else pair for pair in named.values), named.codes)

    def _bytes(self, batch: pa.RecordBatch, name: str) -> BytesColumn | None:
        return coding.bytes_column(batch.column(name)) if name in self.names else None

    def _described(self, batch: pa.RecordBatch, times: Coded[str | None]) -> Coded[Described]:
        """Return attributes, type and time of the rows, as they have them."""
        return coding.combined(
            self._optional(batch, "attributes", coding.coded_maps),
            self._optional(batch, "messageType", coding.coded),
            times,
        )

    def _headers(self, columns: Coded[Described], now: Callable[[], float]) -> Coded[MessageHeader]:
        """Return type, time and attributes of the rows; rows that share all three share a header."""
        default_time = self._default_time(now())
        headers = [self._header(default_time, *values) for values in columns.values]
        return Coded(tuple(headers), columns.codes)

    def _header(
        self,
        default_time: str | None,
        attributes: list[tuple[str, str | None]] | None,
        message_type: str | None,
        row_time: str | None,
    ) -> MessageHeader:
        """Return what a message carries as its row says it, whether TubeMQ's rules allow that or not.

        Attributes may be those of a message that was read, which is written again as it was: other producers
        write blank ones, for example. A null is not such a blank one, and is refused.
        """
        foreign = bool(attributes) and all(text is not None for _, text in attributes or ())
        own = {name: text or "" for name, text in attributes or ()}
        inner_type, inner_time = own.pop(MSG_TYPE_KEY, None), own.pop(MSG_TIME_KEY, None)
        if MESSAGE_UID_KEY in self.names:
            own.pop(MESSAGE_UID_KEY, None)
        times = (time for time in (row_time, inner_time, default_time) if time is not None)
        return MessageHeader(
            own or None,
            inner_type if message_type is None else message_type,
            None if self.message_time is MessageTime.NONE else next(times, None),
            foreign,
        )

    def _default_time(self, now_s: float) -> str | None:
        if self.message_time is not MessageTime.NOW:
            return None
        minute, zone = int(now_s // 60), zoneinfo.ZoneInfo(self.message_time_zone)
        text = text_of(minute, zone)
        if is_repeated(minute, text, zone):
            _warn_of_repeated_hour(zone.key, minute // 60)
        return text

    def _optional(
        self, batch: pa.RecordBatch, name: str, code: Callable[[pa.Array], Coded[Any]]
    ) -> Coded[Any]:
        if name not in self.names:
            return coding.constant(None, batch.num_rows)
        return code(batch.column(name))

    @property
    def _has_times(self) -> bool:
        """Whether rows have times that are written."""
        return "timestamp" in self.names and self.message_time is not MessageTime.NONE

    def _times(self, batch: pa.RecordBatch) -> tuple[Coded[str | None], dict[int, str]]:
        """Return the times of the rows as TubeMQ writes them, and why some cannot be written, by row."""
        if not self._has_times:
            return coding.constant(None, batch.num_rows), {}
        minutes = coding.coded_minutes(batch.column("timestamp"))
        texts = [self._minute(minute) for minute in minutes.values]
        errors = {
            code: f"its timestamp does not fit into yyyyMMddHHmm ({text})"
            for code, text in enumerate(texts)
            if isinstance(text, Exception)
        }
        good = tuple(None if isinstance(text, Exception) else text for text in texts)
        rows = enumerate(minutes.codes.tolist() if errors else ())
        return Coded(good, minutes.codes), {row: errors[code] for row, code in rows if code in errors}

    def _minute(self, minute: int | None) -> str | Exception | None:
        """Return a minute since the epoch as TubeMQ writes it, or why that is not possible."""
        try:
            if minute is None:
                return None
            zone = zoneinfo.ZoneInfo(self.message_time_zone)
            text = text_of(minute, zone)
            if is_repeated(minute, text, zone):
                return ValueError(
                    f"{zone.key} sets its clocks back then, and {text} would be read as an earlier time; "
                    "messageTimeZone=UTC has no such times"
                )
            return text
        except (ValueError, OverflowError, OSError) as error:  # Spark's years go up to 294247
            return error


def _texts_of(described: Described) -> Iterator[tuple[str, str | None]]:
    """Yield the names of texts that a row carries, and the texts."""
    attributes, message_type, _ = described
    yield "messageType", message_type
    for name, text in attributes or ():
        yield "attributes", name
        yield "attributes", text


def _no_texts(column: Coded[Any], texts: Callable[[Any], Iterable[tuple[str, str | None]]]) -> dict[int, str]:
    """Return the rows that have a text with bytes that are not UTF-8, and which of their columns it is in."""
    wrong = {
        code: f"its {name} has bytes that are not UTF-8"
        for code, value in enumerate(column.values)
        for name, text in texts(value)
        if text is not None and not coding.is_text(text)
    }
    return {
        row: wrong[code] for row, code in enumerate(column.codes.tolist() if wrong else ()) if code in wrong
    }


@functools.lru_cache
def _warn_of_repeated_hour(zone: str, hour: int) -> None:
    """Warn once an hour, which counts from 1970 on."""
    logger.warning(
        "clocks of %s were set back: readers take the time of writing for one of the hour before (hour %d "
        "since 1970); messageTimeZone=UTC has no such times",
        zone,
        hour,
    )


def _check_field(name: str, data_type: DataType) -> None:
    if name in ORIGIN:
        return
    column = WRITTEN.get(name)
    if column is None:
        raise OptionError(
            "TUBEMQ_SINK_UNKNOWN_COLUMN",
            column=name,
            suggestion=suggestion(name, WRITTEN),
            known=", ".join(WRITTEN),
        )
    if not column.accepts(data_type):
        # Spark casts a struct to text, without the names of its fields.
        is_nested = name == "value" and isinstance(data_type, ArrayType | MapType | StructType)
        raise OptionError(
            "TUBEMQ_SINK_WRONG_TYPE",
            column=name,
            given=data_type.simpleString(),
            expected=name_beside(data_type, column.expected),
            hint="make JSON of it with to_json(value)" if is_nested else "cast it",
        )
