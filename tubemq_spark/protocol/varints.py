"""Protobuf fields of many messages at once, with numpy: read at many positions of one buffer, or written.

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
_SEVEN: Final = np.uint64(7)
_LONGEST: Final = 10
"""Bytes of the longest varint: that of a negative number."""
_LOW_BITS: Final = np.uint64(7 * _WORD_BYTES)
_LOW_GROUPS: Final = (_ONE << _LOW_BITS) - _ONE
_SPREADS: Final = tuple((keep, move >> shift, shift) for keep, move, shift in reversed(_GROUPS))
"""The steps of ``_GROUPS`` backwards: the groups that stay, those that move up, and how far."""
_CONTINUED: Final = np.array(
    [sum(0x80 << 8 * byte for byte in range(size - 1)) for size in range(_WORD_BYTES + 2)], np.uint64
)
"""For each size of a varint the top bits of its first eight bytes."""
_USED: Final = np.tri(1 + _LONGEST, dtype=np.bool_)
"""For each size of a varint which bytes of a field are written: the tag and so many."""
_LONGER_FROM: Final = np.array([1 << shift for shift in range(7, 64, 7)], np.uint64)
"""From where on a varint takes one byte more."""


class Words:
    """Reads of a buffer that ends with ``PADDING``; positions behind its end read the padding's zeros."""

    def __init__(self, data: bytes) -> None:
        self._end = len(data) - len(PADDING)
        self._words: _Words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))

    def read_field(self, tag: int, position: Int64s) -> tuple[Int64s, Int64s, Bools]:
        """Return the varints behind a one-byte tag, where each ends, and where both were as expected.

        The other values mean nothing.
        """
        start = np.minimum(position, self._end)
        valid = (self._words[start] & _BYTE) == tag
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
            value, size, valid = self._add_last_bytes(start, long, value, size, valid)
        return value.view(np.int64), position + 1 + size, valid

    def read_int32(self, position: Int64s) -> Int64s:
        """Read signed big-endian 4-byte numbers."""
        low_halves = self._words[np.minimum(position, self._end)].astype(np.uint32)
        return low_halves.byteswap().view(np.int32).astype(np.int64)

    def _add_last_bytes(
        self, start: Int64s, long: Bools, value: _Words, size: Int64s, valid: Bools
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
            valid & ~(long & longest & (tenth > 1)),
        )


def sizes(values: Int64s) -> Int64s:
    """Return how many bytes the varints of some numbers take; ten for a negative one."""
    return np.searchsorted(_LONGER_FROM, values.view(np.uint64), side="right") + 1


def encode_rows(tags: bytes, values: Int64s) -> tuple[bytes, Int64s]:
    """Write fields as tag and varint, all rows one behind the other; return them, and where each row ends.

    ``values`` has a row for each message, and a column for each tag.
    """
    size = sizes(values)
    number = values.view(np.uint64)
    # The groups are pulled apart in three steps, as ``read_field`` pushes them together.
    word = number & _LOW_GROUPS
    for stay, move, shift in _SPREADS:
        word = (word & stay) | ((word & move) << shift)
    word |= _CONTINUED[np.minimum(size, _WORD_BYTES + 1)]
    top = number >> _LOW_BITS
    fields = np.empty((*values.shape, 1 + _LONGEST), np.uint8)
    fields[..., 0] = np.frombuffer(tags, np.uint8)
    fields[..., 1:-2] = word.astype("<u8").view(np.uint8).reshape(*values.shape, _WORD_BYTES)
    # What goes on behind the ninth byte is the sign, and its bit already stands where the ninth byte says so.
    fields[..., -2] = top
    fields[..., -1] = top >> _SEVEN
    used = _USED.take(size, axis=0)
    ends = np.cumsum(size + 1)[len(tags) - 1 :: len(tags)]
    return fields[used].tobytes(), ends
