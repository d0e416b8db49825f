"""Memory that a socket is received into until a frame is whole; it is used again for the next frame.

A long frame comes in many parts. Its first bytes say how long it is when it is laid out as TubeMQ writes it,
so nothing is cut before it is whole, and each byte is copied once, out of here. Frames that are laid out in
another way are handed on in parts, as they come.
"""

import functools
import struct
from typing import Final

from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN, MAX_CHUNKS

_FIRST_BYTES: Final = 1 << 20
"""The answer to a fetch is about half as long. A longer frame has a buffer of its own."""
_HEAD: Final = struct.Struct(">IiII")  # token, serial number, listSize, and the length of the first chunk
_LENGTH: Final = struct.Struct(">I")
_LENGTH_BYTES: Final = 4


class ReceiveBuffer:
    """Bytes of frames that a peer sends one after the other."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._filled = 0
        self._awaited = _HEAD.size
        """How many bytes there must be before anything can be said about them."""
        self._last_chunk_at = 0
        """Where the length of the frame's last chunk is; 0 until that is known."""

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong."""
        return self._buffer[self._filled :]

    @property
    def begun(self) -> bool:
        """Whether bytes of a frame that is not whole are here."""
        return self._filled > 0

    def add(self, count: int) -> memoryview | None:
        """Take bytes that were put into ``room``; return what ``flush`` does as soon as a frame is whole."""
        self._filled += count
        while self._filled >= self._awaited:
            if not self._look_further():
                return self.flush()
        return None

    def flush(self) -> memoryview | None:
        """Return the bytes received, if any, to be cut into frames before the next one is received."""
        if not self._filled:
            return None
        data = self._buffer[: self._filled]
        self._restart()
        return data

    def pass_on(self) -> None:
        """Return the next bytes as they come: a frame has begun that is not whole."""
        self._awaited = 1
        self._last_chunk_at = -1

    def _look_further(self) -> bool:
        """Find out how long the frame is; return whether it is certain that more of it must come."""
        if self._last_chunk_at < 0:
            return False
        if not self._last_chunk_at:
            token, _, chunks, length = _HEAD.unpack_from(self._buffer)
            # Every chunk but the last is full (NettyProtocolEncoder).
            usual = chunks == 1 or (1 < chunks <= MAX_CHUNKS and length == CHUNK_BYTES)
            if token != FRAME_TOKEN or not usual:
                return False
            self._last_chunk_at = _HEAD.size - _LENGTH_BYTES + (chunks - 1) * (_LENGTH_BYTES + CHUNK_BYTES)
            self._await(self._last_chunk_at + _LENGTH_BYTES)
            return True
        (length,) = _LENGTH.unpack_from(self._buffer, self._last_chunk_at)
        whole = self._last_chunk_at + _LENGTH_BYTES + length
        if length > CHUNK_BYTES or self._awaited == whole:
            return False
        self._await(whole)
        return True

    def _await(self, count: int) -> None:
        self._awaited = count
        if count > len(self._buffer):
            longer = memoryview(bytearray(count + CHUNK_BYTES))
            longer[: self._filled] = self._buffer[: self._filled]
            self._buffer = longer

    def _restart(self) -> None:
        if len(self._buffer) > _FIRST_BYTES:
            self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._filled = self._last_chunk_at = 0
        self._awaited = _HEAD.size


_FETCH_BYTES: Final = 4 << 20
"""More than what a fetch makes on either side."""


@functools.cache
def keep_freed_memory(largest_bytes: int = _FETCH_BYTES) -> None:
    """Make malloc keep freed pieces of up to so many bytes instead of giving each back.

    A fetch makes and frees several pieces of half a megabyte on either side. At first glibc maps and unmaps
    every one of them, and to touch new pages takes longer than to fill them: without this a reader gets two
    thirds. glibc raises its limits by itself (``M_MMAP_THRESHOLD`` in mallopt(3)) when something larger is
    freed, as is done here once a process; to other C libraries it means nothing. What each thread keeps
    stays below twice that size (``M_TRIM_THRESHOLD``).

    glibc takes at most 32 MiB as that size.
    """
    bytes(largest_bytes)
