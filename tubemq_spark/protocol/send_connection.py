"""One connection that sends messages, without its socket: frames of messages out, outcomes of answers in.

**States of a message.** ``send`` puts the messages of one run into a *flight*, under consecutive serial
numbers; each of them is then *in flight*, until it is

- *answered*: ``receive_data`` tells its outcome, once and with the run it belongs to, or
- *given up* by ``give_up`` or ``give_up_all``; an answer that comes later is passed over.

**Invariants.** Serial numbers count up from 1 and go on, as Java's int does, from the largest to the
smallest; those of one flight are consecutive. Inside, a message has a *number*, which does not wrap: an
answer is to the last number before ``_next`` whose lowest 32 bits are those of its serial number.
``_flights`` has the flights of which a message is in flight, by their first number and in the order of
sending. ``_firsts`` has these numbers, ascending, and perhaps those of flights that have ended.
``_in_flight`` counts messages. A connection that has raised is broken: its owner gives everything up and
makes another one.

**Answers.** A sender gets one answer per message, and on one connection long runs of them are of one shape: a
frame of one chunk, the same heads, the same fields, the same length (NettyProtocolEncoder and
BrokerServiceServer.sendMessageP2B of TubeMQ). The compiled twin looks at each of these byte by byte; the
Python twin compares all before the text and parses the message. What is unusual for the compiled twin is left
to the Python one, and what is for that to the general decoders, which say what is wrong with answers that
make no sense. What an answer says besides the append offset is handed on only to readers that ask for it.
"""

import collections
import contextlib
import dataclasses
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import framing, rpc, speedups
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_batch import BytesColumn, Int64s
from tubemq_spark.protocol.send_frames import Payloads, Places, Rows, encode_sends

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
        return _join(usual, self._unusual(data))

    def _unusual(self, data: bytes) -> Answers:
        return _answers(self._decoder.receive_data(data), detailed=self._detailed)

    def _is_unusual(self, data: bytes) -> bool:
        """Whether these bytes are more than the beginning of a usual frame."""
        if len(data) < _FRAME_HEAD.size:
            return False
        token, _, chunk_count, length = _FRAME_HEAD.unpack_from(data)
        looks_usual = token == FRAME_TOKEN and chunk_count == 1 and _SHORTEST <= length <= _LONGEST
        return len(data) >= _FRAME_HEAD.size + length or not looks_usual


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


def _join(first: Answers, second: Answers) -> Answers:
    details = None
    if first.details is not None and second.details is not None:
        details = Details(*map(np.concatenate, zip(first.details, second.details, strict=True)))
    return Answers(
        np.concatenate((first.serial_nos, second.serial_nos)),
        np.concatenate((first.offsets, second.offsets)),
        first.failures + second.failures,
        details,
    )


def _decode(frame: framing.Frame) -> broker_pb2.SendMessageResponseB2P | Refusal | rpc.Failure:
    answer = rpc.decode_answer(frame.serial_no, frame.stream)
    if isinstance(answer, rpc.Failure):
        return answer
    # RspResponseBody.method says how `data` is read; another one means that the broker took our request for
    # another.
    if answer.method != Method.SEND_MESSAGE:
        raise _violation(f"it answered method {answer.method} to a SendMessage")
    return _outcome(rpc.parse_message(broker_pb2.SendMessageResponseB2P, answer.body))


def _outcome(message: broker_pb2.SendMessageResponseB2P) -> broker_pb2.SendMessageResponseB2P | Refusal:
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


_SERIAL_MAX: Final = (1 << 31) - 1
_SERIALS: Final = 1 << 32
_ENDED: Final = b"\x01"
_FEW: Final = 64
"""First numbers of ended flights that are not worth being removed."""

Owner = TypeVar("Owner")


@dataclasses.dataclass(slots=True, eq=False)
class Flight(Generic[Owner]):
    """The messages of one run that left together."""

    run: Owner
    first: int
    """The number of the first message."""
    count: int
    ended: bytearray
    """For each message 1 when it is answered or given up, otherwise 0."""

    def in_flight(self, start: int, end: int) -> Sequence[int]:
        """Return which of some messages are in flight."""
        if self.ended.find(_ENDED, start, end) < 0:
            return range(start, end)
        return [position for position in range(start, end) if not self.ended[position]]


class StoredMessages(NamedTuple, Generic[Owner]):
    """Messages of one run that the broker has stored; others of the run may be told of separately."""

    run: Owner
    positions: Sequence[int]
    """Which messages of the run these are, counted from 0 and ascending; a range where none is left out."""
    offsets: Int64s
    """Where each begins in its store's index, in bytes."""
    details: Details | None = None
    """More about each of them, on connections that ask for it."""


class NotStored(NamedTuple, Generic[Owner]):
    """A message that the broker refused, or failed to store."""

    run: Owner
    position: int
    answer: Refusal | Failure


