"""Fetched messages to Arrow: the only place that builds record batches of messages.

Fetches are collected until they are worth a record batch, which has a fixed cost. Values and attribute texts
are put together as they come, in C, and the other columns are built at the end for all fetches: each
distinct attribute text is parsed once, and what is the same in every row is made once and sliced. Attributes
mostly repeat from message to message, so runs of equal texts are looked for first; only texts that change
more often are hashed.

Pieces of buffers become one Arrow array (``BinaryColumn``), without one Python object per piece. Message ids
are cut out of texts of attributes in the same way (``split_uids``): an id makes every text another one. So
the ids are cut out first, where our sink puts them: one pair at the end. Anything else is left to the parser
of attributes, which takes any text.
"""

import functools
import logging
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tubemq_spark.model import INDEX_ENTRY_BYTES, MESSAGE_UID_KEY, MSG_TIME_KEY, MSG_TYPE_KEY, TopicPartition
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.protocol import payload, speedups
from tubemq_spark.protocol.fetch_columns import FetchedBatch, Int64s
from tubemq_spark.spark.columns import READ, Column

logger = logging.getLogger(__name__)


TARGET_ROWS: Final = 40_000
"""Four times as many as Spark's own batches: rows of 100 B cost Spark and us a tenth less CPU that way."""
TARGET_BYTES: Final = 8 << 20

_MINUTE_US: Final = 60_000_000
_ROWS_PER_RUN: Final = 64
_FEW_RUNS: Final = 16
"""With more runs than these, and more than one for so many rows, hashing is cheaper."""
_MAX_DISTINCT_TEXTS: Final = 20_000
_LONGEST_REMEMBERED: Final = 1_024
"""Bounds of the caches of parsed texts: attributes that are all distinct, or long, fill no task's memory."""


_UID_PREFIX: Final = f"{MESSAGE_UID_KEY}=".encode()


_SEPARATORS: Final = b"[,=]"


_COMMA: Final = ord(",")


_FIRST_BYTES: Final = 1 << 16


_FIRST_ROWS: Final = 1 << 10


Number = TypeVar("Number", np.uint8, np.int32)


class Pieces(NamedTuple):
    """The pieces ``data[start:end]``; they lie apart, in any order."""

    data: bytes | memoryview
    starts: Int64s
    ends: Int64s


