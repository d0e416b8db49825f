"""Which columns a frame written to TubeMQ may have, and what a sender gets of them.

``SinkColumns`` makes ``CheckedRows`` of a record batch: its rows as messages, and which of them cannot be
messages. A sender takes bytes one behind the other, and repeated values told once (``coded``).
"""

import collections
import dataclasses
import functools
import itertools
import logging
import time
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import MESSAGE_UID_KEY, MSG_TIME_KEY, MSG_TYPE_KEY, excerpt
from tubemq_spark.offsets.message_time import is_repeated, text_of
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.send_batch import (
    Bools,
    BytesColumn,
    Coded,
    Int64s,
    MessageHeader,
    SendBatch,
    Value,
)
from tubemq_spark.sink.uids import Described, TaskUids, row_uids
from tubemq_spark.spark.columns import ORIGIN, WRITTEN, name_beside, suggestion

logger = logging.getLogger(__name__)


_ROUTE: Final = frozenset({"brokerId", "partition"})
_MINUTE_US: Final = 60_000_000
NO_BODY: Final = b"\0"
"""The body of a dead letter whose row has no value, or an empty one."""


def row_name(number: int, value: bytes | None = None) -> str:
    """Return words that let the user find a row: its number, its task and how its value begins."""
    shown = "" if value is None else f" ({excerpt(value)})"
    return f"{number} of {task_name()}{shown}"


def task_number() -> int:
    """Return the number of the task that runs here, which its repetitions have as well."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def task_name() -> str:
    """Return the name of the task that runs here, as Spark's own messages number it."""
    return "this task" if TaskContext.get() is None else f"task {task_number()}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """All rows of a record batch, one for one; only those that are not refused may be sent."""

    messages: SendBatch
    """A refused row may have a null value, a null topic or half a partition here."""
    refused: Bools
    unwritable: Mapping[int, str]
    """What else is wrong with rows, by their places; these are refused as well."""

    def refusal(self, row: int) -> ProduceError:
        """Return why a refused row cannot be a message."""
        messages = self.messages
        number, value = messages.first_row + row, messages.values.value(row)
        topic = cast("str | None", messages.topics.value(row))
        if value is None:
            return ProduceError("TUBEMQ_SINK_NULL_VALUE", row=row_name(number), topic=topic)
        name = row_name(number, value)
        if topic is None:
            return ProduceError("TUBEMQ_SINK_NULL_TOPIC", row=name)
        if row in self.unwritable:
            return ProduceError("TUBEMQ_BAD_MESSAGE", what=f"row {name}: {self.unwritable[row]}")
        broker, partition = (messages.partitions and messages.partitions.value(row)) or (None, None)
        return ProduceError(
            "TUBEMQ_SINK_HALF_NULL_ROUTE", row=name, topic=topic, broker=broker, partition=partition
        )


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
        topics = constant(self.topic, len(batch)) if self.topic is not None else coded(batch.column("topic"))
        described = combined(
            self._optional(batch, "attributes", coded_maps),
            self._optional(batch, "messageType", coded),
            times,
        )
        unwritable |= _no_texts(topics, lambda topic: [("topic", topic)])
        unwritable |= _no_texts(described, _texts_of)
        refused[list(unwritable)] = True
        values, keys = bytes_column(batch.column("value")), self._bytes(batch, "key")
        uids = row_uids(self._bytes(batch, MESSAGE_UID_KEY), described, topics, keys, values, stamp)
        # Rows that share attributes, type and time share a header.
        default_time = self._default_time(now())
        headers = tuple(self._header(default_time, *values) for values in described.values)
        headers_of_rows = Coded(headers, described.codes)
        messages = SendBatch(topics, values, headers_of_rows, keys, self._routes(batch), first, uids)
        return CheckedRows(messages, refused, unwritable)

    def _refused(self, batch: pa.RecordBatch) -> Bools:
        """Tell which rows cannot be messages; timestamps are not examined."""
        refused = nulls(batch.column("value")).copy()
        if self.topic is None:
            refused |= nulls(batch.column("topic"))
        if self.names >= _ROUTE:
            refused |= nulls(batch.column("brokerId")) != nulls(batch.column("partition"))
        return refused

    def _routes(self, batch: pa.RecordBatch) -> Coded[tuple[int, int] | None] | None:
        if not self.names >= _ROUTE:
            return None
        named = combined(coded(batch.column("brokerId")), coded(batch.column("partition")))
        return Coded(tuple(None if pair == (None, None) else pair for pair in named.values), named.codes)

    def _bytes(self, batch: pa.RecordBatch, name: str) -> BytesColumn | None:
        return bytes_column(batch.column(name)) if name in self.names else None

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
            return constant(None, batch.num_rows)
        return code(batch.column(name))

    def _times(self, batch: pa.RecordBatch) -> tuple[Coded[str | None], dict[int, str]]:
        """Return the times of the rows as TubeMQ writes them, and why some cannot be written, by row."""
        if "timestamp" not in self.names or self.message_time is MessageTime.NONE:
            return constant(None, batch.num_rows), {}
        minutes = coded_minutes(batch.column("timestamp"))
        texts = [self._minute(minute) for minute in minutes.values]
        errors = {
            code: f"its timestamp does not fit into yyyyMMddHHmm ({text})"
            for code, text in enumerate(texts)
            if isinstance(text, Exception)
        }
        good = tuple(None if isinstance(text, Exception) else text for text in texts)
        return Coded(good, minutes.codes), _by_row(errors, minutes)

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
        if text is not None and not is_text(text)
    }
    return _by_row(wrong, column)


def _by_row(errors: Mapping[int, str], column: Coded[Any]) -> dict[int, str]:
    """Return the errors of a column's values by the rows that have these."""
    codes = column.codes.tolist() if errors else ()
    return {row: errors[code] for row, code in enumerate(codes) if code in errors}


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