class SendConnection(Generic[Owner]):
    """Numbers requests, remembers what is in flight and finds what an answer is about."""

    def __init__(self, timeout_ms: int, next_serial_no: int = 1, *, detailed: bool = False) -> None:
        self._timeout_ms = timeout_ms
        self._reader = SendAnswerReader(detailed=detailed)
        self._next = next_serial_no
        # An OrderedDict finds its first entry at once, a dict passes over all that were removed before it.
        self._flights: collections.OrderedDict[int, Flight[Owner]] = collections.OrderedDict()
        self._firsts: list[int] = []
        self._in_flight = 0

    def __len__(self) -> int:
        """How many messages are in flight."""
        return self._in_flight

    @property
    def oldest(self) -> Flight[Owner] | None:
        """The flight sent first of those that are not answered wholly."""
        return next(iter(self._flights.values()), None)

    @property
    def flights(self) -> list[Flight[Owner]]:
        """All flights that are not answered wholly, in the order of sending."""
        return list(self._flights.values())

    def send(self, run: Owner, payloads: Payloads, backs: BytesColumn, rows: Rows, places: Places) -> bytes:
        """Put the messages of a run in flight and return their frames; there is at least one.

        Outcomes are told of ``run``, whose position 0 is the message of ``rows[0]``.
        """
        first, count = self._next, len(rows)
        # The frames of a flight are written with numbers that count up, so none of them may wrap: those that
        # are left before the wrap are passed over.
        if _serial_no(first) + count - 1 > _SERIAL_MAX:
            first += _SERIAL_MAX + 1 - _serial_no(first)
        wire = encode_sends(payloads, backs, self._timeout_ms, _serial_no(first), rows, places)
        self._flights[first] = Flight(run, first, count, bytearray(count))
        self._firsts.append(first)
        self._next = first + count
        self._in_flight += count
        return wire

    def receive_data(self, data: bytes) -> tuple[list[StoredMessages[Owner]], list[NotStored[Owner]]]:
        """Take bytes from the broker and return what they say about messages in flight."""
        serial_nos, offsets, failures, details = self._reader.receive_data(data)
        stored = []
        # Brokers answer in the order of requests today (the handler runs in the thread that reads), but
        # nothing in the protocol promises it.
        for number, start, end in _consecutive(self._numbers(serial_nos)):
            for flight, positions in self._end(number, end - start):
                shift = start + flight.first - number
                more = details and Details(*(_values_at(column, positions, shift) for column in details))
                stored.append(
                    StoredMessages(flight.run, positions, _values_at(offsets, positions, shift), more)
                )
        if not failures:
            return stored, []
        not_stored = []
        refused = self._numbers(np.array([serial_no for serial_no, _ in failures], np.int64))
        for number, (_, answer) in zip(refused.tolist(), failures, strict=True):
            for flight, positions in self._end(number, 1):
                not_stored.append(NotStored(flight.run, positions[0], answer))
        return stored, not_stored

    def unanswered(self, flight: Flight[Owner]) -> Sequence[int]:
        """Return the positions of a flight's messages that are still in flight."""
        return flight.in_flight(0, flight.count)

    def give_up(self, flight: Flight[Owner]) -> Sequence[int]:
        """Wait for the answers of a flight no longer; return the positions that had none."""
        return self._end_part(flight, 0, flight.count)

    def give_up_all(self) -> list[tuple[Owner, Sequence[int]]]:
        """Give up everything in flight, in the order of sending."""
        return [(flight.run, self.give_up(flight)) for flight in self.flights]

    def _numbers(self, serial_nos: Int64s) -> Int64s:
        """Return the numbers of messages by their serial numbers, which begin again after ``_SERIALS``."""
        last = self._next - 1
        return np.asarray(last - ((last - serial_nos) & (_SERIALS - 1)), np.int64)

    def _end(self, number: int, count: int) -> Iterator[tuple[Flight[Owner], Sequence[int]]]:
        """End messages of consecutive numbers; yield flight by flight those that were in flight."""
        after = number + count
        while number < after:
            # No flight has a number that was given up or answered already; Java's clients ignore such
            # answers, too. A broker that stops may answer twice.
            index = bisect_right(self._firsts, number)
            flight = self._flights.get(self._firsts[index - 1]) if index else None
            if flight is None or number >= flight.first + flight.count:
                number = self._firsts[index] if index < len(self._firsts) else after
                continue
            end = min(flight.first + flight.count, after)
            positions = self._end_part(flight, number - flight.first, end - flight.first)
            if positions:
                yield flight, positions
            number = end

    def _end_part(self, flight: Flight[Owner], start: int, end: int) -> Sequence[int]:
        """End some messages of a flight; return which of them were in flight."""
        positions = flight.in_flight(start, end)
        flight.ended[start:end] = _ENDED * (end - start)
        self._in_flight -= len(positions)
        if positions and 0 not in flight.ended:
            del self._flights[flight.first]
            if len(self._firsts) > 2 * len(self._flights) + _FEW:
                self._firsts = list(self._flights)
        return positions


def _serial_no(number: int) -> int:
    """Return the serial number of a message: a signed integer of 32 bits."""
    return (number + _SERIAL_MAX + 1) % _SERIALS - _SERIAL_MAX - 1


def _consecutive(numbers: Int64s) -> Iterator[tuple[int, int, int]]:
    """Cut numbers where one does not follow the one before; yield the first number, and where each run is."""
    if not len(numbers):
        return
    cuts = np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1
    if not len(cuts):
        yield int(numbers[0]), 0, len(numbers)
        return
    starts = [0, *cuts.tolist()]
    yield from zip(numbers[starts].tolist(), starts, [*starts[1:], len(numbers)], strict=True)


def _values_at(column: Int64s, positions: Sequence[int], shift: int) -> Int64s:
    """Return an answer's values for messages of a flight: their rows are their positions plus ``shift``."""
    if isinstance(positions, range):
        return column[positions.start + shift : positions.stop + shift]
    values: Int64s = column[np.array(positions, np.int64) + shift]
    return values
