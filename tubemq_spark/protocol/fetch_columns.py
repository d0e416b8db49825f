"""A fetch response as columns: where each message's parts lie in one buffer.

Protobuf parses the outer message and leaves its messages as bytes. TubeMQ's brokers write the four fields of
a message in one way (tags 08 10 1a 20 in this order, without gaps), so numpy reads the heads of all messages
at once; protobuf parses messages that are laid out differently. The columns are the same either way. They
hold positions and not values, so Arrow can copy the values without one Python object per message.
"""

import dataclasses
import zlib
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import Message, TopicPartition
from tubemq_spark.protocol import rpc, varints
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES, parse_attributes
from tubemq_spark.protocol.pb import broker_pb2

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows: TypeAlias = slice | Int64s
"""A range of rows, or their numbers."""

ABSENT: Final = -1
"""The value of a header field that the broker did not send; on failures, brokers send it themselves."""

_TAG_MESSAGE_ID: Final = 0x08
_TAG_CHECKSUM: Final = 0x10
_TAG_PAYLOAD: Final = 0x1A
_TAG_FLAG: Final = 0x20
_ATTRIBUTE_LENGTH_BYTES: Final = 4
_LEAST_MESSAGE_BYTES: Final = 8
"""Four fields with a tag and at least one byte each: no sound message is shorter."""
_CRC_MASK: Final = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class FetchHeader:
    """A fetch response without its messages (GetMessageResponseB2C)."""

    success: bool
    err_code: int
    err_msg: str
    current_offset: int
    """The index offset at which the read started; -1 if absent and on failures."""
    max_offset: int | None
    """Where the store ends; None on failures and from old brokers."""
    wait_ms: int
    """How long flow control asks to wait; only meaningful with result code 452."""
    data_lag: int
    """Bytes of messages from the read position to the store's end; -1 if absent and on failures."""
    require_slow: bool
    """Whether the broker asks a filtered consumer near the end to poll less often."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MessageColumns:
    """Messages as columns: row ``i``'s parts are ``data[start[i]:end[i]]``.

    ``data`` holds more than these parts, including bytes that belong to no message; slices share it.
    """

    data: bytes
    ordinals: Int64s
    """The row's place in the answer; damaged rows are left out, so numbers may be missing."""
    message_ids: Int64s
    value_start: Int64s
    value_end: Int64s
    attribute_start: Int64s
    """Where the text of the attributes (UTF-8) starts; equal to its end if there are none."""
    attribute_end: Int64s
    has_attributes: Bools

    def __len__(self) -> int:
        return len(self.message_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all values and attributes; ``len(data)`` is what the columns keep in memory."""
        values = self.value_end - self.value_start
        return int(values.sum() + (self.attribute_end - self.attribute_start).sum())

    def slice(self, start: int, end: int) -> Self:
        """Return the rows ``start <= i < end``, without copying."""
        return self.take(slice(start, end))

    def message(self, row: int) -> Message:
        """Return one row as a value.

        Raises:
            IndexError: the row does not exist.
        """
        value = self.data[self.value_start[row] : self.value_end[row]]
        attributes = None
        if self.has_attributes[row]:
            text = self.data[self.attribute_start[row] : self.attribute_end[row]]
            attributes = parse_attributes(text.decode(errors="replace"))
        return Message(value, attributes, int(self.message_ids[row]))

    def identity(self, row: int) -> tuple[int, bytes]:
        """Return what distinguishes one row from the others of its store."""
        return int(self.message_ids[row]), self.data[self.value_start[row] : self.value_end[row]]

    def take(self, rows: Rows) -> Self:
        """Return the given rows; ``data`` is shared."""
        return type(self)(
            self.data,
            self.ordinals[rows],
            self.message_ids[rows],
            self.value_start[rows],
            self.value_end[rows],
            self.attribute_start[rows],
            self.attribute_end[rows],
            self.has_attributes[rows],
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """Some records of a range: those of the partition with ``start <= offset < next``, in index bytes."""

    partition: TopicPartition
    start: int
    next: int
    columns: MessageColumns
    dense: bool
    """Whether row ``i`` has the offset ``start + 28 * columns.ordinals[i]``; otherwise rows have none."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Heads:
    """What precedes the payloads, and where the payloads are in a buffer."""

    message_ids: Int64s
    checksums: Int64s
    flags: Int64s
    payload_start: Int64s
    payload_end: Int64s


def decode_fetch(body: bytes) -> tuple[FetchHeader, MessageColumns, Int64s]:
    """Read the answer to a fetch: ``parse_fetch`` and ``decode_messages`` in one.

    Raises:
        RemoteProtocolError: the bytes are not such an answer, or a message lacks a required field.
    """
    header, messages = parse_fetch(body)
    return header, *decode_messages(messages)


def parse_fetch(body: bytes) -> tuple[FetchHeader, list[bytes]]:
    """Parse the answer to a fetch without its messages (BrokerServiceServer.getMessagesC2B).

    This is the cheap part of decoding, and all that the next request depends on.

    Raises:
        RemoteProtocolError: the bytes are not such an answer.
    """
    answer = rpc.parse_message(broker_pb2.RawGetMessageResponseB2C, body)
    # Checked before the list is made: two bytes of the answer can claim an empty message.
    if len(answer.messages) * _LEAST_MESSAGE_BYTES > len(body):
        raise RemoteProtocolError(
            "TUBEMQ_PROTOCOL_VIOLATION",
            what=f"{len(answer.messages)} messages in an answer of {len(body)} bytes lack required fields",
        )
    return _header(answer), list(answer.messages)


def _header(answer: broker_pb2.RawGetMessageResponseB2C) -> FetchHeader:
    return FetchHeader(
        success=answer.success,
        err_code=answer.errCode,
        err_msg=answer.errMsg,
        current_offset=answer.currOffset if answer.HasField("currOffset") else ABSENT,
        max_offset=answer.maxOffset if answer.HasField("maxOffset") else None,
        wait_ms=answer.minLimitTime if answer.HasField("minLimitTime") else ABSENT,
        data_lag=answer.currDataDlt if answer.HasField("currDataDlt") else ABSENT,
        require_slow=answer.requireSlow,
    )


def decode_messages(messages: list[bytes]) -> tuple[MessageColumns, Int64s]:
    """Decode the messages of a fetch.

    Returns:
        The sound messages, and the ordinals of the damaged ones, ascending: their checksum is not that of
        their payload, or their attributes do not fit into it.

    Raises:
        RemoteProtocolError: a message lacks a required field.
    """
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(sizes)
    data = b"".join((*messages, varints.PADDING))
    heads, regular = _read_heads(data, ends - sizes, ends)
    if not regular.all():
        data, heads = _with_parsed(data, heads, messages, np.flatnonzero(~regular))
    return _separate_damaged(data, heads)


def _read_heads(data: bytes, starts: Int64s, ends: Int64s) -> tuple[_Heads, Bools]:
    """Read the heads of all messages at once.

    Returns:
        The heads, and which of them are valid: those of messages that are laid out as brokers write them.
    """
    words = varints.Words(data)
    message_id, position, regular = words.read_field(_TAG_MESSAGE_ID, starts)
    checksum, position, laid_out = words.read_field(_TAG_CHECKSUM, position)
    regular &= laid_out
    size, payload_start, laid_out = words.read_field(_TAG_PAYLOAD, position)
    # A tag and at most five bytes: protobuf accepts no longer lengths, and the sum below cannot overflow.
    regular &= laid_out & (payload_start - position <= 6)
    payload_end = payload_start + np.where(regular, size, 0)
    flag, position, laid_out = words.read_field(_TAG_FLAG, payload_end)
    regular &= laid_out & (position == ends)
    # Negative int32 fields are sent as ten bytes, of which protobuf uses the lower half.
    checksum = checksum.astype(np.int32).astype(np.int64)
    return _Heads(message_id, checksum, flag, payload_start, payload_end), regular


def _with_parsed(data: bytes, heads: _Heads, messages: list[bytes], rows: Int64s) -> tuple[bytes, _Heads]:
    """Let protobuf parse the given rows; their payloads are appended to the data.

    Raises:
        RemoteProtocolError: a message does not parse or lacks a required field.
    """
    pieces = [data[: -len(varints.PADDING)]]
    end = len(pieces[0])
    for row in rows.tolist():
        message = rpc.parse_message(broker_pb2.TransferedMessage, messages[row])
        heads.message_ids[row] = message.messageId
        heads.checksums[row] = message.checkSum
        heads.flags[row] = message.flag
        heads.payload_start[row] = end
        end += len(message.payLoadData)
        heads.payload_end[row] = end
        pieces.append(message.payLoadData)
    return b"".join((*pieces, varints.PADDING)), heads


def _separate_damaged(data: bytes, heads: _Heads) -> tuple[MessageColumns, Int64s]:
    """Check every payload and find its parts; damaged rows are left out and returned separately."""
    length_end = heads.payload_start + _ATTRIBUTE_LENGTH_BYTES
    prefixed = (heads.flags & FLAG_ATTRIBUTES).astype(np.bool_)
    attribute_size = varints.Words(data).read_int32(heads.payload_start)
    sound = (_checksums(data, heads) == heads.checksums) & (
        ~prefixed | ((length_end <= heads.payload_end) & (attribute_size <= heads.payload_end - length_end))
    )
    has_attributes = prefixed & (attribute_size > 0)
    attribute_start = np.where(prefixed, length_end, heads.payload_start)
    attribute_end = attribute_start + np.where(has_attributes, attribute_size, 0)
    columns = MessageColumns(
        data,
        np.arange(len(sound)),
        heads.message_ids,
        attribute_end,
        heads.payload_end,
        attribute_start,
        attribute_end,
        has_attributes,
    )
    if sound.all():
        return columns, np.empty(0, np.int64)
    return columns.take(np.flatnonzero(sound)), np.flatnonzero(~sound)


def _checksums(data: bytes, heads: _Heads) -> Int64s:
    # One call per message is the most expensive part of decoding, but no vectorised form is as fast as zlib.
    crc32 = zlib.crc32
    view = memoryview(data)
    bounds = zip(heads.payload_start.tolist(), heads.payload_end.tolist(), strict=True)
    sums = [crc32(view[start:end]) for start, end in bounds]
    return np.fromiter(sums, np.int64, len(sums)) & _CRC_MASK
