"""One connection that sends messages, without its socket: frames of messages out, outcomes of answers in.

**States of a message.** ``send`` puts the messages of one run into a *flight*, under consecutive serial
numbers; each of them is then *in flight*, until it is

- *answered*: ``receive_data`` tells its outcome, once and with the run it belongs to, or
- *given up* by ``give_up`` or ``give_up_all``; an answer that comes later is passed over.

**Invariants.** A serial number in flight belongs to one message. Numbers count up from 1 and go on, as
Java's int does, from the largest to the smallest; those of one flight are consecutive. ``_in_flight`` is in
the order of sending. A connection that has raised is broken: its owner gives everything up and makes another
one.

**Frames.** A sink builds one per row, and the general way (two protobuf messages, then framing) costs ten
times as much. A frame is *front*, payload and *back*. The front depends on sizes but for the *place* (client,
topic and partition), the back on type, time and credentials, and all of these repeat from message to message.
The payload is a *prefix* (the attributes), which repeats too, and the value. The bytes are those of the
general way.
"""

import dataclasses
import functools
import itertools
import struct
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.protocol import framing
from tubemq_spark.protocol.constants import (
    CHUNK_BYTES,
    FRAME_TOKEN,
    PROTOCOL_VERSION,
    UNDEFINED,
    Method,
    ServiceType,
)
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES
from tubemq_spark.protocol.pb import broker_pb2, common_pb2
from tubemq_spark.protocol.rpc import Failure, encode_varint
from tubemq_spark.protocol.send_answers import Refusal, SendAnswerReader
from tubemq_spark.protocol.send_batch import MessageHeader

_HEAD: Final = struct.Struct(">Ii")
_CHUNK_HEAD: Final = struct.Struct(">ii")
_ENVELOPE: Final = bytes((2, 0x08, 0, 4, 0x08, ServiceType.BROKER_WRITE, 0x10, PROTOCOL_VERSION))
"""RpcConnHeader and RequestHeader, delimited."""
_METHOD: Final = bytes((0x08, Method.SEND_MESSAGE))
_TAG_TIMEOUT: Final = b"\x10"
_TAG_REQUEST: Final = b"\x1a"
_TAG_DATA: Final = b"\x22"
_CHECKSUM_BY_BROKER: Final = -1
_CACHED_FRONTS: Final = 16_384
"""How many combinations of sizes are remembered in a process; about 300 bytes each."""
_CACHED_BACKS: Final = 4096
"""How many pairs of type and time are remembered per producer."""
_SERIAL_MIN: Final = -(1 << 31)
_SERIAL_MAX: Final = (1 << 31) - 1

Owner = TypeVar("Owner")


class Payloads(NamedTuple):
    """What the messages of one batch carry: row r is ``prefixes[codes[r]]`` and then its value."""

    data: bytes | memoryview
    """The values, one behind the other."""
    offsets: Sequence[int]
    """Where in ``data`` each value begins, and where the last one ends."""
    prefixes: Sequence[bytes]
    codes: Sequence[int]


@dataclasses.dataclass(slots=True, eq=False)
class Flight(Generic[Owner]):
    """The messages of one run that left together."""

    run: Owner
    first_serial_no: int
    count: int


class Stored(NamedTuple, Generic[Owner]):
    """Messages of one run that the broker has stored."""

    run: Owner
    positions: list[int]
    """Which messages of the run these are, counted from 0."""
    offsets: list[int]
    """Where each begins in its store's index, in bytes."""


class NotStored(NamedTuple, Generic[Owner]):
    """A message that the broker refused, or failed to store."""

    run: Owner
    position: int
    answer: Refusal | Failure


