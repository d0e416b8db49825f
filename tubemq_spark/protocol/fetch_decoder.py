"""Decodes the answer to a fetch; compiled where that was built, otherwise by protobuf and numpy.

Both ways give the same columns. The compiled one reads only answers that are laid out as TubeMQ's brokers
write them, and leaves all others, and so all errors, to the Python one.

There protobuf parses the outer message and leaves its messages as bytes. Brokers write the four fields of a
message in one way (tags 08 10 1a 20 in this order, without gaps), so numpy reads the heads of all messages at
once; protobuf parses messages that are laid out differently.
"""

import dataclasses
import zlib
from typing import Final, NamedTuple

import numpy as np

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import rpc, speedups, varints
from tubemq_spark.protocol.fetch_columns import Bools, Int64s, MessageColumns
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES
from tubemq_spark.protocol.pb import broker_pb2

ABSENT: Final = -1
"""The value of a header field that the broker did not send; on failures, brokers send it themselves."""

_TAG_MESSAGE_ID: Final = 0x08
_TAG_CHECKSUM: Final = 0x10
_TAG_PAYLOAD: Final = 0x1A
_TAG_FLAG: Final = 0x20
_ATTRIBUTE_LENGTH_BYTES: Final = 4
_LEAST_MESSAGE_BYTES: Final = 8
"""Four fields with a tag and at least one byte each: no sound message is shorter."""
_SHORT_BYTES: Final = 400
"""Of messages that are shorter on average, copies are cheaper than views."""
_CRC_MASK: Final = 0x7FFFFFFF
_DAMAGED: Final = b"\x01"
"""A damaged message among the marks of ``scan_fetch``."""
_NO_ROWS: Final = np.empty(0, np.int64)
_ORDINALS: Final = np.arange(1 << 14)
"""The numbers of the messages of nearly every answer."""
_ORDINALS.setflags(write=False)


class FetchHeader(NamedTuple):
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
class _Heads:
    """What precedes the payloads, and where the payloads are in a buffer."""

    message_ids: Int64s
    checksums: Int64s
    flags: Int64s
    payload_start: Int64s
    payload_end: Int64s


class EncodedMessages:
    """The messages of a fetch, counted and not decoded."""

    def __init__(self, body: bytes | memoryview, count: int, parsed: list[bytes] | None = None) -> None:
        """Take an answer, how many messages are in it, and these if protobuf has parsed the answer."""
        self._body = body
        self._count = count
        self._parsed = parsed

    def __len__(self) -> int:
        return self._count

    def decode(self) -> tuple[MessageColumns, Int64s]:
        """Return the sound messages, and the ordinals of the damaged ones, ascending.

        These have a checksum that is not that of their payload, or attributes that do not fit into it.
        """
        if self._parsed is None and speedups.compiled is not None:
            columns = speedups.compiled.scan_fetch(self._body, self._count)
            if columns is not None:
                return _columns_of(self._body, self._count, *columns)
        return decode_messages(self._messages())

    def _messages(self) -> list[bytes]:
        return list(_parse_answer(self._body).messages) if self._parsed is None else self._parsed


def parse_fetch(body: bytes | memoryview) -> tuple[FetchHeader, EncodedMessages]:
    """Parse the answer to a fetch without its messages (BrokerServiceServer.getMessagesC2B).

    This is the cheap part of decoding, and all that the next request depends on.
    """
    if speedups.compiled is not None:
        outline = speedups.compiled.outline_fetch(body)
        if outline is not None:
            *head, count = outline
            return FetchHeader(*head), EncodedMessages(body, count)
    answer = _parse_answer(body)
    messages = list(answer.messages)
    return header_of(answer), EncodedMessages(body, len(messages), messages)


def _parse_answer(body: bytes | memoryview) -> broker_pb2.RawGetMessageResponseB2C:
    answer = rpc.parse_message(broker_pb2.RawGetMessageResponseB2C, body)
    # Checked before a list is made: two bytes of the answer can claim an empty message.
    if len(answer.messages) * _LEAST_MESSAGE_BYTES > len(body):
        raise RemoteProtocolError(
            "TUBEMQ_PROTOCOL_VIOLATION",
            what=f"{len(answer.messages)} messages in an answer of {len(body)} bytes lack required fields",
        )
    return answer


