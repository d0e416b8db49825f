"""Fetched messages as they travel: their parts one behind the other, as Arrow wants them.

Columns of numbers are fields of bytes, little-endian, so that neither side touches single numbers.

What ``ReadRange`` streams are bytes as any protobuf library writes them, with fewer copies. Protobuf copies a
field of bytes when it is set, when a message is put into another one, when that is serialised or parsed, and
each time the field is read. Most of a batch is one such field, its ``data``. So that field is written behind
the others by hand, and read as a view of what came.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import FetchedBatch, Int64s, MessageColumns
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

INT32: Final = np.dtype("<i4")  # RecordBatch.borders, and MessageBatch's codes
INT64: Final = np.dtype("<i8")  # BytesColumn.borders, message_ids, ordinals
FLAG: Final = np.dtype("u1")  # has_attributes and nulls: a byte each


class MalformedMessageError(ValueError):
    """A message of the peer contradicts itself; its reader says which peer that is."""


def pack(numbers: NDArray[Any], kind: np.dtype[Any]) -> bytes:
    """Return numbers as bytes."""
    return np.ascontiguousarray(numbers, kind).tobytes()


def unpack(data: bytes, kind: np.dtype[Any], count: int, what: str) -> NDArray[Any]:
    """Return the numbers of a field."""
    if len(data) != kind.itemsize * count:
        raise MalformedMessageError(
            f"{what} has {len(data)} bytes for {count} numbers of {kind.itemsize} bytes"
        )
    return np.frombuffer(data, kind)


def ascending(borders: NDArray[Any], size: int, what: str) -> NDArray[np.int64]:
    """Return the borders between pieces of a field that has so many bytes, as int64."""
    wide = borders.astype(np.int64)
    if len(wide) == 0 or wide[0] < 0 or wide[-1] > size or (wide[1:] < wide[:-1]).any():
        raise MalformedMessageError(f"the borders of {what} do not ascend from 0 to {size} at most")
    return wide


def codes(data: bytes, count: int, values: int, what: str) -> NDArray[np.int64]:
    """Return the codes of a column that has so many different values; -1 stands for none."""
    numbers = unpack(data, INT32, count, what).astype(np.int64)
    if count and not (numbers.min() >= -1 and numbers.max() < values):
        raise MalformedMessageError(f"{what} has codes beyond its {values} values")
    return numbers


_FLAGS: Final = 2
"""A flag is 0 or 1."""


def to_proto(batch: FetchedBatch) -> tuple[pb.RecordBatch, bytes]:
    """Return some records of a range as a message, and apart from it its ``data``.

    Which partition they are of is known from the call.
    """
    columns, count = batch.columns, len(batch.columns)
    proto = pb.RecordBatch(
        start=batch.start,
        next=batch.next,  # RecordBatch has all sound records with start <= offset < next
        dense=batch.dense,  # then ordinal i has the offset start + 28 * i
        count=count,
        message_ids=pack(columns.message_ids, INT64),  # little-endian, as all integers in fields of bytes
    )
    if batch.bytes_behind is not None:
        proto.bytes_behind = batch.bytes_behind
    pieces = [(columns.value_start, columns.value_end)]
    if columns.has_attributes.any():
        pieces.append((columns.attribute_start, columns.attribute_end))
        if not columns.has_attributes.all():  # left out if all or none have any
            proto.has_attributes = pack(columns.has_attributes, FLAG)
    proto.borders, data = _gather(columns.data, pieces)  # the first count + 1 fit an Arrow binary column
    if not np.array_equal(columns.ordinals, np.arange(count)):  # left out for 0, 1, 2 and so on
        proto.ordinals = pack(columns.ordinals, INT64)
    return proto, data


def from_proto(message: pb.RecordBatch, data: bytes | memoryview, partition: TopicPartition) -> FetchedBatch:
    """Return the records of a message, of which ``data`` is apart."""
    count = message.count
    if message.next < message.start:
        raise MalformedMessageError(f"a batch ends at {message.next}, before {message.start}")
    borders, with_attributes = _borders(message, len(data))
    values, texts = borders[: count + 1], borders[count:] if with_attributes else None
    marks = unpack(message.has_attributes, FLAG, count, "has_attributes") if message.has_attributes else None
    if marks is None:
        has_attributes = np.full(count, with_attributes)
    elif not with_attributes or (marks >= _FLAGS).any():
        raise MalformedMessageError(
            "has_attributes does not fit the borders, or has other bytes than 0 and 1"
        )
    else:
        has_attributes = marks.astype(np.bool_)
    columns = MessageColumns(
        data=data,
        ordinals=_ordinals(message),
        message_ids=unpack(message.message_ids, INT64, count, "message_ids"),
        value_start=values[:-1],
        value_end=values[1:],
        attribute_start=values[:-1] if texts is None else texts[:-1],
        attribute_end=values[:-1] if texts is None else texts[1:],
        has_attributes=has_attributes,
    )
    behind = message.bytes_behind if message.HasField("bytes_behind") else None
    return FetchedBatch(partition, message.start, message.next, columns, message.dense, behind)


def _borders(message: pb.RecordBatch, size: int) -> tuple[Int64s, bool]:
    """Return the borders in ``data``, and whether those of attributes are among them."""
    count = message.count
    with_attributes = count > 0 and len(message.borders) == INT32.itemsize * (2 * count + 1)
    expected = 2 * count + 1 if with_attributes else count + 1  # attribute texts begin where bodies end
    borders = unpack(message.borders, INT32, expected, "borders")
    return ascending(borders, size, "a batch's data"), with_attributes


def _ordinals(message: pb.RecordBatch) -> Int64s:
    if not message.ordinals:
        return np.arange(message.count, dtype=np.int64)
    ordinals = unpack(message.ordinals, INT64, message.count, "ordinals")
    if (ordinals < 0).any() or (np.diff(ordinals) <= 0).any():
        raise MalformedMessageError("the ordinals of a batch do not ascend")
    return ordinals


def _gather(data: bytes | memoryview, pieces: list[tuple[Int64s, Int64s]]) -> tuple[bytes, bytes]:
    """Return the borders of pieces that are put one behind the other, and the pieces."""
    starts, ends = (np.concatenate(places, dtype=np.int64) for places in zip(*pieces, strict=True))
    if speedups.compiled is not None:
        borders, joined = speedups.compiled.gather(data, starts, ends)
        return borders, joined
    sums = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=sums[1:])
    view = memoryview(data)
    texts = b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    return pack(sums, INT32), texts


_LENGTH: Final = 2
"""The wire type of bytes and messages: a length, and so many bytes."""
_FIXED: Final = {1: 8, 5: 4}
"""The wire types of numbers of a fixed size, in bytes."""
_VARINT: Final = 0
_MORE: Final = 0x80
"""The bit of a varint's byte that says that another one follows."""
_LONGEST: Final = 10
"""Bytes of the longest varint."""
_BATCH: Final = pb.ReadRangeResponse.BATCH_FIELD_NUMBER << 3 | _LENGTH
_DATA: Final = pb.RecordBatch.DATA_FIELD_NUMBER << 3 | _LENGTH