class SendConnection(Generic[Owner]):
    """Numbers requests, remembers what is in flight and finds what an answer is about."""

    def __init__(self, timeout_ms: int, next_serial_no: int = 1) -> None:
        """Begin a connection; brokers are told that an answer is wanted within ``timeout_ms``."""
        self._timeout_ms = timeout_ms
        self._next_serial_no = next_serial_no
        self._reader = SendAnswerReader()
        self._in_flight: dict[int, Flight[Owner]] = {}

    def __len__(self) -> int:
        """How many messages are in flight."""
        return len(self._in_flight)

    @property
    def oldest(self) -> Flight[Owner] | None:
        """The flight sent first of those that are not answered wholly."""
        return next(iter(self._in_flight.values()), None)

    @property
    def flights(self) -> list[Flight[Owner]]:
        """All flights that are not answered wholly, in the order of sending."""
        return list(dict.fromkeys(self._in_flight.values()))

    def send(
        self,
        run: Owner,
        payloads: Payloads,
        backs: Sequence[bytes],
        rows: Sequence[int],
        places: Sequence[bytes],
    ) -> bytes:
        """Put the messages of a run in flight and return their frames.

        Args:
            run: what the outcomes are told of; position 0 is the message of ``rows[0]``.
            payloads: the batch they belong to.
            backs: what follows the payload of a row with each of the prefixes.
            rows: which messages of the batch these are.
            places: where each of them goes, as ``encode_place`` gives it.

        Raises:
            LocalProtocolError: the time-out is not positive, or a frame would be longer than 28 MiB.
        """
        first = self._next_serial_no
        if first + len(rows) - 1 > _SERIAL_MAX:
            first = _SERIAL_MIN
        wire = encode_sends(payloads, backs, self._timeout_ms, first, rows, places)
        after = first + len(rows)
        self._in_flight.update(dict.fromkeys(range(first, after), Flight(run, first, len(rows))))
        self._next_serial_no = after if after <= _SERIAL_MAX else _SERIAL_MIN
        return wire

    def receive_data(self, data: bytes) -> tuple[list[Stored[Owner]], list[NotStored[Owner]]]:
        """Take bytes from the broker and return what they say about messages in flight.

        Raises:
            RemoteProtocolError: the bytes make no sense as answers; see ``SendAnswerReader``.
        """
        stored: dict[Flight[Owner], Stored[Owner]] = {}
        not_stored: list[NotStored[Owner]] = []
        for serial_no, outcome in self._reader.receive_data(data):
            flight = self._in_flight.pop(serial_no, None)
            if flight is None:
                continue  # given up
            position = serial_no - flight.first_serial_no
            if isinstance(outcome, int):
                found = stored.get(flight)
                if found is None:
                    found = stored[flight] = Stored(flight.run, [], [])
                found.positions.append(position)
                found.offsets.append(outcome)
            else:
                not_stored.append(NotStored(flight.run, position, outcome))
        return list(stored.values()), not_stored

    def unanswered(self, flight: Flight[Owner]) -> list[int]:
        """Return the positions of a flight's messages that are still in flight."""
        first = flight.first_serial_no
        return [
            position for position in range(flight.count) if self._in_flight.get(first + position) is flight
        ]

    def give_up(self, flight: Flight[Owner]) -> list[int]:
        """Wait for the answers of a flight no longer; return the positions that had none."""
        positions = self.unanswered(flight)
        for position in positions:
            del self._in_flight[flight.first_serial_no + position]
        return positions

    def give_up_all(self) -> list[tuple[Owner, list[int]]]:
        """Give up everything in flight, in the order of sending."""
        return [(flight.run, self.give_up(flight)) for flight in self.flights]


