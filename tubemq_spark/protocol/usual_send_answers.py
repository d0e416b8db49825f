"""Answers to SendMessage requests as brokers nearly always write them, read many at a time.

A sender gets one answer per message, and on one connection long runs of them are of one shape: a frame of one
chunk, the same heads, the same fields, the same length (NettyProtocolEncoder and
BrokerServiceServer.sendMessageP2B of TubeMQ). The compiled twin looks at each of them byte by byte; the
Python one compares all before the text and parses the message. Nothing here raises: what is unusual for the
compiled twin is left to the Python one, and what is for this one to the general decoders, which say what is
wrong.
"""

import contextlib
import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

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
            message = parse(data[chunk + _MESSAGE_AT : after])
            offset = message.appendOffset
            if offset <= 0 or offset % INDEX_ENTRY_BYTES or message.errCode != _SUCCESS:
                break
            serial_nos[count] = serial_no
            offsets[count] = offset
            count += 1
            position = after
    return position, count
