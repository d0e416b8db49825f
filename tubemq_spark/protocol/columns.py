"""A fetch response as columns: where each message's parts lie in one buffer.

The outer message is parsed by protobuf with its messages left as bytes. TubeMQ's brokers write the four
fields of a message in one way (tags 08 10 1a 20 in this order, the lengths close up), so numpy reads the
heads of all messages at once; a message laid out in another way is parsed by protobuf like any other. Both
ways give the same columns. Positions and not values are returned, so Arrow can take them without a Python
object a message.
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
"""A range of rows, or their places."""

ABSENT: Final = -1
"""What the header says where the broker sent nothing; brokers send it themselves on failures."""

_TAG_MESSAGE_ID: Final = 0x08
_TAG_CHECKSUM: Final = 0x10
_TAG_PAYLOAD: Final = 0x1A
_TAG_FLAG: Final = 0x20
_ATTRIBUTE_LENGTH_BYTES: Final = 4
_LEAST_MESSAGE_BYTES: Final = 8
"""Four fields of a tag and at least one byte each: no sound message is shorter."""
_CRC_MASK: Final = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class FetchHeader:
    """A fetch response without its messages (GetMessageResponseB2C)."""

    success: bool
    err_code: int
    err_msg: str
    current_offset: int
    """Index offset at which the read started; -1 when absent and on failures."""
    max_offset: int | None
    """Where the store ends; None on failures and from old brokers."""
    wait_ms: int
    """How long flow control asks to wait, only meaningful with result code 452."""
    data_lag: int
    """Bytes of messages behind the store's end; -1 when absent and on failures."""
    require_slow: bool
    """Whether a filtered consumer near the end is asked to poll less often."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MessageColumns:
    """Messages as columns: row ``i``'s parts are ``data[start[i]:end[i]]``.

    ``data`` holds more than the parts, among it bytes that belong to no message; slices share it.
    """

    data: bytes
    ordinals: Int64s
    """The row's place in the fetched batch; damaged rows are left out, so numbers may be skipped."""
    message_ids: Int64s
    value_start: Int64s
    value_end: Int64s
    attribute_start: Int64s
    """Where the attributes' text (UTF-8) starts; equal to its end where there are none."""
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
            IndexError: there is no such row.
        """
        value = self.data[self.value_start[row] : self.value_end[row]]
        attributes = None
        if self.has_attributes[row]:
            text = self.data[self.attribute_start[row] : self.attribute_end[row]]
            attributes = parse_attributes(text.decode(errors="replace"))
        return Message(value, attributes, int(self.message_ids[row]))

    def identity(self, row: int) -> tuple[int, bytes]:
        """Return what tells one row apart from the others of its store."""
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
    """What precedes the payloads, and where the payloads lie in a buffer."""

    message_ids: Int64s
    checksums: Int64s
    flags: Int64s
    payload_start: Int64s
    payload_end: Int64s


def decode_fetch(body: bytes) -> tuple[FetchHeader, MessageColumns, Int64s]:
    """Read the answer to a fetch: ``parse_fetch`` and ``decode_messages`` in one.

    Raises:
        RemoteProtocolError: the bytes are no such answer, or a message lacks a required field.
    """
    header, messages = parse_fetch(body)
    return header, *decode_messages(messages)


def parse_fetch(body: bytes) -> tuple[FetchHeader, list[bytes]]:
    """Take the answer to a fetch apart as far as its messages (BrokerServiceServer.getMessagesC2B).

    This is the cheap part of decoding, and all that the next request depends on.

    Raises:
        RemoteProtocolError: the bytes are no such answer.
    """
    answer = rpc.parse_message(broker_pb2.RawGetMessageResponseB2C, body)
    # Asked before the list is made: two bytes of the answer can claim a message of none.
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
        The sound messages, and the places in the batch of damaged ones, ascending: their checksum differs
        from their payload's, or their attributes do not fit into it.

    Raises:
        RemoteProtocolError: a message lacks a required field.
    """
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(sizes)
    data = b"".join((*messages, varints.PADDING))
    heads, regular = _read_heads(data, ends - sizes, ends)
    if not regular.all():
        data, heads = _with_parsed(data, heads, messages, np.flatnonzero(~regular))
    return _take_sound(data, heads)


def _read_heads(data: bytes, starts: Int64s, ends: Int64s) -> tuple[_Heads, Bools]:
    """Read the heads of all messages at once.

    Returns:
        The heads, and which of them are right: those of messages laid out as brokers write them.
    """
    words = varints.Words(data)
    message_id, position, regular = words.read_field(_TAG_MESSAGE_ID, starts)
    checksum, position, laid_out = words.read_field(_TAG_CHECKSUM, position)
    regular &= laid_out
    size, payload_start, laid_out = words.read_field(_TAG_PAYLOAD, position)
    # A tag and at most five bytes: protobuf takes no longer lengths, and the sum below cannot overflow.
    regular &= laid_out & (payload_start - position <= 6)
    payload_end = payload_start + np.where(regular, size, 0)
    flag, position, laid_out = words.read_field(_TAG_FLAG, payload_end)
    regular &= laid_out & (position == ends)
    # Negative int32 fields travel as ten bytes, of which protobuf takes the lower half.
    checksum = checksum.astype(np.int32).astype(np.int64)
    return _Heads(message_id, checksum, flag, payload_start, payload_end), regular


def _with_parsed(data: bytes, heads: _Heads, messages: list[bytes], rows: Int64s) -> tuple[bytes, _Heads]:
    """Let protobuf parse the given rows; their payloads are put behind the others'.

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


def _take_sound(data: bytes, heads: _Heads) -> tuple[MessageColumns, Int64s]:
    """Check every payload and lay out its parts; damaged rows are named and left out."""
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
    # A call a message is the most expensive part of decoding, but no vectorised form comes near zlib.
    crc32 = zlib.crc32
    view = memoryview(data)
    bounds = zip(heads.payload_start.tolist(), heads.payload_end.tolist(), strict=True)
    sums = [crc32(view[start:end]) for start, end in bounds]
    return np.fromiter(sums, np.int64, len(sums)) & _CRC_MASK