class SendCredentials:
    """What proves to brokers who sends; a new token needs a new one."""

    def __init__(self, sent_addr: int, visit_token: int = UNDEFINED, user_token: str = "") -> None:
        """Remember what all messages carry.

        Args:
            sent_addr: our IPv4 address as ``payload.sent_address`` gives it.
            visit_token: the master's latest token; -2 before there is one.
            user_token: the master's latest proof of the user (``authAuthorizedToken``); blank without one.
        """
        self._sent_addr = sent_addr
        self._credentials = common_pb2.AuthorizedInfo(visitAuthorizedToken=visit_token)
        if user_token:
            self._credentials.authAuthorizedToken = user_token
        self._backs: dict[tuple[bool, str | None, str | None], bytes] = {}

    def backs(self, prefixes: Sequence[bytes], headers: Sequence[MessageHeader]) -> list[bytes]:
        """Return what follows the payloads of messages; type and time must be those inside the prefix."""
        return [
            self.back(bool(prefix), header.message_type, header.message_time)
            for prefix, header in zip(prefixes, headers, strict=True)
        ]

    def back(self, has_attributes: bool, message_type: str | None, message_time: str | None) -> bytes:
        """Return what follows one payload."""
        key = has_attributes, message_type, message_time
        found = self._backs.get(key)
        if found is None:
            if len(self._backs) >= _CACHED_BACKS:
                self._backs.clear()
            found = self._backs[key] = self._encode_back(*key)
        return found

    def _encode_back(self, has_attributes: bool, message_type: str | None, message_time: str | None) -> bytes:
        return broker_pb2.SendMessageRequestP2B(
            flag=FLAG_ATTRIBUTES if has_attributes else 0,
            checkSum=_CHECKSUM_BY_BROKER,
            sentAddr=self._sent_addr,
            msgType=message_type,
            msgTime=message_time,
            authInfo=self._credentials,
        ).SerializePartialToString()


def encode_place(client_id: str, topic: str, partition_id: int) -> bytes:
    """Return what every message of a producer to one partition carries.

    Args:
        client_id: the producer's id, as registered at the master.
        topic: the topic's name.
        partition_id: store * 10000 + index.
    """
    return broker_pb2.SendMessageRequestP2B(
        clientId=client_id, topicName=topic, partitionId=partition_id
    ).SerializePartialToString()


def encode_sends(
    payloads: Payloads,
    backs: Sequence[bytes],
    timeout_ms: int,
    first_serial_no: int,
    rows: Sequence[int],
    places: Sequence[bytes],
) -> bytes:
    """Return the frames that send rows of a batch to one place each, under consecutive serial numbers.

    Raises:
        LocalProtocolError: the time-out is not positive, or a frame would be longer than 28 MiB.
    """
    data, offsets, prefixes, codes = payloads
    pack = _HEAD.pack
    pieces: list[bytes | memoryview] = []
    for serial_no, row, place in zip(itertools.count(first_serial_no), rows, places, strict=False):
        start, end = offsets[row], offsets[row + 1]
        code = codes[row]
        prefix, back = prefixes[code], backs[code]
        front, tag, in_one_chunk = _front(len(place), len(prefix) + end - start, len(back), timeout_ms)
        if in_one_chunk:
            pieces += (pack(FRAME_TOKEN, serial_no), front, place, tag, prefix, data[start:end], back)
        else:
            stream = b"".join((front, place, tag, prefix, data[start:end], back))
            pieces.append(framing.encode_frame(serial_no, stream))
    return b"".join(pieces)


@functools.lru_cache(_CACHED_FRONTS)
def _front(place_size: int, data_size: int, back_size: int, timeout_ms: int) -> tuple[bytes, bytes, bool]:
    """Return what precedes the place, what stands between it and the payload, and whether one chunk does.

    The front of a frame of one chunk includes the chunk's head.
    """
    if timeout_ms <= 0:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"a request with time-out {timeout_ms} ms")
    tag = _TAG_DATA + encode_varint(data_size)
    request_size = place_size + len(tag) + data_size + back_size
    sizes = (_TAG_TIMEOUT, encode_varint(timeout_ms), _TAG_REQUEST, encode_varint(request_size))
    call = b"".join((_METHOD, *sizes))
    front = b"".join((_ENVELOPE, encode_varint(len(call) + request_size), call))
    stream_size = len(front) + request_size
    if stream_size > CHUNK_BYTES:
        return front, tag, False
    return _CHUNK_HEAD.pack(1, stream_size) + front, tag, True
