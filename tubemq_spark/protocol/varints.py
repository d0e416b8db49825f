"""Protobuf fields at many positions of one buffer at once, with numpy.

A varint is read as one unaligned 8-byte word: its lowest byte without the top bit set is the last one, and
the 7-bit groups up to there are pushed together in three steps, each halving their number. The two bytes that
only the longest varints have are added afterwards.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Words = NDArray[np.uint64]

PADDING: Final = bytes(32)
"""What must stand behind a buffer, so that reads at its end stay inside."""

_WORD_BYTES: Final = 8
_TOP_BITS: Final = np.uint64(0x8080808080808080)
_GROUPS: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(shift))
    for keep, move, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
"""For each step: the groups that stay, the groups that move down to them, and how far."""
_ONE: Final = np.uint64(1)
_BYTE: Final = np.uint64(0xFF)


class Words:
    """Reads of a buffer that ends with ``PADDING``; positions behind its end read the padding's zeros."""

    def __init__(self, data: bytes) -> None:
        self._end = len(data) - len(PADDING)
        self._words: _Words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))

    def read_field(self, tag: int, position: Int64s) -> tuple[Int64s, Int64s, Bools]:
        """Read a one-byte tag and the varint behind it.

        Returns:
            The values, the positions behind the varints, and where tag and varint were as expected; the
            other values mean nothing.
        """
        start = np.minimum(position, self._end)
        found = (self._words[start] & _BYTE) == tag
        start += 1
        word = self._words[start]
        stops = ~word & _TOP_BITS
        lowest = stops & (~stops + _ONE)
        mask = lowest ^ (lowest - _ONE)  # all bits up to the stop bit, or simply all without a stop bit
        value = word & mask & ~_TOP_BITS
        for keep, move, shift in _GROUPS:
            value = (value & keep) | ((value & move) >> shift)
        size = np.bitwise_count(mask).astype(np.int64) >> 3
        long = stops == 0
        if long.any():
            value, size, found = self._add_last_bytes(start, long, value, size, found)
        return value.view(np.int64), position + 1 + size, found

    def read_int32(self, position: Int64s) -> Int64s:
        """Read signed big-endian 4-byte numbers."""
        low_halves = self._words[np.minimum(position, self._end)].astype(np.uint32)
        return low_halves.byteswap().view(np.int32).astype(np.int64)

    def _add_last_bytes(
        self, start: Int64s, long: Bools, value: _Words, size: Int64s, found: Bools
    ) -> tuple[_Words, Int64s, Bools]:
        """Add the ninth and tenth byte where eight were not enough; a tenth byte above 1 is no varint."""
        tail = self._words[start + _WORD_BYTES]
        ninth = tail & _BYTE
        tenth = (tail >> np.uint64(8)) & _BYTE
        longest = ninth > 0x7F
        top = ((ninth & np.uint64(0x7F)) << np.uint64(56)) | np.where(
            longest, tenth << np.uint64(63), np.uint64(0)
        )
        return (
            np.where(long, value | top, value),
            np.where(long, _WORD_BYTES + 1 + longest, size),
            found & ~(long & longest & (tenth > 1)),
        )
