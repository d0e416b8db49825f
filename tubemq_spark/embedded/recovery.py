"""Opening a store again after its process was killed: what is whole stays, a torn tail is cut.

The index log and the data log are written one after the other and brought to the disk later, so after a
kill, or a loss of power, either may be ahead of the other or end in the middle of something. Everything
before the *flushed point* is known to be on the disk; what follows is looked at record by record.
"""

import dataclasses
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from tubemq_spark.embedded.records import INDEX_ENTRY, LENGTH_BYTES, RECORD_HEADER, RECORD_MAGIC
from tubemq_spark.embedded.segments import SegmentedLog
from tubemq_spark.protocol.payload import checksum

_POINT: Final = struct.Struct(">qqI")
_ENTRIES_A_READ: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class LogPoint:
    """A position in both logs of a store, in bytes."""

    index: int
    data: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """What recovery took away: bytes of the index log and of the data log."""

    index_bytes: int
    data_bytes: int


class FlushedPointFile:
    """Remembers on disk up to where a store is flushed."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def load(self) -> LogPoint | None:
        """Return the point, or None when there is none or it was torn while being written."""
        raw = os.pread(self._fd, _POINT.size, 0)
        if len(raw) < _POINT.size:
            return None
        index, data, crc = _POINT.unpack(raw)
        return LogPoint(index, data) if crc == _crc(index, data) else None

    def save(self, point: LogPoint) -> None:
        """Write the point; should it be lost, the next start only has more to look at."""
        os.pwrite(self._fd, _POINT.pack(point.index, point.data, _crc(point.index, point.data)), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclasses.dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of the index log and the offset it stands at."""

    offset: int
    partition_id: int
    position: int
    size: int

    @classmethod
    def unpack(cls, offset: int, raw: bytes, at: int = 0) -> Self:
        """Read an entry's bytes."""
        partition_id, position, size, _, _ = INDEX_ENTRY.unpack_from(raw, at)
        return cls(offset, partition_id, position, size)


def recover(index: SegmentedLog, data: SegmentedLog, flushed: LogPoint | None) -> Cut:
    """Cut both logs to the end of the last record that is whole in both, and say how much that took."""
    point = (
        flushed if flushed is not None and _covers(index, data, flushed) else _last_sound_start(index, data)
    )
    for entry in _entries_from(index, point.index):
        if entry.position < point.data or not _is_sound(data, entry):
            break
        point = LogPoint(entry.offset + INDEX_ENTRY.size, entry.position + entry.size)
    data_end = max(point.data, data.start)
    cut = Cut(index.end - point.index, data.end - data_end)
    if cut.index_bytes:
        index.truncate(point.index)
    if cut.data_bytes:
        data.truncate(data_end)
    return cut


def _covers(index: SegmentedLog, data: SegmentedLog, point: LogPoint) -> bool:
    """Whether the logs still reach as far as a flushed point: only a damaged disk takes that back."""
    return index.start <= point.index <= index.end and data.start <= point.data <= data.end


def _last_sound_start(index: SegmentedLog, data: SegmentedLog) -> LogPoint:
    """Find where to begin without a flushed point: the last index file whose first record is sound."""
    for segment in reversed(index.segments):
        for entry in _entries_from(index, segment.start):
            if _is_sound(data, entry):
                return LogPoint(entry.offset, entry.position)
            break
    return LogPoint(index.start, data.start)


def _entries_from(index: SegmentedLog, offset: int) -> Iterator[IndexEntry]:
    while raw := index.read(offset, INDEX_ENTRY.size * _ENTRIES_A_READ):
        whole = len(raw) - len(raw) % INDEX_ENTRY.size
        for at in range(0, whole, INDEX_ENTRY.size):
            yield IndexEntry.unpack(offset + at, raw, at)
        if whole != len(raw):
            return
        offset += whole


def _is_sound(data: SegmentedLog, entry: IndexEntry) -> bool:
    """Whether the record is there, is the one its index entry means, and is undamaged; or has expired."""
    if entry.partition_id < 0 or entry.size <= RECORD_HEADER.size:
        return False
    if entry.position + entry.size <= data.start:
        return True
    raw = data.read(entry.position, entry.size)
    if len(raw) != entry.size:
        return False
    length, magic, crc, partition_id, offset, *_ = RECORD_HEADER.unpack_from(raw)
    return (
        length == entry.size - LENGTH_BYTES
        and magic == RECORD_MAGIC
        and (partition_id, offset) == (entry.partition_id, entry.offset)
        and crc == checksum(memoryview(raw)[RECORD_HEADER.size :])
    )


def _crc(index: int, data: int) -> int:
    return zlib.crc32(struct.pack(">qq", index, data))
