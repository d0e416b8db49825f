"""Frames: ``token, serial number, chunk count, (length, bytes)*``, all 4-byte big-endian integers.

The *stream* of a frame is its chunks put together; chunk borders mean nothing
(NettyProtocolEncoder and NettyProtocolDecoder of TubeMQ).
"""

import dataclasses
import struct
from typing import Final

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN, MAX_CHUNKS, MAX_FRAME_BYTES

_HEADER: Final = struct.Struct(">Iii")
_LENGTH: Final = struct.Struct(">i")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One framed RPC message: its number on this connection and its stream."""

    serial_no: int
    stream: bytes


def encode_frame(serial_no: int, stream: bytes) -> bytes:
    """Frame a stream as TubeMQ's Java encoder does: chunks of 8192 bytes, no empty one.

    Raises:
        LocalProtocolError: the stream is empty or longer than 28 MiB.
    """
    size = len(stream)
    if not 0 < size <= MAX_FRAME_BYTES:
        raise LocalProtocolError(
            "TUBEMQ_PROTOCOL_MISUSE", what=f"a frame of {size} bytes (allowed: 1 to {MAX_FRAME_BYTES})"
        )
    chunk_count = -(-size // CHUNK_BYTES)
    header = _HEADER.pack(FRAME_TOKEN, serial_no, chunk_count)
    if chunk_count == 1:
        return b"".join((header, _LENGTH.pack(size), stream))
    pieces = [header]
    for start in range(0, size, CHUNK_BYTES):
        chunk = stream[start : start + CHUNK_BYTES]
        pieces.append(_LENGTH.pack(len(chunk)))
        pieces.append(chunk)
    return b"".join(pieces)


class FrameDecoder:
    """Cut a byte stream into frames, however the network cut it before.

    After an error the decoder stays broken: the stream has no way back to a frame's start.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._serial_no = 0
        self._chunks_left = 0
        self._chunks: list[bytes] = []
        self._stream_size = 0
        self._broken: RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> list[Frame]:
        """Take bytes and return the frames they complete.

        Raises:
            RemoteProtocolError: wrong token, chunk count outside 1..3584, negative chunk length,
                or chunks of more than 28 MiB together.
        """
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        frames: list[Frame] = []
        try:
            self._take_frames(frames)
        except RemoteProtocolError as error:
            self._broken = error
            self._buffer.clear()
            raise
        return frames

    @property
    def mid_frame(self) -> bool:
        """Whether bytes of an unfinished frame wait here."""
        return bool(self._buffer or self._chunks_left)

    def _take_frames(self, frames: list[Frame]) -> None:
        position = 0
        while True:
            if self._chunks_left == 0:
                if len(self._buffer) - position < _HEADER.size:
                    break
                self._begin_frame(*_HEADER.unpack_from(self._buffer, position))
                position += _HEADER.size
            position = self._take_chunks(position)
            if self._chunks_left:
                break
            frames.append(Frame(self._serial_no, b"".join(self._chunks)))
            self._chunks.clear()
        del self._buffer[:position]

    def _begin_frame(self, token: int, serial_no: int, chunk_count: int) -> None:
        if token != FRAME_TOKEN:
            raise _violation(f"a frame starts with {token:#010x}, not {FRAME_TOKEN:#010x}")
        if not 0 < chunk_count <= MAX_CHUNKS:
            raise _violation(f"frame {serial_no} claims {chunk_count} chunks (allowed: 1 to {MAX_CHUNKS})")
        self._serial_no = serial_no
        self._chunks_left = chunk_count
        self._stream_size = 0

    def _take_chunks(self, position: int) -> int:
        """Move whole chunks out of the buffer; return where the first missing byte is expected."""
        end = len(self._buffer)
        while self._chunks_left and end - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, position)
            # Checked before the bytes are there, so that nobody makes us wait for 2 GiB.
            if length < 0 or self._stream_size + length > MAX_FRAME_BYTES:
                raise _violation(
                    f"frame {self._serial_no} has a chunk of {length} bytes after {self._stream_size}"
                )
            chunk_start = position + _LENGTH.size
            if end - chunk_start < length:
                break
            position = chunk_start + length
            self._chunks.append(bytes(memoryview(self._buffer)[chunk_start:position]))
            self._stream_size += length
            self._chunks_left -= 1
        return position


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
