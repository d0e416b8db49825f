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
"""

import collections
import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_answers import Details, Refusal, SendAnswerReader
from tubemq_spark.protocol.send_batch import BytesColumn, Int64s
from tubemq_spark.protocol.send_frames import Payloads, Places, Rows, encode_sends

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


class Stored(NamedTuple, Generic[Owner]):
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
        """Begin a connection."""
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

    def receive_data(self, data: bytes) -> tuple[list[Stored[Owner]], list[NotStored[Owner]]]:
        """Take bytes from the broker and return what they say about messages in flight."""
        serial_nos, offsets, failures, details = self._reader.receive_data(data)
        stored = []
        # Brokers answer in the order of requests today (the handler runs in the thread that reads), but
        # nothing in the protocol promises it.
        for number, start, end in _consecutive(self._numbers(serial_nos)):
            for flight, positions in self._end(number, end - start):
                shift = start + flight.first - number
                more = details and Details(*(_picked(column, positions, shift) for column in details))
                stored.append(Stored(flight.run, positions, _picked(offsets, positions, shift), more))
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


def _picked(column: Int64s, positions: Sequence[int], shift: int) -> Int64s:
    if isinstance(positions, range):
        return column[positions.start + shift : positions.stop + shift]
    picked: Int64s = column[np.array(positions, np.int64) + shift]
    return picked
