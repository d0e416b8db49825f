"""Fetched messages to Arrow: the only place that builds record batches for Spark.

Columns are built for a whole fetch at once: values are one ``take`` over the fetched bytes, and
attributes are parsed once for each distinct text of a range. Small fetches are put together, since a
record batch has a fixed cost (about 10 000 rows or 8 MiB a batch are best).
"""

import datetime
import functools
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import payload
from tubemq_spark.protocol.fetch_columns import FetchedBatch

TARGET_ROWS: Final = 10_000
TARGET_BYTES: Final = 8 << 20

_MINUTE_DIGITS: Final = len("yyyyMMddHHmm")
_MAX_DISTINCT_TEXTS: Final = 20_000
"""Bound of the parsed-attributes cache: all-distinct attributes must not fill a task's memory."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's own Arrow schema: it compares the first batch of a task with it for equality."""
    return to_arrow_schema(schema, timezone="UTC")


class BatchBuilder:
    """Turn fetched batches into record batches of the asked columns."""

    def __init__(self, schema: StructType, time_zone: zoneinfo.ZoneInfo) -> None:
        """Begin with nothing.

        Args:
            schema: the columns to build.
            time_zone: in which message times are written.
        """
        self._schema = arrow_schema(schema)
        self._attributes = _AttributeParser(time_zone)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be handed over."""
        return not self._pending

    def add(self, fetched: FetchedBatch, *, exact_offsets: bool) -> Iterator[pa.RecordBatch]:
        """Take a fetched batch; yield what is worth handing to Spark now.

        Args:
            fetched: records of one partition.
            exact_offsets: whether rows of dense batches get their offsets. In a store that partitions
                share, it depends on the borders of fetches which batches are dense, and a task that is
                tried again must give the same rows: then no row gets one.
        """
        if len(fetched.columns) == 0:
            return
        first_offset = fetched.start if exact_offsets and fetched.dense else None
        rows = _Rows(fetched, self._attributes, first_offset)
        arrays = [_column(field, rows) for field in self._schema]
        self._pending.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._pending_rows += len(fetched.columns)
        self._pending_bytes += fetched.columns.nbytes
        if self._pending_rows >= TARGET_ROWS or self._pending_bytes >= TARGET_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if not self._pending:
            return
        if len(self._pending) == 1:
            yield self._pending[0]
        else:
            yield from pa.Table.from_batches(self._pending).combine_chunks().to_batches()
        self._pending = []
        self._pending_rows = self._pending_bytes = 0


class _AttributeParser:
    """Parse attribute texts, each distinct one once."""

    def __init__(self, time_zone: zoneinfo.ZoneInfo) -> None:
        self._time_zone = time_zone
        self._parsed: dict[bytes, tuple[dict[str, str], int | None]] = {}

    def parse(self, text: bytes) -> tuple[dict[str, str], int | None]:
        """Return the attributes and the message time in microseconds since the epoch."""
        parsed = self._parsed.get(text)
        if parsed is None:
            if len(self._parsed) >= _MAX_DISTINCT_TEXTS:
                self._parsed.clear()
            attributes = payload.parse_attributes(text.decode(errors="replace"))
            parsed = attributes, self._microseconds(attributes.get(payload.MSG_TIME_KEY))
            self._parsed[text] = parsed
        return parsed

    def _microseconds(self, text: str | None) -> int | None:
        """Read ``yyyyMMddHHmm``; other producers may have written anything there, so wrong text is null."""
        if text is None or len(text) != _MINUTE_DIGITS or not (text.isascii() and text.isdigit()):
            return None
        try:
            moment = datetime.datetime.strptime(text, "%Y%m%d%H%M").replace(tzinfo=self._time_zone)
        except ValueError:
            return None
        return int(moment.timestamp()) * 1_000_000


class _Rows:
    """A fetched batch and what several columns take from it."""

    def __init__(self, fetched: FetchedBatch, parser: _AttributeParser, first_offset: int | None) -> None:
        self.partition = fetched.partition
        self.columns = fetched.columns
        self.count = len(fetched.columns)
        self.first_offset = first_offset
        self._parser = parser

    @functools.cached_property
    def attributes(self) -> list[tuple[dict[str, str], int | None] | None]:
        """Attributes and message time a row; None where the message has none."""
        view = memoryview(self.columns.data)
        parse = self._parser.parse
        starts, ends = self.columns.attribute_start.tolist(), self.columns.attribute_end.tolist()
        return [
            parse(bytes(view[start:end])) if end > start else None
            for start, end in zip(starts, ends, strict=True)
        ]


def _value(rows: _Rows) -> pa.Array:
    return _gather(rows.columns.data, rows.columns.value_start, rows.columns.value_end)


def _gather(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    """Return ``data[start:end]`` for every pair, as binary; the pieces lie apart, in any order."""
    # One binary array over the whole buffer whose odd elements are the gaps between the pieces, then a
    # take of the even ones: a copy in C instead of a Python slice per row. Its borders must ascend.
    places = np.arange(0, 2 * len(starts), 2)
    if (starts[1:] < ends[:-1]).any():
        # An empty piece may start where another one does, and comes first.
        order = np.lexsort((ends, starts))
        starts, ends = starts[order], ends[order]
        places[order] = places.copy()
    borders = np.empty(2 * len(starts), dtype=np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    everything = pa.Array.from_buffers(
        pa.binary(), len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )
    return everything.take(pa.array(places))


def _topic(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.partition.topic), rows.count)


def _broker_id(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.partition.broker_id, pa.int32()), rows.count)


def _partition(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.partition.partition_id, pa.int32()), rows.count)


def _offset(rows: _Rows) -> pa.Array:
    if rows.first_offset is None:
        return pa.nulls(rows.count, pa.int64())
    return pa.array(rows.first_offset + INDEX_ENTRY_BYTES * rows.columns.ordinals)


def _message_id(rows: _Rows) -> pa.Array:
    return pa.array(rows.columns.message_ids)


def _timestamp(rows: _Rows) -> pa.Array:
    return pa.array([row and row[1] for row in rows.attributes], pa.timestamp("us", "UTC"))


def _message_type(rows: _Rows) -> pa.Array:
    return pa.array([row and row[0].get(payload.MSG_TYPE_KEY) for row in rows.attributes], pa.string())


def _attribute_map(rows: _Rows) -> pa.Array:
    pairs = [None if row is None else list(row[0].items()) for row in rows.attributes]
    return pa.array(pairs, pa.map_(pa.string(), pa.string()))


def _column(field: pa.Field, rows: _Rows) -> pa.Array:
    array = _COLUMN_BUILDERS[field.name](rows)
    return array if array.type == field.type else array.cast(field.type)


_COLUMN_BUILDERS: Final[dict[str, Callable[[_Rows], pa.Array]]] = {
    "value": _value,
    "topic": _topic,
    "brokerId": _broker_id,
    "partition": _partition,
    "offset": _offset,
    "messageId": _message_id,
    "timestamp": _timestamp,
    "messageType": _message_type,
    "attributes": _attribute_map,
}
