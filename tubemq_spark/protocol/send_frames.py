"""Frames that send messages, many at a time.

A frame is *front*, payload and *back*. The front depends on sizes but for the *place* (client, topic and
partition), the back on type, time and credentials, and all of these repeat from message to message. The
payload is a *prefix* (the attributes), which repeats too, and the value. The bytes are those of the general
way (two protobuf messages, then framing), which costs ten times as much.

Columns are plain buffers. The compiled twin writes the frames of a run in one go; it leaves a run to the
Python twin when a frame of it takes more than one chunk, and when anything does not fit together.
"""

import functools
import itertools
import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.protocol import framing, speedups
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
from tubemq_spark.protocol.rpc import encode_varint
from tubemq_spark.protocol.send_batch import BytesColumn, Int64s, MessageHeader

_HEAD: Final = struct.Struct(">Ii")
_CHUNK_HEAD: Final = struct.Struct(">ii")
_ENVELOPE: Final = bytes((2, 0x08, 0, 4, 0x08, ServiceType.BROKER_WRITE, 0x10, PROTOCOL_VERSION))
"""RpcConnHeader and RequestHeader, delimited."""
_METHOD: Final = bytes((0x08, Method.SEND_MESSAGE))
_TAG_TIMEOUT: Final = b"\x10"
_TAG_REQUEST: Final = b"\x1a"
# SendMessageRequestP2B.data is field 4 of wire type 2.
_TAG_DATA: Final = b"\x22"
# TubeMQ's clients all leave the sum to the broker; another value must be that of the payload, or it answers
# 403.
_CHECKSUM_BY_BROKER: Final = -1
_CACHED_FRONTS: Final = 16_384
"""How many combinations of sizes are remembered in a process; about 300 bytes each."""
_CACHED_BACKS: Final = 4096
"""How many pairs of type and time are remembered per producer."""

Rows = Sequence[int] | Int64s
Places = Sequence[tuple[bytes, int]]
"""Where messages go, as ``encode_place`` gives it, and how many after each other go there."""


class Payloads(NamedTuple):
    """What the messages of one batch carry: row r is prefix ``codes[r]`` and then value r."""

    values: BytesColumn
    """None of them is null."""
    prefixes: BytesColumn
    codes: Int64s


class SendCredentials:
    """What proves to brokers who sends; a new token needs a new one."""

    def __init__(self, sent_addr: int, visit_token: int = UNDEFINED, user_token: str = "") -> None:
        self._sent_addr = sent_addr
        self._credentials = common_pb2.AuthorizedInfo(visitAuthorizedToken=visit_token)
        if user_token:
            self._credentials.authAuthorizedToken = user_token
        self._backs: dict[tuple[bool, str | None, str | None], bytes] = {}

    def backs(self, prefixes: BytesColumn, headers: Sequence[MessageHeader]) -> BytesColumn:
        """Return what follows the payloads of messages; type and time must be those inside the prefix."""
        has_attributes = (prefixes.offsets[1:] > prefixes.offsets[:-1]).tolist()
        return BytesColumn.of(
            [
                self.back(has, header.message_type, header.message_time)
                for has, header in zip(has_attributes, headers, strict=True)
            ]
        )

    def back(self, has_attributes: bool, message_type: str | None, message_time: str | None) -> bytes:
        """Return the encoded fields that follow one payload in its request."""
        key = has_attributes, message_type, message_time
        encoded = self._backs.get(key)
        if encoded is None:
            if len(self._backs) >= _CACHED_BACKS:
                self._backs.clear()
            encoded = self._backs[key] = broker_pb2.SendMessageRequestP2B(
                flag=FLAG_ATTRIBUTES if has_attributes else 0,
                checkSum=_CHECKSUM_BY_BROKER,
                sentAddr=self._sent_addr,
                msgType=message_type,
                msgTime=message_time,
                authInfo=self._credentials,
            ).SerializePartialToString()
        return encoded


def encode_place(client_id: str, topic: str, partition_id: int) -> bytes:
    """Return what every message of a producer to one partition carries."""
    return broker_pb2.SendMessageRequestP2B(
        clientId=client_id, topicName=topic, partitionId=partition_id
    ).SerializePartialToString()


def encode_sends(
    payloads: Payloads, backs: BytesColumn, timeout_ms: int, first_serial_no: int, rows: Rows, places: Places
) -> bytes:
    """Return the frames that send rows of a batch to one place each, under consecutive serial numbers.

    All serial numbers must be int32, and the numbers of ``places`` add up to those of ``rows``.
    """
    indices = _indices(rows)
    if len(indices) != sum([count for _, count in places]):
        raise ValueError(f"{len(indices)} rows, and places for {sum(count for _, count in places)}")
    if speedups.compiled is not None:
        wire: bytes | None = speedups.compiled.encode_sends(
            *payloads.values[:2],
            *payloads.prefixes[:2],
            *backs[:2],
            payloads.codes,
            indices,
            b"".join([place for place, _ in places]),
            array("q", itertools.accumulate([len(place) for place, _ in places], initial=0)),
            array("q", [count for _, count in places]),
            timeout_ms,
            first_serial_no,
        )
        if wire is not None:
            return wire
    return _encode_in_python(payloads, backs, timeout_ms, first_serial_no, indices, places)


def _indices(rows: Rows) -> Int64s:
    return (
        np.arange(rows.start, rows.stop, dtype=np.int64)
        if isinstance(rows, range)
        else np.asarray(rows, np.int64)
    )


def _encode_in_python(
    payloads: Payloads,
    backs: BytesColumn,
    timeout_ms: int,
    first_serial_no: int,
    rows: Int64s,
    places: Places,
) -> bytes:
    codes = payloads.codes[rows]
    columns = zip(
        itertools.count(first_serial_no),
        itertools.chain.from_iterable(itertools.repeat(place, count) for place, count in places),
        _repeated(payloads.prefixes, codes),
        payloads.values.values(rows),
        _repeated(backs, codes),
        strict=False,
    )
    pack = _HEAD.pack
    pieces: list[bytes | memoryview] = []
    for serial_no, place, prefix, value, back in columns:
        # SendMessageRequestP2B by number: clientId, topicName, partitionId (the place); data (tag, prefix,
        # value); flag, checkSum, sentAddr, msgType, msgTime, authInfo (the back).
        front, tag, in_one_chunk = _front(len(place), len(prefix) + len(value), len(back), timeout_ms)
        if in_one_chunk:
            pieces += (pack(FRAME_TOKEN, serial_no), front, place, tag, prefix, value, back)
        else:
            stream = b"".join((front, place, tag, prefix, value, back))
            pieces.append(framing.encode_frame(serial_no, stream))
    return b"".join(pieces)


def _repeated(texts: BytesColumn, codes: Int64s) -> Sequence[bytes | memoryview]:
    if len(codes) and (codes == codes[0]).all():
        return texts.values(codes[:1]) * len(codes)
    return texts.values(codes)


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
    # RequestBody: method (1), timeout (2), request (3), the last without its bytes.
    call = b"".join((_METHOD, *sizes))
    front = b"".join((_ENVELOPE, encode_varint(len(call) + request_size), call))
    stream_size = len(front) + request_size
    # A chunk border may fall anywhere, also within a field: such frames are put together first and then cut.
    if stream_size > CHUNK_BYTES:
        return front, tag, False
    return _CHUNK_HEAD.pack(1, stream_size) + front, tag, True
