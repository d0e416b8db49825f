"""What ``ReadRange`` streams, as bytes: those of any protobuf library, written and read with fewer copies.

Protobuf copies a field of bytes when it is set, when a message is put into another one, when that is
serialised or parsed, and each time the field is read. Most of a batch is one such field, its ``data``. So
that field is written behind the others by hand, and read as a view of what came.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

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
    message, data = batches.to_proto(batch)
    head = message.SerializeToString()
    field = _field(_DATA, len(data)) if data else b""
    return b"".join((_field(_BATCH, len(head) + len(field) + len(data)), head, field, data))


def parse(data: bytes) -> tuple[pb.ReadRangeResponse, memoryview]:
    """Return what was streamed, and the bodies of its batch, which the message itself is without."""
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
    """Return the number that stands somewhere, and where it ends."""
    number = 0
    for count, byte in enumerate(message[position : position + _LONGEST]):
        number |= (byte & ~_MORE) << 7 * count
        if not byte & _MORE:
            return number, position + count + 1
    raise MalformedMessageError("an event of a range ends within a number")


def _field(tag: int, size: int) -> bytes:
    """Return what stands before so many bytes."""
    written = bytearray([tag])
    while size >= _MORE:
        written.append(size & 0xFF | _MORE)
        size >>= 7
    written.append(size)
    return bytes(written)