def header_of(answer: broker_pb2.RawGetMessageResponseB2C) -> FetchHeader:
    """Return the head of an answer that protobuf has parsed."""
    return FetchHeader(
        success=answer.success,
        err_code=answer.errCode,
        err_msg=answer.errMsg,
        # Absent and -1 mean the same here: older brokers leave fields out, others send -1 on failures.
        current_offset=answer.currOffset if answer.HasField("currOffset") else ABSENT,
        # maxOffset (10) is newer than the C++ client's proto files; a broker sends it on success only.
        max_offset=answer.maxOffset if answer.HasField("maxOffset") else None,
        wait_ms=answer.minLimitTime if answer.HasField("minLimitTime") else ABSENT,
        data_lag=answer.currDataDlt if answer.HasField("currDataDlt") else ABSENT,
        require_slow=answer.requireSlow,
    )


def _columns_of(
    body: bytes | memoryview, count: int, numbers: bytes, damaged: bytes
) -> tuple[MessageColumns, Int64s]:
    """Return the messages that ``scan_fetch`` found as columns, and the rows of those that are damaged."""
    message_ids, attribute_start, value_start, value_end = np.frombuffer(numbers, np.int64).reshape(4, count)
    columns = MessageColumns(
        body,
        _ORDINALS[:count] if count <= len(_ORDINALS) else np.arange(count),
        message_ids,
        value_start,
        value_end,
        attribute_start,
        value_start,
        attribute_start < value_start,
    )
    if _DAMAGED not in damaged:
        return columns, _NO_ROWS
    return _without_damaged(columns, np.frombuffer(damaged, np.bool_))


def _without_damaged(columns: MessageColumns, damaged: Bools) -> tuple[MessageColumns, Int64s]:
    """Return the messages that are not damaged, and the rows of the others."""
    if not damaged.any():
        return columns, _NO_ROWS
    return columns.take(np.flatnonzero(~damaged)), np.flatnonzero(damaged)


def decode_messages(messages: list[bytes]) -> tuple[MessageColumns, Int64s]:
    """Decode the messages of a fetch as ``EncodedMessages.decode`` does, by numpy."""
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(sizes)
    data = b"".join((*messages, varints.PADDING))
    heads, regular = _read_heads(data, ends - sizes, ends)
    if not regular.all():
        data, heads = _with_parsed(data, heads, messages, np.flatnonzero(~regular))
    return _separate_damaged(data, heads)


def _read_heads(data: bytes, starts: Int64s, ends: Int64s) -> tuple[_Heads, Bools]:
    """Read the heads of all messages at once."""
    words = varints.Words(data)
    # TransferedMessage, all four required and written by number: messageId (1), checkSum (2), payLoadData
    # (3), flag (4).
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
    """Parse rows with protobuf; their payloads are appended to the data."""
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
    # As DataConverterUtil.convertMessage: the sum first, then whether the attributes fit. Java skips a
    # damaged message without a word; here its ordinal is returned, and the loss policy decides.
    sound = (_checksums(data, heads) == heads.checksums) & (
        ~prefixed | ((length_end <= heads.payload_end) & (attribute_size <= heads.payload_end - length_end))
    )
    # attrLen of 0 or below: the body follows the four bytes, and there are no attributes.
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
    return _without_damaged(columns, ~sound)


def _checksums(data: bytes, heads: _Heads) -> Int64s:
    # One call per message is the most expensive part of decoding, but no vectorised form is as fast as zlib.
    crc32 = zlib.crc32
    payloads = data if len(data) < _SHORT_BYTES * len(heads.payload_start) else memoryview(data)
    bounds = zip(heads.payload_start.tolist(), heads.payload_end.tolist(), strict=True)
    sums = [crc32(payloads[start:end]) for start, end in bounds]
    return np.fromiter(sums, np.int64, len(sums)) & _CRC_MASK
