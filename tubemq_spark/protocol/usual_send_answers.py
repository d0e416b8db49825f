"""Answers to SendMessage requests as brokers nearly always write them, read many at a time.

A sender gets one answer per message, and on one connection long runs of them are of one shape: a frame of one
chunk, the same heads, the same fields, the same length (NettyProtocolEncoder and
BrokerServiceServer.sendMessageP2B of TubeMQ). The compiled twin looks at each of them byte by byte. In Python
only the first frame of a run is; the others are compared with it and read together. Nothing here raises: what
is unusual for the compiled twin is left to the Python one, and what is for this one to the general decoders,
and so is what they have to complain about.
"""

import contextlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.constants import FRAME_TOKEN, Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import Int64s

FRAME_HEAD: Final = struct.Struct(">Iiii")
"""Token, serial number, number of chunks, and the length of the first chunk."""
SHORTEST: Final = 20
LONGEST: Final = 127
"""Lengths of a chunk that is read here; above, the lengths of its parts take two bytes."""
_SUCCESS: Final = 200
_MESSAGE_AT: Final = 13
_BEGINNING: Final = b"\x08\x01\x10\xc8\x01\x1a"
"""SendMessageResponseB2P{success=true, errCode=200, errMsg="""
_HEADS: Final = {
    # RpcConnHeader{flag=1}, ResponseHeader{status=SUCCESS, protocolVer=3}, RspResponseBody{method=13, data=
    length: bytes((2, 8, 1, 4, 8, 0, 0x18, 3, length - 9, 8, Method.SEND_MESSAGE, 0x12, length - _MESSAGE_AT))
    + _BEGINNING
    for length in range(SHORTEST, LONGEST + 1)
}
"""What the chunk of each length begins with: all fields that are required, up to the text."""
_NEVER: Final = b"no chunk begins so"
_TEXT_AT: Final = FRAME_HEAD.size + _MESSAGE_AT + len(_BEGINNING)
_SERIAL_NO: Final = slice(4, 8)
_NUMBER_TAGS: Final = frozenset({0x20, 0x28, 0x30, 0x38})
"""requireAuth, messageId, appendTime, appendOffset."""
_OFFSET_TAG: Final = 0x38
_LONGEST_OFFSET: Final = 9
_SHORTEST_RUN: Final = 24
"""Frames that are worth being read together."""


class _Shape(NamedTuple):
    """What frames of one length have in common."""

    mask: NDArray[np.uint8]
    """The bits that do not differ: neither serial number, nor text, nor the values of numbers."""
    frame: bytes
    """A frame of this shape, with the bits of the mask alone."""
    offset_at: int
    """Where the append offset begins; it is the last field."""
    weights: NDArray[np.int64]
    """What each byte of the append offset counts."""


_shapes: Final[dict[int, _Shape]] = {}
"""The shape that runs of each length had last; a run of another replaces it."""


def read_send_answers(data: bytes, position: int, serial_nos: Int64s, offsets: Int64s) -> tuple[int, int]:
    """Read answers that say where a message is stored, up to the first that is unusual or not all there.

    Args:
        data: bytes from the broker.
        position: where the first answer begins.
        serial_nos: takes the serial numbers; there is room for ``most_answers``.
        offsets: takes the append offsets, each a positive multiple of 28; as long as ``serial_nos``.

    Returns:
        The position behind the last answer read, and how many were read.
    """
    count = 0
    if speedups.compiled is not None:
        position, count = speedups.compiled.read_send_answers(data, position, serial_nos, offsets)
        if position == len(data):
            return position, count
    position, more = _read_in_python(data, position, serial_nos[count:], offsets[count:])
    return position, count + more


def most_answers(data: bytes) -> int:
    """Return how many usual answers there can be in bytes from the broker."""
    return len(data) // (FRAME_HEAD.size + SHORTEST)


def usual_messages(data: bytes, end: int) -> Iterator[broker_pb2.SendMessageResponseB2P]:
    """Yield the answers before a position up to which ``read_send_answers`` has read them, from 0 on."""
    position = 0
    while position < end:
        chunk = position + FRAME_HEAD.size
        position = chunk + FRAME_HEAD.unpack_from(data, position)[3]
        yield broker_pb2.SendMessageResponseB2P.FromString(data[chunk + _MESSAGE_AT : position])


