"""Bodies that are InLongMsgs: to Arrow, where each message in them is a row, or to messages.

``InLongBuilder`` is the option ``payload=inlong``; ``parse_inlong`` and Spark's functions need no source.

The rows of many bodies are built at once. Messages are not copied one by one: one copy in C takes them from
where they are, which is the bodies themselves, or what was decompressed. Each distinct text of attributes is
parsed once for a batch.

What a body becomes depends on its bytes and the mode alone: a task that is tried again gives the same rows.
"""

import dataclasses
import logging
import zoneinfo
from array import array
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tubemq_spark.errors import InLongMsgError
from tubemq_spark.options import ParseMode
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.inlong_msg import Buffer, InLongMsg, parse_attributes, unpack
from tubemq_spark.source.arrow import BatchBuilder, Pieces, gather, schema_of
from tubemq_spark.spark.columns import READ, UNPACKED

logger = logging.getLogger(__name__)


_OF_ROWS: Final = frozenset(name for name, column in UNPACKED.items() if column.unpacked)
"""The columns that differ among the rows of a body."""
_OF_NAMES: Final = ("topic", "brokerId", "partition", "messageId")
"""The columns that say where a body was."""


TARGET_ROWS: Final = 10_000


TARGET_BYTES: Final = 8 << 20


ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())


TIME: Final = pa.timestamp("us", "UTC")


@dataclasses.dataclass(frozen=True, slots=True)
class InLongMessage:
    """A message that InLong packed into the body of a TubeMQ message.

    For an example see ``parse_inlong``.
    """

    value: bytes
    """The message."""
    attributes: Mapping[str, str | None]
    """What InLong says of it, such as ``groupId``; a name without a value has None. Read-only."""
    time_ms: int | None
    """When the body was made (versions 1 to 3), or the time of its data (4), in ms since 1970 in UTC; None if
    it does not say."""
    index: int
    """Its place in the body, from 0 on."""


OnMalformed = Callable[[int, InLongMsgError], None]
"""What is done about a malformed body, given its number; it may raise."""


class Unpacked(NamedTuple):
    """Rows in the order of their bodies."""

    body: NDArray[np.int64]
    """For each row the number of the body it was in."""
    columns: dict[str, Callable[[], pa.Array]]
    """What builds each column."""
    nbytes: int
    """At least the bytes of all values and attributes."""


class InLongBuilder:
    """Turn fetched batches into record batches of the asked columns; as ``BatchBuilder``, with more rows."""

    def __init__(self, schema: pa.Schema, time_zone: zoneinfo.ZoneInfo, mode: ParseMode) -> None:
        self._schema = schema
        self._mode = mode
        names = dict.fromkeys(["value", *_OF_NAMES, *schema.names])
        bodies = schema_of(READ[name] for name in names if name in READ)
        self._bodies = BatchBuilder(bodies, time_zone)
        self._told = False

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be handed over."""
        return self._bodies.empty

    def add(self, fetched: FetchedBatch, *, exact_offsets: bool) -> Iterator[pa.RecordBatch]:
        """Take a fetched batch; yield what is worth handing to Spark now."""
        return self._unpacked(self._bodies.add(fetched, exact_offsets=exact_offsets))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        return self._unpacked(self._bodies.finish())

    def _unpacked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each message that is packed in the bodies of some batches."""
        for bodies in batches:

            def on_malformed(number: int, error: InLongMsgError, bodies: pa.RecordBatch = bodies) -> None:
                self._met(_name(bodies, number), error)

            for rows in unpack_bodies(bodies.column("value"), self._mode, on_malformed):
                yield from self._batches(bodies, rows)

    def _batches(self, bodies: pa.RecordBatch, rows: Unpacked) -> Iterator[pa.RecordBatch]:
        body = pa.array(rows.body)
        columns = [
            rows.columns[field.name]() if field.name in _OF_ROWS else bodies.column(field.name).take(body)
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        )
        # One body may hold millions of messages.
        for start in range(0, len(batch), 2 * TARGET_ROWS):
            yield batch.slice(start, 2 * TARGET_ROWS)

    def _met(self, name: str, error: InLongMsgError) -> None:
        """Fail with the name of a malformed body, or log it: the first of a task, since there may be many."""
        if self._mode is ParseMode.FAILFAST:
            raise InLongMsgError(error.condition, **{**error.parameters, "body": name}) from error
        if not self._told:
            self._told = True
            logger.warning(
                "%s is not a sound InLongMsg: %s. It is %s; so are others of this task, which are not logged",
                name,
                error.parameters["what"],
                "left out" if self._mode is ParseMode.DROPMALFORMED else "in the column _corrupt_record",
            )


def _name(bodies: pa.RecordBatch, number: int) -> str:
    topic, broker, partition, message = (bodies.column(name)[number].as_py() for name in _OF_NAMES)
    return f"The body of message {message} in {topic}/{broker}:{partition}"


def parse_inlong(body: bytes) -> list[InLongMessage]:
    """Return the messages in a body that is an InLongMsg of version 0 to 4, as InLong's data proxies send it.

    A body is taken whole or not at all. It may unpack to 128 MiB at most.

        for message in parse_inlong(record.value):
            print(message.index, message.time_ms, message.attributes, message.value)

    Args:
        body: the value of a TubeMQ message.

    Returns:
        The messages in their order; none if the body has none.

    Raises:
        InLongMsgError: the body is not an InLongMsg, or not a sound one.
    """
    packed = unpack(body, _decompress)
    messages: list[InLongMessage] = []
    for text, data, starts, ends in packed.sections:
        attributes = MappingProxyType(parse_attributes(text))
        messages += [
            InLongMessage(bytes(data[start:end]), attributes, packed.time_ms, index)
            for index, (start, end) in enumerate(zip(starts, ends, strict=True), len(messages))
        ]
    return messages