def batch_to_bytes(batch: FetchedBatch) -> bytes:
    """Return a serialised ``ReadRangeResponse`` with some records."""
    message, data = to_proto(batch)
    head = message.SerializeToString()
    field = _field(_DATA, len(data)) if data else b""
    return b"".join((_field(_BATCH, len(head) + len(field) + len(data)), head, field, data))


def parse_event(data: bytes) -> tuple[pb.ReadRangeResponse, memoryview]:
    """Return a streamed message without the bodies of its batch, and those bodies."""
    event, bodies = pb.ReadRangeResponse(), memoryview(b"")
    try:
        for tag, field, value in _fields(memoryview(data)):
            if tag == _BATCH:
                head, bodies = _without_data(value)
                event.batch.CopyFrom(pb.RecordBatch.FromString(head))  # RecordBatch without field 6
            else:
                event.MergeFromString(bytes(field))  # Loss or Waiting
    except DecodeError as error:
        raise MalformedMessageError(f"an event of a range cannot be parsed: {error}") from error
    return event, bodies


def _without_data(batch: memoryview) -> tuple[bytes, memoryview]:
    head, data = [], memoryview(b"")
    for tag, field, value in _fields(batch):
        if tag == _DATA:
            data = value
        else:
            head.append(field)
    return b"".join(head), data


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield each field's tag, all of it, and what stands behind its tag, without the length if it has one."""
    position = 0
    while position < len(message):
        tag, value = _varint(message, position)
        kind = tag & 7
        if kind == _LENGTH:
            size, value = _varint(message, value)
            end = value + size
        elif kind == _VARINT:
            end = _varint(message, value)[1]
        elif kind in _FIXED:
            end = value + _FIXED[kind]
        else:
            raise MalformedMessageError(f"an event of a range has a field of the wire type {kind}")
        if end > len(message):
            raise MalformedMessageError("an event of a range ends within a field")
        yield tag, message[position:end], message[value:end]
        position = end


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the varint at a position of a message, and where it ends."""
    number = 0
    for count, byte in enumerate(message[position : position + _LONGEST]):
        number |= (byte & ~_MORE) << 7 * count
        if not byte & _MORE:
            return number, position + count + 1
    raise MalformedMessageError("an event of a range ends within a number")


def _field(tag: int, size: int) -> bytes:
    """Return the tag and the length of a field of so many bytes."""
    written = bytearray([tag])
    while size >= _MORE:
        written.append(size & 0xFF | _MORE)
        size >>= 7
    written.append(size)
    return bytes(written)