def constant(value: Value, rows: int) -> Coded[Value]:
    """Return a column of one value."""
    return Coded((value,), np.zeros(rows, np.int64))


def coded(column: pa.Array) -> Coded[Any]:
    """Return a column's values, each once and in the order of appearance; null is one of them."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return Coded(tuple(_values(encoded.dictionary)), _codes(encoded))


def is_text(text: str) -> bool:
    """Tell whether a text of ``coded`` or ``coded_maps`` is one: Spark's may have bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def coded_maps(column: pa.MapArray) -> Coded[Any]:
    """Return a column's maps as lists of pairs; those equal in all pairs and their order are told once.

    Arrow cannot compare maps, but texts. A map's text is that of its codes, so no two maps share one; except
    that null and a map without pairs do, and both are None.
    """
    pairs = pc.binary_join_element_wise(_code_texts(column.keys), _code_texts(column.items), ":")
    texts = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pairs), ",")
    codes = _codes(texts.dictionary_encode(null_encoding="encode"))
    _, first_rows = np.unique(codes, return_index=True)
    first = column.take(pa.array(first_rows))
    pairs_of_all = list(zip(_values(first.keys), _values(first.items), strict=True))
    bounds = itertools.pairwise(first.offsets.to_pylist())
    return Coded(tuple(pairs_of_all[start:end] or None for start, end in bounds), codes)


def coded_minutes(column: pa.TimestampArray) -> Coded[Any]:
    """Return a column of timestamps as minutes since the epoch."""
    moments = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    microseconds = moments.fill_null(0).to_numpy()
    return coded(pa.array(microseconds // _MINUTE_US, mask=nulls(column)))


def combined(*columns: Coded[Any]) -> Coded[tuple[Any, ...]]:
    """Return the combinations of values that columns have, each once."""
    numbers: Int64s = np.zeros(len(columns[0].codes), np.int64)
    for column in columns:
        numbers = numbers * len(column.values) + column.codes
    _, first_rows, codes = np.unique(numbers, return_index=True, return_inverse=True)
    return Coded(tuple(tuple(column.value(row) for column in columns) for row in first_rows), codes)


def bytes_column(column: pa.Array) -> BytesColumn:
    """Return a column of texts or bytes as bytes: Spark's texts may hold bytes that are not UTF-8."""
    values = column.cast(pa.large_binary())
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    return BytesColumn(
        b"" if data is None else memoryview(data).cast("B")[start:end],
        offsets - start,
        nulls(column) if column.null_count else None,
    )


def nulls(column: pa.Array) -> Bools:
    """Tell which values are null."""
    is_null: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return is_null


def _values(column: pa.Array) -> list[Any]:
    """Return values; of texts that are none, those of their bytes that are not UTF-8 are surrogates."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="surrogateescape") for text in raw]
    return values


def _codes(column: pa.DictionaryArray) -> Int64s:
    codes: Int64s = column.indices.to_numpy().astype(np.int64)
    return codes


def _code_texts(column: pa.Array) -> pa.Array:
    """Return a text for each value, equal for equal values."""
    return column.dictionary_encode(null_encoding="encode").indices.cast(pa.string())