class BinaryColumn:
    """Pieces on their way to binary arrays.

    They are copied at once: their bytes have just been read and checked, so the processor has them at hand,
    and the next answer of a broker can have the memory that they came in.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        """How long the pieces are together."""
        self._rows = 0
        self._values: NDArray[np.uint8] = np.empty(_FIRST_BYTES, np.uint8)
        self._borders: NDArray[np.int32] = np.zeros(_FIRST_ROWS, np.int32)
        """Where the first piece begins in the values, and where each one ends."""
        self._arrays: list[pa.Array] = []
        """Without the compiled twin, the pieces of each ``add``."""

    def add(self, pieces: Pieces) -> None:
        """Put pieces behind those that are here; 2 GiB in all at most."""
        data = pieces.data
        starts = np.ascontiguousarray(pieces.starts, np.int64)
        ends = np.ascontiguousarray(pieces.ends, np.int64)
        if speedups.compiled is None:
            self._arrays.append(_take_pieces(data, starts, ends))
            self.nbytes += int((ends - starts).sum())
            return
        rows = self._rows + len(starts)
        if rows >= len(self._borders):
            self._borders = _longer(self._borders, self._rows + 1, rows + 1)
        borders = self._borders[self._rows + 1 :]
        end = speedups.compiled.append(self._values, self.nbytes, borders, data, starts, ends)
        if end > len(self._values):
            self._values = _longer(self._values, self.nbytes, end)
            end = speedups.compiled.append(self._values, self.nbytes, borders, data, starts, ends)
        self._rows, self.nbytes = rows, end

    def finish(self) -> pa.Array:
        """Return all pieces as one array; the column is empty then."""
        if speedups.compiled is None:
            array = pa.concat_arrays(self._arrays) if self._arrays else pa.array([], pa.binary())
            self._arrays = []
        else:
            borders, values = self._borders[: self._rows + 1], self._values[: self.nbytes]
            buffers = [None, pa.py_buffer(borders), pa.py_buffer(values)]
            array = pa.Array.from_buffers(pa.binary(), self._rows, buffers)
            # The next pieces are probably as many as these.
            self._borders = _longer(borders[:1], 1, max(_FIRST_ROWS, len(borders)))
            self._values = _longer(values[:0], 0, max(_FIRST_BYTES, len(values)))
        self._rows = self.nbytes = 0
        return array


def gather(pieces: Iterable[Pieces]) -> pa.Array:
    """Return all pieces as one binary array."""
    column = BinaryColumn()
    for some in pieces:
        column.add(some)
    return column.finish()


def runs(texts: pa.Array, most: int) -> list[int] | None:
    """Return the rows that differ from the one before, the first row among them; at most so many.

    The texts have no nulls and begin where their buffers do. None when there are more such rows, or without
    the compiled twin: counting takes too long then.
    """
    if speedups.compiled is None:
        return None
    _, borders, data = texts.buffers()
    begins: list[int] | None = speedups.compiled.runs(data, borders, most)
    return begins


class Split(NamedTuple):
    """The parts of some texts; both have as many rows as these."""

    texts: pa.Array
    """The texts without ids."""
    uids: pa.Array
    """The ids; null where there is none."""


def split_uids(texts: pa.Array) -> Split | None:
    """Return texts of attributes and the ids at their ends; None when ids stand elsewhere, or none do."""
    if not len(texts) or _UID_PREFIX not in texts[0].as_py():
        return None
    # Takes longer to load than all of this package, and few messages have ids: imported where they are.
    import pyarrow.compute as pc

    places = pc.find_substring(texts, _UID_PREFIX).to_numpy().astype(np.int64)
    _, borders, buffer = texts.buffers()
    starts = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    starts, ends = starts[:-1], starts[1:]
    data = memoryview(buffer)
    without, later = places < 0, places > 0
    if (np.frombuffer(buffer, np.uint8)[(starts + places - 1)[later]] != _COMMA).any():
        return None  # the end of another name
    uids = gather([Pieces(data, np.where(without, ends, starts + places + len(_UID_PREFIX)), ends)])
    if pc.any(pc.match_substring_regex(uids, _SEPARATORS)).as_py():
        return None
    cuts = np.where(without, ends, starts + np.maximum(places - 1, 0))
    return Split(
        gather([Pieces(data, starts, cuts)]),
        pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), uids) if without.any() else uids,
    )


def _longer(array: NDArray[Number], used: int, least: int) -> NDArray[Number]:
    """Return an array that begins with the numbers used, and has room for a quarter more than the least."""
    longer = np.empty(least + least // 4, array.dtype)
    longer[:used] = array[:used]
    return longer


def _take_pieces(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> pa.Array:
    """Return pieces of a buffer as a binary array."""
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


_TYPES: Final[dict[str, pa.DataType]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
"""Arrow's types of columns, by the names that SQL has for them."""
_OF_MESSAGES: Final = {column.name: _TYPES[column.type_name] for column in READ.values()}


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of some columns: that of Spark's rows, but without metadata of fields."""
    return pa.schema([pa.field(column.name, _TYPES[column.type_name]) for column in columns])