def unpack_bodies(bodies: pa.Array, mode: ParseMode, on_malformed: OnMalformed) -> Iterator[Unpacked]:
    """Yield the rows of some bodies; no rows for a null."""
    rows = _UnpackedRows(bodies)
    for number, start, end in _places(bodies):
        try:
            rows.add(number, unpack(rows.data, _decompress, start, end))
        except InLongMsgError as error:
            on_malformed(number, error)
            if mode is ParseMode.FAILFAST:
                raise
            if mode is ParseMode.PERMISSIVE:
                rows.add_malformed(number)
        if rows.count >= TARGET_ROWS or rows.nbytes >= TARGET_BYTES:
            yield rows.finish()
            rows = _UnpackedRows(bodies)
    if rows.count:
        yield rows.finish()


def _places(bodies: pa.Array) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each body that is not null, and where it lies in the array's buffer."""
    if not len(bodies):
        return
    borders = np.frombuffer(bodies.buffers()[1], np.int32, len(bodies) + 1, bodies.offset * 4).tolist()
    valid = bodies.is_valid().to_pylist() if bodies.null_count else [True] * len(bodies)
    for number, present in enumerate(valid):
        if present:
            yield number, borders[number], borders[number + 1]


def _decompress(data: Buffer, size: int) -> bytes:
    """Undo Snappy; see ``Decompress``."""
    try:
        decompressed: bytes = pa.decompress(data, size, "snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    return decompressed


class _Cuts(NamedTuple):
    """Messages to cut out of one buffer."""

    data: Buffer
    starts: "array[int]"
    ends: "array[int]"


class _UnpackedRows:
    """Rows on their way to columns."""

    def __init__(self, bodies: pa.Array) -> None:
        data = bodies.buffers()[2]
        self.data: Buffer = memoryview(b"" if data is None else data)
        self.count = 0
        self.nbytes = 0
        """Bytes of values and attributes, and of the lengths between them."""
        self._bodies = bodies
        self._numbers: list[int] = []
        """Of each body that has rows: its number, how many rows it has, and its time."""
        self._row_counts: list[int] = []
        self._times: list[int | None] = []
        self._malformed: list[int] = []
        """The rows that stand for malformed bodies."""
        self._texts: dict[str, int] = {}
        self._section_texts: list[int] = []
        """Of each section: which of the texts are its attributes, and how many rows it has."""
        self._section_counts: list[int] = []
        self._cuts: list[_Cuts] = []

    def add(self, number: int, message: InLongMsg) -> None:
        """Add what was in a body."""
        before = self.count
        for text, data, starts, ends in message.sections:
            self._add_section(text, len(starts))
            self.nbytes += ends[-1] - starts[0] + len(text) * len(starts)
            if self._cuts and self._cuts[-1].data is data:
                self._cuts[-1].starts.extend(starts)
                self._cuts[-1].ends.extend(ends)
            else:
                self._cuts.append(_Cuts(data, starts, ends))
        self._add_body(number, self.count - before, message.time_ms)

    def add_malformed(self, number: int) -> None:
        """Add a row for a malformed body."""
        self._malformed.append(self.count)
        self._cuts.append(_Cuts(self.data, array("q", [0]), array("q", [0])))
        self._add_section("", 1)
        self._add_body(number, 1, None)
        self.nbytes += self._bodies[number].as_buffer().size

    def finish(self) -> Unpacked:
        """Return all rows."""
        counts = np.array(self._row_counts, np.int64)
        body = np.repeat(np.array(self._numbers, np.int64), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return Unpacked(
            body,
            {
                "value": self._values,
                "inlongAttributes": self._attributes,
                "inlongTime": lambda: _repeated(self._times, counts, TIME),
                "inlongIndex": lambda: pa.array((np.arange(self.count) - first).astype(np.int32)),
                "_corrupt_record": lambda: self._corrupt(body),
            },
            self.nbytes,
        )

    def _add_section(self, attributes: str, count: int) -> None:
        self._section_texts.append(self._texts.setdefault(attributes, len(self._texts)))
        self._section_counts.append(count)
        self.count += count

    def _add_body(self, number: int, count: int, time_ms: int | None) -> None:
        self._numbers.append(number)
        self._row_counts.append(count)
        self._times.append(None if time_ms is None else time_ms * 1000)

    def _values(self) -> pa.Array:
        pieces = [
            Pieces(data, np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64))
            for data, starts, ends in self._cuts
        ]
        return self._without_malformed(gather(pieces))

    def _attributes(self) -> pa.Array:
        distinct = pa.array([list(parse_attributes(text).items()) for text in self._texts], ATTRIBUTES)
        which = np.repeat(np.array(self._section_texts, np.int64), self._section_counts)
        return self._without_malformed(distinct.take(pa.array(which)))

    def _corrupt(self, body: NDArray[np.int64]) -> pa.Array:
        if not self._malformed:
            return pa.nulls(self.count, pa.binary())
        return self._bodies.take(pa.array(body, mask=~self._is_malformed()))

    def _without_malformed(self, array: pa.Array) -> pa.Array:
        """Return a column with nulls in the rows of malformed bodies."""
        if not self._malformed:
            return array
        return array.take(pa.array(np.arange(self.count), mask=self._is_malformed()))

    def _is_malformed(self) -> NDArray[np.bool_]:
        flags = np.zeros(self.count, np.bool_)
        flags[self._malformed] = True
        return flags


def _repeated(values: list[Any], counts: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(values)), counts)))
