"""Frames: ``token, serial number, chunk count, (length, bytes)*``, all 4-byte big-endian integers.

The *stream* of a frame is its chunks put together; chunk borders mean nothing
(NettyProtocolEncoder and NettyProtocolDecoder of TubeMQ).
"""

import struct
from typing import Final, NamedTuple

from tubemq_spark.errors import HttpAnswerError, LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN, MAX_CHUNKS, MAX_FRAME_BYTES

_HEADER: Final = struct.Struct(">Iii")
_LENGTH: Final = struct.Struct(">i")
_ONE_CHUNK: Final = struct.Struct(">Iiii")
"""The header, and the length of the first chunk."""
_FULL_LENGTH: Final = _LENGTH.pack(CHUNK_BYTES)
_FULL_CHUNK_BYTES: Final = _LENGTH.size + CHUNK_BYTES
"""A chunk of the usual length: TubeMQ's encoders write no other but a frame's last one."""
_WORTHWHILE_CHUNKS: Final = 4
"""So many full chunks are taken at once for less than what taking them one by one costs."""
_HTTP_STARTS: Final = (b"HTTP", b"<!DO", b"<htm", b"<HTM")
"""How the answer of an HTTP server begins, which takes a frame for a bad request."""


class Frame(NamedTuple):
    """One framed RPC message: its number on this connection and its stream.

    A named tuple: one is made for every message sent.
    """

    serial_no: int
    stream: bytes


