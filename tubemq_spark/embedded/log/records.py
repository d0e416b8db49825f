"""What a store holds on disk: entries of the index log, and records of the data log with their headers.

Both layouts are TubeMQ's (DataStoreUtils.STORE_INDEX_HEAD_LEN, STORE_DATA_HEADER_LEN), big-endian.
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

INDEX_ENTRY: Final = struct.Struct(">iqiiq")
"""Partition, position in the data log, size there, key code, time of arrival in ms."""

INDEX_DTYPE: Final = np.dtype(
    [("partition", ">i4"), ("position", ">i8"), ("size", ">i4"), ("key", ">i4"), ("time", ">i8")]
)
"""The same entry for numpy."""

RECORD_HEADER: Final = struct.Struct(">iIiiqqiiqi")
"""Length (48 + payload), magic, checksum, partition, index offset, time, sender, key code, id, flag."""

RECORD_DTYPE: Final = np.dtype(
    [
        ("length", ">i4"),
        ("magic", ">u4"),
        ("checksum", ">i4"),
        ("partition", ">i4"),
        ("offset", ">i8"),
        ("time", ">i8"),
        ("sender", ">i4"),
        ("key", ">i4"),
        ("id", ">i8"),
        ("flag", ">i4"),
    ]
)
"""The same header for numpy."""

RECORD_MAGIC: Final = 0x02C998B8
LENGTH_BYTES: Final = 4
"""The length in a record's header does not count its own four bytes."""

NO_KEY: Final = -1
"""The key code of a message without a type."""


class NewRecord(NamedTuple):
    """A message to store; a named tuple, because one is created for every message sent."""

    partition_id: int
    payload: bytes
    checksum: int
    key_code: int
    sent_address: int
    flag: int


@dataclasses.dataclass(frozen=True, slots=True)
class LogBounds:
    """Offsets in index bytes; ``data_earliest`` and ``data_latest`` are bytes of the data log."""

    earliest: int
    latest: int
    flushed: int
    """``latest`` as far as it is on the disk."""
    data_earliest: int
    data_latest: int

    def clamp(self, offset: int) -> int:
        """Return the nearest offset within the bounds, rounded down to a whole index entry."""
        inside = min(max(offset, self.earliest), self.latest)
        return inside - inside % INDEX_ENTRY.size


@dataclasses.dataclass(slots=True)
class Traffic:
    """Messages and payload bytes that came in and went out since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    damaged: int = 0
    """Records found damaged and not delivered, each counted once."""

    def add(self, part: "Traffic") -> None:
        """Add the counts of one part."""
        self.messages_in += part.messages_in
        self.bytes_in += part.bytes_in
        self.messages_out += part.messages_out
        self.bytes_out += part.bytes_out
        self.damaged += part.damaged


_ENTRY_BYTES: Final = INDEX_ENTRY.size


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was stored: message ``i`` has offset ``offset + 28 * i`` and id ``message_id + i``."""

    offset: int
    message_id: int
    time_ms: int


def encode_batch(records: Sequence[NewRecord], place: Appended, position: int) -> tuple[bytes, bytes]:
    """Return the index entries and the data records of messages."""
    entries: list[bytes] = []
    parts: list[bytes] = []
    pack_entry, pack_header = INDEX_ENTRY.pack, RECORD_HEADER.pack
    offset, message_id, now = place.offset, place.message_id, place.time_ms
    for partition_id, payload, crc, key_code, address, flag in records:
        size = RECORD_HEADER.size + len(payload)
        entries.append(pack_entry(partition_id, position, size, key_code, now))
        parts.append(
            pack_header(
                size - LENGTH_BYTES,
                RECORD_MAGIC,
                crc,
                partition_id,
                offset,
                now,
                address,
                key_code,
                message_id,
                flag,
            )
        )
        parts.append(payload)
        offset += _ENTRY_BYTES
        position += size
        message_id += 1
    return b"".join(entries), b"".join(parts)
