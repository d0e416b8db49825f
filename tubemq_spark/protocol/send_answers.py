"""Reads the answers to SendMessage requests off one connection.

Usual answers are read many at a time (``usual_send_answers``); all others go through the general decoders,
which also say what is wrong with those that make no sense. What an answer says besides the append offset is
read only for those who ask for it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import Int64s
from tubemq_spark.protocol.usual_send_answers import (
    FRAME_HEAD,
    LONGEST,
    SHORTEST,
    most_answers,
    read_send_answers,
    usual_messages,
)

_SUCCESS: Final = 200


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
        """Begin a connection; ``detailed``: whether the answers come with details, which costs time."""
        self._detailed = detailed
        self._rest = b""
        self._decoder = framing.FrameDecoder()

    def receive_data(self, data: bytes) -> Answers:
        """Take bytes from the broker and return the answers they complete.

        Raises:
            RemoteProtocolError: the bytes are not frames, an answer does not parse or is not one to a
                SendMessage, or it says success without a sound append offset.
        """
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
        if len(data) < FRAME_HEAD.size:
            return False
        token, _, chunk_count, length = FRAME_HEAD.unpack_from(data)
        return len(data) >= FRAME_HEAD.size + length or not _looks_usual(token, chunk_count, length)


def _read_usual(data: bytes, *, detailed: bool) -> tuple[Answers, int]:
    """Read what is usual; return where the first other or partial frame begins, too."""
    most = most_answers(data)
    serial_nos, offsets = np.empty(most, np.int64), np.empty(most, np.int64)
    position, count = read_send_answers(data, 0, serial_nos, offsets)
    details = _details(usual_messages(data, position)) if detailed else None
    return Answers(serial_nos[:count], offsets[:count], [], details), position


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
    offsets = np.array([message.appendOffset for message in stored], np.int64)
    return Answers(np.array(serial_nos, np.int64), offsets, failures, _details(stored) if detailed else None)


def _details(messages: Iterable[broker_pb2.SendMessageResponseB2P]) -> Details:
    told = [(message.messageId, message.appendTime) for message in messages]
    ids, times = np.array(told, np.int64).reshape(-1, 2).T
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
    return token == FRAME_TOKEN and chunk_count == 1 and SHORTEST <= length <= LONGEST


def _decode(frame: framing.Frame) -> broker_pb2.SendMessageResponseB2P | Refusal | rpc.Failure:
    answer = rpc.decode_answer(frame.serial_no, frame.stream)
    if isinstance(answer, rpc.Failure):
        return answer
    if answer.method != Method.SEND_MESSAGE:
        raise _violation(f"it answered method {answer.method} to a SendMessage")
    return _outcome(rpc.parse_message(broker_pb2.SendMessageResponseB2P, answer.body))


def _outcome(
    message: broker_pb2.SendMessageResponseB2P,
) -> broker_pb2.SendMessageResponseB2P | Refusal:
    if message.errCode != _SUCCESS:
        return Refusal(message.errCode, message.errMsg)
    offset = message.appendOffset if message.HasField("appendOffset") else -1
    if not message.success or offset < 0 or offset % INDEX_ENTRY_BYTES:
        raise _violation(f"it stored a message with success={message.success}, append offset {offset}")
    return message


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
