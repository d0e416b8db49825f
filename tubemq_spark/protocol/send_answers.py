"""Reads the answers to SendMessage requests off one connection, fast where they look as expected.

A sender gets one answer a message, all of one shape: a frame of one chunk whose three delimited parts
have constant heads (NettyProtocolEncoder and BrokerServiceServer.sendMessageP2B of TubeMQ). Those are
recognised by comparing bytes; everything else goes through the general decoders.
"""

import contextlib
import dataclasses
import struct
from typing import Final

from google.protobuf.message import DecodeError

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2

_SUCCESS: Final = 200
_INDEX_ENTRY_BYTES: Final = 28
_FRAME_HEAD: Final = struct.Struct(">Iiii")
_SHORTEST_USUAL: Final = 20
_LONGEST_USUAL: Final = 127
"""Above this the lengths of the parts take two bytes, and the general decoder is asked."""
_MESSAGE_AT: Final = 13
_HEADS: Final = {
    # RpcConnHeader{flag=1}, ResponseHeader{status=SUCCESS, protocolVer=3}, RspResponseBody{method=13, data=
    length: bytes((2, 8, 1, 4, 8, 0, 0x18, 3, length - 9, 8, Method.SEND_MESSAGE, 0x12, length - _MESSAGE_AT))
    # SendMessageResponseB2P{success=true, errCode=200, errMsg=
    + b"\x08\x01\x10\xc8\x01\x1a"
    for length in range(_SHORTEST_USUAL, _LONGEST_USUAL + 1)
}
"""What a usual stream of each length begins with: all fields that are required, up to the text."""
_NEVER: Final = b"no stream begins so"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with a result code other than success: the message was not stored."""

    code: int
    text: str


Answer = tuple[int, int | Refusal | rpc.Failure]
"""Serial number of the request, and the append offset of the stored message or why there is none."""


class SendAnswerReader:
    """Bytes of one connection in, answers out; broken for good after an error."""

    def __init__(self) -> None:
        self._rest = b""
        self._decoder = framing.FrameDecoder()

    def receive_data(self, data: bytes) -> list[Answer]:
        """Take bytes from the broker and return the answers they complete.

        Raises:
            RemoteProtocolError: the bytes are no frames, an answer does not parse or is none to a
                SendMessage, or it says success without a sound append offset.
        """
        answers: list[Answer] = []
        if self._decoder.mid_frame:
            self._read_any(data, answers)
            return answers
        if self._rest:
            data = self._rest + data
        position = self._read_usual(data, answers)
        self._rest = data[position:]
        if self._is_unusual(self._rest):
            data, self._rest = self._rest, b""
            self._read_any(data, answers)
        return answers

    def _read_usual(self, data: bytes, answers: list[Answer]) -> int:
        """Read frames as a broker normally sends them; return where the first other or partial one begins."""
        position = 0
        last_head = len(data) - _FRAME_HEAD.size
        unpack = _FRAME_HEAD.unpack_from
        parse = broker_pb2.SendMessageResponseB2P.FromString
        with contextlib.suppress(DecodeError):  # the general decoder says what is wrong with it
            while position <= last_head:
                token, serial_no, chunk_count, length = unpack(data, position)
                stream = position + 16
                after = stream + length
                if token != FRAME_TOKEN or chunk_count != 1 or after > len(data):
                    break
                if not data.startswith(_HEADS.get(length, _NEVER), stream):
                    break
                message = parse(data[stream + _MESSAGE_AT : after])
                offset = message.appendOffset
                if offset > 0 and not offset % _INDEX_ENTRY_BYTES and message.errCode == _SUCCESS:
                    answers.append((serial_no, offset))
                else:
                    answers.append((serial_no, _outcome(message)))
                position = after
        return position

    def _is_unusual(self, data: bytes) -> bool:
        """Whether these bytes are more than the beginning of a usual frame."""
        if len(data) < _FRAME_HEAD.size:
            return False
        token, _, chunk_count, length = _FRAME_HEAD.unpack_from(data)
        return len(data) >= _FRAME_HEAD.size + length or not _looks_usual(token, chunk_count, length)

    def _read_any(self, data: bytes, answers: list[Answer]) -> None:
        answers.extend((frame.serial_no, _decode(frame)) for frame in self._decoder.receive_data(data))


def _looks_usual(token: int, chunk_count: int, length: int) -> bool:
    return token == FRAME_TOKEN and chunk_count == 1 and _SHORTEST_USUAL <= length <= _LONGEST_USUAL


def _decode(frame: framing.Frame) -> int | Refusal | rpc.Failure:
    answer = rpc.decode_answer(frame.serial_no, frame.stream)
    if isinstance(answer, rpc.Failure):
        return answer
    if answer.method != Method.SEND_MESSAGE:
        raise _violation(f"it answered method {answer.method} to a SendMessage")
    return _outcome(rpc.parse_message(broker_pb2.SendMessageResponseB2P, answer.body))


def _outcome(message: broker_pb2.SendMessageResponseB2P) -> int | Refusal:
    if message.errCode != _SUCCESS:
        return Refusal(message.errCode, message.errMsg)
    offset = message.appendOffset if message.HasField("appendOffset") else -1
    if not message.success or offset < 0 or offset % _INDEX_ENTRY_BYTES:
        raise _violation(f"it stored a message with success={message.success}, append offset {offset}")
    return offset


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
