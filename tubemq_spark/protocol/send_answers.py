"""Reads the answers to SendMessage requests off one connection.

Usual answers are read many at a time (``usual_send_answers``); all others go through the general decoders,
which also say what is wrong with those that make no sense.
"""

import dataclasses
from typing import Final

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.usual_send_answers import FRAME_HEAD, LONGEST, SHORTEST, read_send_answers

_SUCCESS: Final = 200


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
            RemoteProtocolError: the bytes are not frames, an answer does not parse or is not one to a
                SendMessage, or it says success without a sound append offset.
        """
        answers: list[Answer] = []
        if self._decoder.mid_frame:
            self._read_any(data, answers)
            return answers
        if self._rest:
            data = self._rest + data
        self._rest = data[_read_usual(data, answers) :]
        if self._is_unusual(self._rest):
            data, self._rest = self._rest, b""
            self._read_any(data, answers)
        return answers

    def _is_unusual(self, data: bytes) -> bool:
        """Whether these bytes are more than the beginning of a usual frame."""
        if len(data) < FRAME_HEAD.size:
            return False
        token, _, chunk_count, length = FRAME_HEAD.unpack_from(data)
        return len(data) >= FRAME_HEAD.size + length or not _looks_usual(token, chunk_count, length)

    def _read_any(self, data: bytes, answers: list[Answer]) -> None:
        answers.extend((frame.serial_no, _decode(frame)) for frame in self._decoder.receive_data(data))


def _read_usual(data: bytes, answers: list[Answer]) -> int:
    """Read what is usual; return where the first other or partial frame begins."""
    serial_nos: list[int] = []
    offsets: list[int] = []
    position = read_send_answers(data, 0, serial_nos, offsets)
    answers.extend(zip(serial_nos, offsets, strict=True))
    return position


def _looks_usual(token: int, chunk_count: int, length: int) -> bool:
    return token == FRAME_TOKEN and chunk_count == 1 and SHORTEST <= length <= LONGEST


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
    if not message.success or offset < 0 or offset % INDEX_ENTRY_BYTES:
        raise _violation(f"it stored a message with success={message.success}, append offset {offset}")
    return offset


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
