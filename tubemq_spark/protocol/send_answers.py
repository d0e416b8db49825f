"""Reads the answers to SendMessage requests off one connection.

A sender gets one answer per message, and on one connection long runs of them are of one shape: a frame of
one chunk, the same heads, the same fields, the same length (NettyProtocolEncoder and
BrokerServiceServer.sendMessageP2B of TubeMQ). The compiled twin looks at each of these byte by byte; the
Python twin compares all before the text and parses the message. What is unusual for the compiled twin is left
to the Python one, and what is for that to the general decoders, which say what is wrong with answers that
make no sense. What an answer says besides the append offset is handed on only to readers that ask for it.
"""

import contextlib
import dataclasses
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import framing, rpc, speedups
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import Int64s

_SUCCESS: Final = 200  # SendMessageResponseB2P.errCode (2)
_FRAME_HEAD: Final = struct.Struct(">Iiii")
"""Token, serial number, number of chunks, and the length of the first chunk."""
_SHORTEST: Final = 20  # _MESSAGE_AT, _BEGINNING, and the length of an errMsg (3)
_LONGEST: Final = 127
"""Lengths of a chunk that is read here; above, the lengths of its parts take two bytes."""
_MESSAGE_AT: Final = 13  # RpcConnHeader 3 bytes, ResponseHeader 5, RspResponseBody up to its data 5
_BEGINNING: Final = b"\x08\x01\x10\xc8\x01\x1a"
"""SendMessageResponseB2P{success=true, errCode=200, errMsg="""
_HEADS: Final = {
    # RpcConnHeader{flag=1}, ResponseHeader{status=SUCCESS, protocolVer=3}, RspResponseBody{method=13, data=
    length: bytes((2, 8, 1, 4, 8, 0, 0x18, 3, length - 9, 8, Method.SEND_MESSAGE, 0x12, length - _MESSAGE_AT))
    + _BEGINNING
    for length in range(_SHORTEST, _LONGEST + 1)
}
"""What the chunk of each length begins with: all fields that are required, up to the text."""
_NEVER: Final = b"no chunk begins so"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with a result code other than success: the message was not stored."""

    code: int
    text: str


class Details(NamedTuple):
    """What brokers say about stored messages besides their offsets; all columns are of one length."""

    message_ids: Int64s
    """As the broker made them: positive; 0 where it did not tell."""
    append_times: Int64s
    """When the broker took each message: milliseconds since 1970 by its clock; 0 where it did not tell."""


class Answers(NamedTuple):
    """What a broker has answered, each part in the order of the answers."""

    serial_nos: Int64s
    """Those of the requests whose messages are stored."""
    offsets: Int64s
    """Their append offsets."""
    failures: list[tuple[int, Refusal | rpc.Failure]]
    """Serial numbers of the others, and why their messages are not stored."""
    details: Details | None = None
    """More about the stored messages, for readers that ask for it."""


class SendAnswerReader:
    """Bytes of one connection in, answers out; broken for good after an error."""

    def __init__(self, *, detailed: bool = False) -> None:
        """Begin a connection; ``detailed``: whether the answers come with details."""
        self._detailed = detailed
        self._rest = b""
        self._decoder = framing.FrameDecoder()

    def receive_data(self, data: bytes) -> Answers:
        """Take bytes from the broker and return the answers they complete."""
        if self._decoder.mid_frame:
            return self._unusual(data)
        if self._rest:
            data = self._rest + data
        usual, position = _read_usual(data, detailed=self._detailed)
        self._rest = data[position:]
        if not self._is_unusual(self._rest):
            return usual
        data, self._rest = self._rest, b""
        return _joined(usual, self._unusual(data))

    def _unusual(self, data: bytes) -> Answers:
        return _answers(self._decoder.receive_data(data), detailed=self._detailed)

    def _is_unusual(self, data: bytes) -> bool:
        """Whether these bytes are more than the beginning of a usual frame."""
        if len(data) < _FRAME_HEAD.size:
            return False
        token, _, chunk_count, length = _FRAME_HEAD.unpack_from(data)
        return len(data) >= _FRAME_HEAD.size + length or not _looks_usual(token, chunk_count, length)


def _read_usual(data: bytes, *, detailed: bool) -> tuple[Answers, int]:
    """Read what is usual; return where the first other or partial frame begins, too."""
    columns = columns_for(data)
    position, count = read_send_answers(data, 0, *columns)
    serial_nos, offsets, *details = (column[:count] for column in columns)
    return Answers(serial_nos, offsets, [], Details(*details) if detailed else None), position


def _answers(frames: Sequence[framing.Frame], *, detailed: bool) -> Answers:
    serial_nos: list[int] = []
    stored: list[broker_pb2.SendMessageResponseB2P] = []
    failures: list[tuple[int, Refusal | rpc.Failure]] = []
    for frame in frames:
        outcome = _decode(frame)
        if isinstance(outcome, Refusal | rpc.Failure):
            failures.append((frame.serial_no, outcome))
        else:
            serial_nos.append(frame.serial_no)
            stored.append(outcome)
    offsets = np.array([message.appendOffset for message in stored], np.int64)  # index bytes
    return Answers(np.array(serial_nos, np.int64), offsets, failures, _details(stored) if detailed else None)


def _details(messages: Iterable[broker_pb2.SendMessageResponseB2P]) -> Details:
    pairs = [(message.messageId, message.appendTime) for message in messages]
    ids, times = np.array(pairs, np.int64).reshape(-1, 2).T
    return Details(ids, times)


def _joined(first: Answers, second: Answers) -> Answers:
    details = None
    if first.details is not None and second.details is not None:
        details = Details(*map(np.concatenate, zip(first.details, second.details, strict=True)))
    return Answers(
        np.concatenate((first.serial_nos, second.serial_nos)),
        np.concatenate((first.offsets, second.offsets)),
        first.failures + second.failures,
        details,
    )


def _looks_usual(token: int, chunk_count: int, length: int) -> bool:
    return token == FRAME_TOKEN and chunk_count == 1 and _SHORTEST <= length <= _LONGEST


def _decode(frame: framing.Frame) -> broker_pb2.SendMessageResponseB2P | Refusal | rpc.Failure:
    answer = rpc.decode_answer(frame.serial_no, frame.stream)
    if isinstance(answer, rpc.Failure):
        return answer
    # RspResponseBody.method says how `data` is read; another one means that the broker took our request for
    # another.
    if answer.method != Method.SEND_MESSAGE:
        raise _violation(f"it answered method {answer.method} to a SendMessage")
    return _outcome(rpc.parse_message(broker_pb2.SendMessageResponseB2P, answer.body))


def _outcome(
    message: broker_pb2.SendMessageResponseB2P,
) -> broker_pb2.SendMessageResponseB2P | Refusal:
    # Java's producers decide by errCode (2) and not by `success` (1).
    if message.errCode != _SUCCESS:
        return Refusal(message.errCode, message.errMsg)
    offset = message.appendOffset if message.HasField("appendOffset") else -1
    if not message.success or offset < 0 or offset % INDEX_ENTRY_BYTES:  # an index entry has 28 bytes
        raise _violation(f"it stored a message with success={message.success}, append offset {offset}")
    return message


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)


def read_send_answers(data: bytes, position: int, *columns: Int64s) -> tuple[int, int]:
    """Read answers that say where a message is stored, up to the first that is unusual or not all there.

    The columns are those of ``columns_for``: they take the serial numbers, the append offsets (each a
    positive multiple of 28), the message ids and the append times. Returned are the position behind the last
    answer read, and how many were read.
    """
    count = 0
    if speedups.compiled is not None:
        position, count = speedups.compiled.read_send_answers(data, position, *columns)
        if position == len(data):
            return position, count
    position, more = _read_in_python(data, position, *(column[count:] for column in columns))
    return position, count + more


def columns_for(data: bytes) -> Sequence[Int64s]:
    """Return room for all usual answers that there can be in bytes from the broker."""
    return list(np.empty((4, len(data) // (_FRAME_HEAD.size + _SHORTEST)), np.int64))


def _read_in_python(
    data: bytes, position: int, serial_nos: Int64s, offsets: Int64s, message_ids: Int64s, append_times: Int64s
) -> tuple[int, int]:
    last_head = len(data) - _FRAME_HEAD.size
    unpack = _FRAME_HEAD.unpack_from
    parse = broker_pb2.SendMessageResponseB2P.FromString
    count = 0
    with contextlib.suppress(DecodeError):  # the general decoder says what is wrong with it
        while position <= last_head:
            token, serial_no, chunk_count, length = unpack(data, position)
            chunk = position + _FRAME_HEAD.size
            after = chunk + length
            if token != FRAME_TOKEN or chunk_count != 1 or after > len(data):
                break
            if not data.startswith(_HEADS.get(length, _NEVER), chunk):
                break
            message = parse(data[chunk + _MESSAGE_AT : after])
            offset = message.appendOffset
            # 0 may also be an appendOffset (7) that is absent; the general way asks HasField.
            if offset <= 0 or offset % INDEX_ENTRY_BYTES or message.errCode != _SUCCESS:
                break
            serial_nos[count] = serial_no
            offsets[count] = offset
            message_ids[count], append_times[count] = message.messageId, message.appendTime
            count += 1
            position = after
    return position, count