def _read_in_python(data: bytes, position: int, serial_nos: Int64s, offsets: Int64s) -> tuple[int, int]:
    last_head = len(data) - FRAME_HEAD.size
    unpack = FRAME_HEAD.unpack_from
    parse = broker_pb2.SendMessageResponseB2P.FromString
    count = 0
    with contextlib.suppress(DecodeError):  # the general decoder says what is wrong with it
        while position <= last_head:
            token, serial_no, chunk_count, length = unpack(data, position)
            chunk = position + FRAME_HEAD.size
            after = chunk + length
            if token != FRAME_TOKEN or chunk_count != 1 or after > len(data):
                break
            if not data.startswith(_HEADS.get(length, _NEVER), chunk):
                break
            size = after - position
            if _may_begin_run(data, position, size):
                read = _read_run(data, position, size, serial_nos[count:], offsets[count:])
                if read:
                    position += read * size
                    count += read
                    continue
            message = parse(data[chunk + _MESSAGE_AT : after])
            offset = message.appendOffset
            if offset <= 0 or offset % INDEX_ENTRY_BYTES or message.errCode != _SUCCESS:
                break
            serial_nos[count] = serial_no
            offsets[count] = offset
            count += 1
            position = after
    return position, count


def _may_begin_run(data: bytes, position: int, size: int) -> bool:
    """Whether enough bytes are there, and a frame of the same length where the run would end."""
    later = position + (_SHORTEST_RUN - 1) * size
    return (
        later + size <= len(data)
        and data[later + 8 : later + FRAME_HEAD.size] == data[position + 8 : position + FRAME_HEAD.size]
    )


def _read_run(data: bytes, position: int, size: int, serial_nos: Int64s, offsets: Int64s) -> int:
    """Read frames of one shape; return how many."""
    shape = _shape_of_run(data, position, size)
    if shape is None:
        return 0
    most = (len(data) - position) // size
    frames = np.frombuffer(data, np.uint8, most * size, position).reshape(most, size)
    common = frames & shape.mask
    if common.tobytes() != shape.frame * most:
        most = _leading((common == common[0]).all(axis=1))
        frames = frames[:most]
    found = (frames[:, shape.offset_at :] & 0x7F) @ shape.weights
    sound = (found > 0) & (found % INDEX_ENTRY_BYTES == 0)
    count = _leading(sound)
    serial_nos[:count] = np.ascontiguousarray(frames[:count, _SERIAL_NO]).view(">i4")[:, 0]
    offsets[:count] = found[:count]
    return count


def _shape_of_run(data: bytes, position: int, size: int) -> _Shape | None:
    first = data[position : position + size]
    shape = _shapes.get(size)
    if shape is None or (np.frombuffer(first, np.uint8) & shape.mask).tobytes() != shape.frame:
        shape = _shape(first)
        if shape is not None:
            _shapes[size] = shape
    return shape


def _shape(frame: bytes) -> _Shape | None:
    """Return the shape of a frame whose head is usual; None when the rest is not."""
    at = _TEXT_AT + 1 + frame[_TEXT_AT]
    if not frame[_TEXT_AT:at].isascii():
        return None
    mask = bytearray(b"\xff" * len(frame))
    mask[_SERIAL_NO] = bytes(4)
    mask[_TEXT_AT + 1 : at] = b"\x80" * (at - _TEXT_AT - 1)
    tag = start = 0
    while at < len(frame):
        tag, start = frame[at], at + 1
        at = _end_of_varint(frame, start)
        if tag not in _NUMBER_TAGS or not at:
            return None
        mask[start:at] = b"\x80" * (at - start)
    if tag != _OFFSET_TAG or at - start > _LONGEST_OFFSET:
        return None
    bits = np.frombuffer(mask, np.uint8)
    common = (np.frombuffer(frame, np.uint8) & bits).tobytes()
    return _Shape(bits, common, start, 1 << 7 * np.arange(at - start, dtype=np.int64))


def _end_of_varint(data: bytes, at: int) -> int:
    """Return where a varint ends, 0 when it does not; none is longer than ten bytes."""
    for end in range(at, min(at + 10, len(data))):
        if data[end] < 0x80:  # the top bit says that another byte follows
            return end + 1
    return 0


def _leading(flags: NDArray[np.bool_]) -> int:
    """Return how many flags are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