class BatchBuilder:
    """Turn fetched batches into record batches of the asked columns."""

    def __init__(self, schema: pa.Schema, time_zone: zoneinfo.ZoneInfo) -> None:
        """Begin with nothing."""
        self._schema = schema
        self._attributes = _AttributeParser(time_zone)
        self._constants = _Constants()
        self._fetches: list[_Fetch] = []
        self._rows = 0
        self._values = BinaryColumn() if "value" in schema.names else None
        self._texts = BinaryColumn() if _OF_ATTRIBUTES.keys() & set(schema.names) else None

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be handed over."""
        return not self._fetches

    def add(self, fetched: FetchedBatch, *, exact_offsets: bool) -> Iterator[pa.RecordBatch]:
        """Take a fetched batch; yield what is worth handing to Spark now.

        ``exact_offsets``: whether rows of dense batches get their offsets. In a store that partitions share,
        it depends on the borders of fetches which batches are dense, and a task that is tried again must give
        the same rows: then no row gets one.
        """
        columns = fetched.columns
        if not len(columns):
            return
        first_offset = fetched.start if exact_offsets and fetched.dense else None
        self._fetches.append(_Fetch(fetched.partition, columns.ordinals, columns.message_ids, first_offset))
        self._rows += len(columns)
        size = 0
        if self._values is not None:
            self._values.add(Pieces(columns.data, columns.value_start, columns.value_end))
            size += self._values.nbytes
        if self._texts is not None:
            self._texts.add(Pieces(columns.data, columns.attribute_start, columns.attribute_end))
            size += self._texts.nbytes
        if self._rows >= TARGET_ROWS or size >= TARGET_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if not self._fetches:
            return
        rows = _FetchedRows(
            self._fetches,
            self._values and self._values.finish(),
            self._texts and self._texts.finish(),
            self._attributes,
            self._constants,
            whole_texts="attributes" in self._schema.names,
        )
        self._fetches, self._rows = [], 0
        columns = [_cast(rows.column(field.name), field.type) for field in self._schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _Fetch(NamedTuple):
    """Rows of one fetch, all of one partition."""

    partition: TopicPartition
    ordinals: Int64s
    message_ids: Int64s
    first_offset: int | None
    """The offset of ordinal 0; None where rows have no offset."""


class _Attributes(NamedTuple):
    """What an attribute text says."""

    pairs: dict[str, str]
    time_us: int | None
    """The message time in microseconds since the epoch."""


class _AttributeParser:
    """Parse attribute texts, each distinct one once, and each distinct minute once."""

    def __init__(self, time_zone: zoneinfo.ZoneInfo) -> None:
        self._time_zone = time_zone
        self._parsed: dict[bytes, _Attributes] = {}
        self._minutes: dict[str, int | None] = {}
        self._warned = False

    def parse(self, text: bytes) -> _Attributes:
        """Return what a text says."""
        parsed = self._parsed.get(text)
        if parsed is None:
            pairs = payload.parse_attributes(text.decode(errors="replace"))
            parsed = _Attributes(pairs, self._microseconds(pairs.get(MSG_TIME_KEY)))
            if len(text) <= _LONGEST_REMEMBERED:
                _remember(self._parsed, text, parsed)
        return parsed

    def _microseconds(self, text: str | None) -> int | None:
        if text is None:
            return None
        if text not in self._minutes:
            _remember(self._minutes, text, self._read_minute(text))
        return self._minutes[text]

    def _read_minute(self, text: str) -> int | None:
        """Read ``yyyyMMddHHmm``; other producers may have written anything there, so wrong text is null."""
        minutes = minutes_of(text, self._time_zone)
        if minutes is None:
            return None
        if not minutes.certain and not self._warned:
            self._warned = True
            logger.warning(
                "message time %s may mean two times, since clocks of %s are set back or forward then: the "
                "column timestamp has the first of them, here and in all such messages",
                text,
                self._time_zone.key,
            )
        return minutes.first * _MINUTE_US


def _remember(cache: dict[Any, Any], key: object, value: object) -> None:
    if len(cache) >= _MAX_DISTINCT_TEXTS:
        cache.clear()
    cache[key] = value


class _Constants:
    """The last array of each column whose value rarely changes."""

    def __init__(self) -> None:
        self._arrays: dict[str, tuple[object, pa.Array]] = {}

    def repeat(self, name: str, value: object, kind: pa.DataType, count: int) -> pa.Array:
        """Return a value so many times; at most twice as many are made, and those because it comes again.

        A row costs what it weighs: one value may have 1 MiB.
        """
        last, array = self._arrays.get(name, (None, None))
        if array is None or last != value or len(array) < count:
            spare = 2 * len(array) if array is not None and last == value else 0
            array = pa.repeat(pa.scalar(value, kind), max(count, spare))
            self._arrays[name] = value, array
        return array.slice(0, count)


class _FetchedRows:
    """Fetches that become one record batch, and what several columns take from them."""

    def __init__(
        self,
        fetches: Sequence[_Fetch],
        values: pa.Array,
        texts: pa.Array,
        parser: _AttributeParser,
        constants: _Constants,
        *,
        whole_texts: bool,
    ) -> None:
        self._fetches = fetches
        self._values = values
        """Each row's value; None where no column needs it."""
        self._texts = texts
        """Each row's text of attributes, blank without any; None where no column needs it."""
        self._parser = parser
        self._constants = constants
        self._whole_texts = whole_texts
        """Whether a column shows all attributes, ids among them."""

    def column(self, name: str) -> pa.Array:
        """Return a column of its usual type."""
        if name in _OF_PARTITIONS:
            return self._column_of_partitions(name)
        if name == MESSAGE_UID_KEY and self._split is not None:
            return _texts_of(self._split.uids)
        if name in _OF_ATTRIBUTES:
            return self._column_of_attributes(name)
        match name:
            case "offset":
                return self._offsets()
            case "messageId":
                return pa.array(np.concatenate([fetch.message_ids for fetch in self._fetches]))
        return self._values

    @functools.cached_property
    def _count(self) -> int:
        """How many rows there are."""
        return sum(len(fetch.ordinals) for fetch in self._fetches)

    @functools.cached_property
    def _runs(self) -> list[int] | None:
        """Where runs of rows with equal texts begin; None where there are many, or counting takes long."""
        return runs(self._texts, _FEW_RUNS + self._count // _ROWS_PER_RUN)

    @functools.cached_property
    def _split(self) -> Split | None:
        """The texts and the ids that were at their ends; None where the parser finds them in the texts."""
        return None if self._whole_texts or self._runs is not None else split_uids(self._texts)

    @functools.cached_property
    def _attributes(self) -> tuple[list[_Attributes | None], pa.Array]:
        """Some attributes, None for a message without any, and for each row which of them it has."""
        if self._runs is not None:
            begins = np.array(self._runs, np.int64)
            which = np.repeat(np.arange(len(begins)), np.diff(begins, append=self._count))
            return self._parsed(self._texts[row].as_py() for row in self._runs), pa.array(which)
        texts = (self._split.texts if self._split else self._texts).dictionary_encode()
        return self._parsed(texts.dictionary.to_pylist()), texts.indices

    def _column_of_attributes(self, name: str) -> pa.Array:
        distinct, indices = self._attributes
        value, kind = _OF_ATTRIBUTES[name], _OF_MESSAGES[name]
        values = [None if attributes is None else value(attributes) for attributes in distinct]
        if len(values) == 1:
            return self._constants.repeat(name, values[0], kind, self._count)
        return pa.array(values, kind).take(indices)

    def _column_of_partitions(self, name: str) -> pa.Array:
        value, kind = _OF_PARTITIONS[name], _OF_MESSAGES[name]
        if len({fetch.partition for fetch in self._fetches}) == 1:
            return self._constants.repeat(name, value(self._fetches[0].partition), kind, self._count)
        return pa.concat_arrays(
            [
                pa.repeat(pa.scalar(value(fetch.partition), kind), len(fetch.ordinals))
                for fetch in self._fetches
            ]
        )

    def _offsets(self) -> pa.Array:
        offsets = [(fetch.first_offset or 0) + INDEX_ENTRY_BYTES * fetch.ordinals for fetch in self._fetches]
        unknown = [fetch.first_offset is None for fetch in self._fetches]
        mask = np.repeat(unknown, [len(some) for some in offsets]) if any(unknown) else None
        return pa.array(np.concatenate(offsets), pa.int64(), mask)

    def _parsed(self, texts: Iterable[bytes]) -> list[_Attributes | None]:
        return [self._parser.parse(text) if text else None for text in texts]


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # Only a cast that is needed pays for the import of pyarrow.compute.
    return column if column.type == kind else column.cast(kind)


def _texts_of(column: pa.Array) -> pa.Array:
    """Return bytes as text; other producers may have written bytes that are none."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if text is None else text.decode(errors="replace") for text in column.to_pylist()]
        return pa.array(decoded, pa.string())


_OF_PARTITIONS: Final[dict[str, Callable[[TopicPartition], object]]] = {
    "topic": lambda partition: partition.topic,
    "brokerId": lambda partition: partition.broker_id,
    "partition": lambda partition: partition.partition_id,
}
"""The columns that have one value for each partition."""
_OF_ATTRIBUTES: Final[dict[str, Callable[[_Attributes], object]]] = {
    "timestamp": lambda attributes: attributes.time_us,
    "messageType": lambda attributes: attributes.pairs.get(MSG_TYPE_KEY),
    "attributes": lambda attributes: list(attributes.pairs.items()),
    MESSAGE_UID_KEY: lambda attributes: attributes.pairs.get(MESSAGE_UID_KEY),
}
"""The columns that are read from the texts of attributes."""
