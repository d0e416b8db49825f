"""Which columns a frame written to TubeMQ may have, and what a sender gets of them."""

import collections
import dataclasses
import datetime
import logging
import time
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from tubemq_spark.columns import ORIGIN, WRITTEN, suggestion
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.send_batch import Bools, BytesColumn, Coded, MessageHeader, SendBatch
from tubemq_spark.sink import coding
from tubemq_spark.sink.dead_letters import RefusedRow
from tubemq_spark.sink.repairs import Repairs
from tubemq_spark.sink.rows import row_name
from tubemq_spark.sink.uids import Described, TaskUids, row_uids

logger = logging.getLogger(__name__)

_NO_ATTRIBUTES: Final = (None, None, None)
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

    @property
    def have_no_ids(self) -> bool:
        """Whether no row can have an id of its own, among its attributes or beside them."""
        return self.names.isdisjoint({MESSAGE_UID_KEY, "attributes"})

    def refused(self, batch: pa.RecordBatch, first: int = 1) -> dict[int, ProduceError]:
        """Return the rows of a record batch that cannot be messages, counted from 0, and why.

        ``first`` is the number of the first row in its task.
        """
        found = np.flatnonzero(self._refused(batch)).tolist()
        return self._untimely(batch, first) | {
            row: self._refusal(batch.slice(row, 1), first + row) for row in found
        }

    def row(self, batch: pa.RecordBatch, row: int, number: int) -> RefusedRow:
        """Return a row of a record batch as it is; ``number`` is its number in its task."""
        one = batch.slice(row, 1)
        return RefusedRow(
            number,
            coding.bytes_column(one.column("value")).value(0),
            self.topic if self.topic is not None else one.column("topic")[0].as_py(),
            coding.bytes_column(one.column("key")).value(0) if "key" in self.names else None,
            dict(one.column("attributes")[0].as_py() or ()) if "attributes" in self.names else {},
        )

    def batches(
        self,
        batch: pa.RecordBatch,
        repairs: Repairs,
        first: int = 1,
        now: Callable[[], float] = time.time,
        stamp: TaskUids | None = None,
    ) -> Iterator[SendBatch]:
        """Yield a record batch's rows for a sender, those before the first row that cannot be a message.

        Our own source has a message's type and time among the attributes as well; here the columns of
        their own win. ``first`` is the number of the first row in its task. ``stamp`` makes ids for rows
        that have none.

        Raises:
            ProduceError: a row's value or topic is null, it names half a route, or its timestamp is beyond
                the year 9999. It is raised behind the rows before it, except for a timestamp.
        """
        times = self._times(batch, first)
        count = _first_set(self._refused(batch))
        if count:
            good = batch.slice(0, count)
            times = times._replace(codes=times.codes[:count])
            topics, described = self._topics(good), self._described(good, times)
            values, keys = coding.bytes_column(good.column("value")), self._bytes(good, "key")
            yield SendBatch(
                topics,
                values,
                self._headers(described, repairs, now),
                keys,
                self._routes(good),
                first,
                row_uids(self._bytes(good, MESSAGE_UID_KEY), described, topics, keys, values, stamp),
            )
        if count < batch.num_rows:
            raise self._refusal(batch.slice(count, 1), first + count)

    def _refused(self, batch: pa.RecordBatch) -> Bools:
        """Say which rows cannot be messages."""
        refused = coding.nulls(batch.column("value"))
        if self.topic is None:
            refused = refused | coding.nulls(batch.column("topic"))
        if self.names >= _ROUTE:
            refused |= coding.nulls(batch.column("brokerId")) != coding.nulls(batch.column("partition"))
        return refused

    def _refusal(self, batch: pa.RecordBatch, number: int) -> ProduceError:
        """Return why the only row of a batch cannot be a message."""
        value = coding.bytes_column(batch.column("value")).value(0)
        topic = self.topic if self.topic is not None else batch.column("topic")[0].as_py()
        if value is None:
            return ProduceError("TUBEMQ_SINK_NULL_VALUE", row=row_name(number), topic=topic)
        if topic is None:
            return ProduceError("TUBEMQ_SINK_NULL_TOPIC", row=row_name(number, value))
        return ProduceError(
            "TUBEMQ_SINK_HALF_NULL_ROUTE",
            row=row_name(number, value),
            topic=topic,
            broker=batch.column("brokerId")[0].as_py(),
            partition=batch.column("partition")[0].as_py(),
        )

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
        return Coded(tuple(None if pair[0] is None else pair for pair in named.values), named.codes)

    def _bytes(self, batch: pa.RecordBatch, name: str) -> BytesColumn | None:
        return coding.bytes_column(batch.column(name)) if name in self.names else None

    def _described(self, batch: pa.RecordBatch, times: Coded[str | None]) -> Coded[Described]:
        """Return attributes, type and time of the rows, as they have them."""
        return coding.combined(
            self._optional(batch, "attributes", coding.coded_maps),
            self._optional(batch, "messageType", coding.coded),
            times,
        )

    def _headers(
        self, columns: Coded[Described], repairs: Repairs, now: Callable[[], float]
    ) -> Coded[MessageHeader]:
        """Return type, time and attributes of the rows; rows that share all three share a header."""
        default_time = self._default_time(now())
        counts = np.bincount(columns.codes, minlength=len(columns.values)).tolist()
        headers = [
            self._header(repairs, count, default_time, *values)
            for values, count in zip(columns.values, counts, strict=True)
        ]
        return Coded(tuple(headers), columns.codes)

    def _header(
        self,
        repairs: Repairs,
        rows: int,
        default_time: str | None,
        attributes: list[tuple[str, str | None]] | None,
        message_type: str | None,
        row_time: str | None,
    ) -> MessageHeader:
        own, inner_type, inner_time = repairs.attributes(attributes, rows) if attributes else _NO_ATTRIBUTES
        if own and MESSAGE_UID_KEY in self.names:
            own.pop(MESSAGE_UID_KEY, None)
        text = inner_type if message_type is None else message_type
        with_time = self.message_time is not MessageTime.NONE
        return MessageHeader(
            own,
            text and repairs.message_type(text, rows),
            (row_time or inner_time or default_time) if with_time else None,
        )

    def _default_time(self, now_s: float) -> str | None:
        if self.message_time is not MessageTime.NOW:
            return None
        return _minute_text(int(now_s // 60), zoneinfo.ZoneInfo(self.message_time_zone))

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

    def _times(self, batch: pa.RecordBatch, first: int) -> Coded[str | None]:
        if not self._has_times:
            return coding.constant(None, batch.num_rows)
        minutes = coding.coded_minutes(batch.column("timestamp"))
        texts = [self._minute(minute) for minute in minutes.values]
        for code, text in enumerate(texts):
            if isinstance(text, Exception):
                raise _untimely(batch, _first_set(minutes.codes == code), first, text) from text
        return Coded(tuple(text for text in texts if not isinstance(text, Exception)), minutes.codes)

    def _untimely(self, batch: pa.RecordBatch, first: int) -> dict[int, ProduceError]:
        """Return the rows whose timestamps cannot be written."""
        if not self._has_times:
            return {}
        minutes = coding.coded_minutes(batch.column("timestamp"))
        found: dict[int, ProduceError] = {}
        for code, minute in enumerate(minutes.values):
            if isinstance(text := self._minute(minute), Exception):
                rows = np.flatnonzero(minutes.codes == code).tolist()
                found |= {row: _untimely(batch, row, first, text) for row in rows}
        return found

    def _minute(self, minute: int | None) -> str | Exception | None:
        """Return a minute since the epoch as TubeMQ writes it, or why that is not possible."""
        try:
            return None if minute is None else _minute_text(minute, zoneinfo.ZoneInfo(self.message_time_zone))
        except (ValueError, OverflowError, OSError) as error:  # Spark's years go up to 294247
            return error


def _untimely(batch: pa.RecordBatch, row: int, first: int, error: Exception) -> ProduceError:
    value = coding.bytes_column(batch.slice(row, 1).column("value")).value(0)
    what = f"the timestamp of row {row_name(first + row, value)} does not fit into yyyyMMddHHmm ({error})"
    return ProduceError("TUBEMQ_BAD_MESSAGE", what=what)


def _first_set(flags: Bools) -> int:
    """Return the first row with a flag; the number of rows when none has one."""
    return int(flags.argmax()) if flags.any() else len(flags)


def _minute_text(minute: int, zone: zoneinfo.ZoneInfo) -> str:
    """Format a minute since the epoch as TubeMQ's ``yyyyMMddHHmm``."""
    moment = datetime.datetime.fromtimestamp(minute * 60, zone)
    # Not strftime("%Y"): it writes the year 800 with three digits on some systems.
    return f"{moment.year:04d}{moment:%m%d%H%M}"


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