def encode_frame(serial_no: int, stream: bytes, head: bytes = b"") -> bytes:
    """Frame a stream as TubeMQ's Java encoder does: chunks of 8192 bytes, no empty one.

    ``head`` precedes the stream in the frame: an answer may be long, and to put its envelope in front of it
    first would copy it once more.
    """
    # An empty frame would be listSize 0: NettyProtocolDecoder then takes the next frame's token for a chunk
    # length, and the connection is lost for good.
    size = len(head) + len(stream)
    if not 0 < size <= MAX_FRAME_BYTES:
        raise LocalProtocolError(
            "TUBEMQ_PROTOCOL_MISUSE", what=f"a frame of {size} bytes (allowed: 1 to {MAX_FRAME_BYTES})"
        )
    if size <= CHUNK_BYTES:
        return b"".join((_ONE_CHUNK.pack(FRAME_TOKEN, serial_no, 1, size), head, stream))
    # NettyProtocolEncoder fills every chunk but the last. A stream of a multiple of 8192 bytes has no empty
    # chunk at its end; the C++ client closes the connection on one, and on a chunk that is longer.
    first_end = CHUNK_BYTES - len(head)
    view = memoryview(stream)
    front = _ONE_CHUNK.pack(FRAME_TOKEN, serial_no, -(-size // CHUNK_BYTES), CHUNK_BYTES)
    pieces: list[bytes | memoryview] = [front, head, view[:first_end]]
    for start in range(first_end, len(stream), CHUNK_BYTES):
        chunk = view[start : start + CHUNK_BYTES]
        pieces.append(_LENGTH.pack(len(chunk)))
        pieces.append(chunk)
    return b"".join(pieces)


class FrameDecoder:
    """Cut a byte stream into frames, however the network cut it before.

    After an error the decoder stays broken: the stream has no way back to a frame's start.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._awaited = _HEADER.size
        """How long the rest must get before anything of it can be taken."""
        self._serial_no = 0
        self._chunks_left = 0
        self._chunks: list[memoryview] = []
        self._stream_size = 0
        self._broken: RemoteProtocolError | None = None
        self.frame_count = 0
        """How many whole frames have come."""

    def receive_data(self, data: bytes | memoryview) -> list[Frame]:
        """Take bytes and return the frames they complete; nothing refers to a view afterwards."""
        if self._broken is not None:
            raise self._broken
        frames: list[Frame] = []
        try:
            position = self._complete_rest(data, frames)
            if position < len(data):
                self._rest += memoryview(data)[self._take_frames(data, position, frames) :]
        except RemoteProtocolError as error:
            self._broken = error
            raise
        if isinstance(data, memoryview):
            self._chunks = [memoryview(bytes(chunk)) for chunk in self._chunks]
        self.frame_count += len(frames)
        return frames

    def _complete_rest(self, data: bytes | memoryview, frames: list[Frame]) -> int:
        """Take what has begun to come; return how much of the data that needs.

        The data itself is not put behind the rest: that would copy nearly every byte of a long frame.
        """
        position = 0
        while self._rest and position < len(data):
            missing = self._awaited - len(self._rest)
            self._rest += data[position : position + missing]
            position = min(position + missing, len(data))
            if len(self._rest) == self._awaited:
                whole = bytes(self._rest)
                self._rest = bytearray(whole[self._take_frames(whole, 0, frames) :])
        return position

    @property
    def mid_frame(self) -> bool:
        """Whether bytes of an unfinished frame wait here."""
        return bool(self._rest or self._chunks_left)

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished frame waits here."""
        return len(self._rest) + (self._stream_size if self._chunks_left else 0)

    def _take_frames(self, data: bytes | memoryview, position: int, frames: list[Frame]) -> int:
        """Add the frames that end behind a position; return where the first byte that must wait is.

        ``_awaited`` then says how long what must wait has to become.
        """
        while True:
            if self._chunks_left == 0:
                position = _take_small_frames(data, position, frames)
                if len(data) - position < _HEADER.size:
                    self._awaited = _HEADER.size
                    return position
                self._begin_frame(*_HEADER.unpack_from(data, position))
                position += _HEADER.size
            position = self._take_chunks(data, position)
            if self._chunks_left:
                return position
            frames.append(Frame(self._serial_no, b"".join(self._chunks)))
            self._chunks.clear()

    def _begin_frame(self, token: int, serial_no: int, chunk_count: int) -> None:
        if token != FRAME_TOKEN:
            what = f"a frame starts with {token:#010x}, not {FRAME_TOKEN:#010x}"
            # A Java server drops what follows a wrong token and answers nothing; a Java client closes. Both
            # of our roles close: the next frame's start cannot be found.
            if token.to_bytes(4, "big") in _HTTP_STARTS:
                raise HttpAnswerError("TUBEMQ_PROTOCOL_VIOLATION", what=f"{what}: it answered in HTTP")
            raise _violation(what)
        # RpcConstants.MAX_FRAME_MAX_LIST_SIZE bounds listSize; a negative one comes as a signed int.
        if not 0 < chunk_count <= MAX_CHUNKS:
            raise _violation(f"frame {serial_no} claims {chunk_count} chunks (allowed: 1 to {MAX_CHUNKS})")
        # The serial number is not checked: the side that asked chose it, and any int is echoed.
        self._serial_no = serial_no
        self._chunks_left = chunk_count
        self._stream_size = 0

    def _take_chunks(self, data: bytes | memoryview, position: int) -> int:
        """Take whole chunks; return where the first missing byte is expected."""
        end = len(data)
        view = memoryview(data)
        # A reader takes chunks of any length up to the bound, 0 included, as the Java and Go readers do:
        # chunk borders mean nothing.
        position = self._take_full_chunks(data, view, position)
        self._awaited = _LENGTH.size
        while self._chunks_left and end - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, position)
            # Checked before the bytes are there, so that no peer makes us wait for 2 GiB.
            if length < 0 or self._stream_size + length > MAX_FRAME_BYTES:
                raise _violation(
                    f"frame {self._serial_no} has a chunk of {length} bytes after {self._stream_size}"
                )
            chunk_start = position + _LENGTH.size
            if end - chunk_start < length:
                self._awaited = _LENGTH.size + length
                break
            position = chunk_start + length
            self._chunks.append(view[chunk_start:position])
            self._stream_size += length
            self._chunks_left -= 1
        return position

    def _take_full_chunks(self, data: bytes | memoryview, view: memoryview, position: int) -> int:
        """Take the chunks of 8192 bytes in front of a frame's last one; return where they end.

        Takes none when they are few or too many, or when one of them has another length: ``_take_chunks``
        then takes them one by one, and says what is wrong with them.
        """
        count = min(self._chunks_left - 1, (len(data) - position) // _FULL_CHUNK_BYTES)
        end = position + count * _FULL_CHUNK_BYTES
        if count < _WORTHWHILE_CHUNKS or self._stream_size + count * CHUNK_BYTES > MAX_FRAME_BYTES:
            return position
        # Each of the four length bytes is compared in all chunks at once; one other byte means a chunk of
        # another length.
        for place, byte in enumerate(_FULL_LENGTH):
            if bytes(data[position + place : end : _FULL_CHUNK_BYTES]).count(byte) != count:
                return position
        starts = range(position + _LENGTH.size, end, _FULL_CHUNK_BYTES)
        self._chunks += [view[start : start + CHUNK_BYTES] for start in starts]
        self._stream_size += count * CHUNK_BYTES
        self._chunks_left -= count
        return end


def _take_small_frames(data: bytes | memoryview, position: int, frames: list[Frame]) -> int:
    """Take frames of one chunk, as all messages up to 8 KiB are; return where something else begins."""
    last_head = len(data) - _ONE_CHUNK.size
    unpack = _ONE_CHUNK.unpack_from
    while position <= last_head:
        token, serial_no, chunk_count, length = unpack(data, position)
        start = position + _ONE_CHUNK.size
        # A single chunk may be longer than writers make it; the general way takes that, and says what is
        # wrong.
        if token != FRAME_TOKEN or chunk_count != 1 or not 0 <= length <= CHUNK_BYTES:
            break
        if start + length > len(data):
            break
        position = start + length
        frames.append(Frame(serial_no, bytes(data[start:position])))
    return position


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
