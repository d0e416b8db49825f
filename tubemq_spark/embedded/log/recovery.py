"""Opening a store after its process was killed: whole records are kept, a torn tail is cut off.

The index log and the data log are written one after the other and flushed to the disk later. So after a kill
or a power failure either may be ahead of the other, or end in the middle of a record. Everything before the
*flushed point* is known to be on the disk; what follows is checked record by record. A store limits how much
that can be, however large its files are (``store.StoreSettings.wait_bytes``).

Only what was never known to be flushed is cut off. Where a log ends before the flushed point, the disk, or a
copy of the directory, has lost messages; their offsets would be used again, so the store is not opened.
"""

import dataclasses
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tubemq_spark.embedded.log.reading import Bools, Entries, read_block
from tubemq_spark.embedded.log.records import INDEX_DTYPE, INDEX_ENTRY, RECORD_HEADER
from tubemq_spark.embedded.log.segments import SegmentedLog
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.constants import MAX_FRAME_BYTES


def first_readable(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the offset of the first entry whose record has not expired; positions rise along an index."""
    low, high = index.start // INDEX_ENTRY.size, index.end // INDEX_ENTRY.size
    while low < high:
        middle = (low + high) // 2
        _, position, *_ = INDEX_ENTRY.unpack(index.read(middle * INDEX_ENTRY.size, INDEX_ENTRY.size))
        if position < data.start:
            low = middle + 1
        else:
            high = middle
    return low * INDEX_ENTRY.size


def newest_message_id(index: SegmentedLog, data: SegmentedLog) -> int:
    """Return the id of the last message, 0 when there is none.

    Ids continue from there, so that they rise after a restart even if the clock was set back.
    """
    raw = index.read(index.end - INDEX_ENTRY.size, INDEX_ENTRY.size)
    if not raw:
        return 0
    _, position, *_ = INDEX_ENTRY.unpack(raw)
    header = data.read(position, RECORD_HEADER.size)
    return int(RECORD_HEADER.unpack(header)[8]) if len(header) == RECORD_HEADER.size else 0


logger = logging.getLogger(__name__)

_POINT: Final = struct.Struct(">qqI")
_ENTRIES_PER_STEP: Final = 4096
_BYTES_PER_STEP: Final = 4 << 20
"""How much is checked at a time, but always at least one record."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogPoint:
    """A position in both logs of a store, in bytes."""

    index: int
    data: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """What recovery checked and what it cut off: bytes of the index log and of the data log."""

    checked_bytes: int
    """Bytes of the data log that were not known to be flushed."""
    index_bytes: int
    data_bytes: int


class FlushedPointFile:
    """Keeps on the disk up to where a store is flushed."""

    def __init__(self, path: Path) -> None:
        """Take the path of the file, which is open only while it is used."""
        self._path = path

    def load(self) -> LogPoint | None:
        """Return the point, or None if there is none or it was torn by a kill."""
        raw = self._path.read_bytes()[: _POINT.size] if self._path.exists() else b""
        if len(raw) < _POINT.size:
            return None
        index, data, crc = _POINT.unpack(raw)
        return LogPoint(index, data) if crc == _crc(index, data) else None

    def save(self, point: LogPoint) -> None:
        """Write the point; if it is lost, the next start just has more to check."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, _POINT.pack(point.index, point.data, _crc(point.index, point.data)), 0)
        finally:
            os.close(fd)


def recover(directory: Path, index: SegmentedLog, data: SegmentedLog, flushed: LogPoint | None) -> None:
    """Cut both logs of a store to the end of the last record that is whole in both.

    What had to be checked, and what was cut, is logged under the name of the store's directory. Where flushed
    bytes are missing, that is a DataLossError, and nothing is changed.
    """
    if flushed is not None:
        _require_flushed(directory, index, data, flushed)
    store = directory.name
    cut = _cut_torn_tail(index, data, flushed)
    if cut.checked_bytes:
        logger.info(
            "Store %s was not closed properly: checked the last %d bytes of its data",
            store,
            cut.checked_bytes,
        )
    if cut.index_bytes or cut.data_bytes:
        logger.warning(
            "Store %s was not closed properly: cut off %d unfinished index entries (%d bytes) "
            "and %d bytes of data; %d messages are left",
            store,
            -(-cut.index_bytes // INDEX_ENTRY.size),
            cut.index_bytes,
            cut.data_bytes,
            (index.end - index.start) // INDEX_ENTRY.size,
        )


def _cut_torn_tail(index: SegmentedLog, data: SegmentedLog, flushed: LogPoint | None) -> _Cut:
    point = (
        flushed if flushed is not None and _covers(index, data, flushed) else _last_sound_start(index, data)
    )
    checked_bytes = data.end - point.data
    for entries in _steps(index, point.index):
        sound = _are_sound(data, entries, point)
        count = int(np.argmin(sound)) if not sound.all() else len(sound)
        if count:
            last = entries[count - 1]
            point = LogPoint(
                point.index + count * INDEX_ENTRY.size, int(last["position"]) + int(last["size"])
            )
        if count < len(sound):
            break
    data_end = max(point.data, data.start)
    cut = _Cut(checked_bytes, index.end - point.index, data.end - data_end)
    if cut.index_bytes:
        index.truncate(point.index)
    if cut.data_bytes:
        data.truncate(data_end)
    return cut


def _require_flushed(directory: Path, index: SegmentedLog, data: SegmentedLog, point: LogPoint) -> None:
    missing = [
        f"{what} was flushed up to byte {flushed}, but ends at byte {log.end}"
        for what, log, flushed in (("its index", index, point.index), ("its data", data, point.data))
        if log.end < flushed
    ]
    if missing:
        raise DataLossError("TUBEMQ_STORE_DAMAGED", path=directory, what=" and ".join(missing))


def _covers(index: SegmentedLog, data: SegmentedLog, point: LogPoint) -> bool:
    """Whether a flushed point is in the logs; an old one, from a backup, may be before their start."""
    return index.start <= point.index and data.start <= point.data


def _last_sound_start(index: SegmentedLog, data: SegmentedLog) -> LogPoint:
    """Find where to start without a flushed point: at the last index file whose first record is sound."""
    for segment in reversed(index.segments):
        first = _entries(index, segment.start, 1)
        if len(first):
            point = LogPoint(segment.start, int(first[0]["position"]))
            if _are_sound(data, first, point).all():
                return point
    return LogPoint(index.start, data.start)


def _steps(index: SegmentedLog, offset: int) -> Iterator[Entries]:
    """Yield the whole entries from an offset on, with a bounded amount of data at a time."""
    while len(entries := _entries(index, offset, _ENTRIES_PER_STEP)):
        # A damaged entry may claim any size.
        sizes = np.clip(entries["size"].astype(np.int64), 0, MAX_FRAME_BYTES)
        count = int(np.searchsorted(np.cumsum(sizes), _BYTES_PER_STEP)) + 1
        yield entries[:count]
        offset += min(count, len(entries)) * INDEX_ENTRY.size


def _entries(index: SegmentedLog, offset: int, count: int) -> Entries:
    raw = index.read(offset, count * INDEX_ENTRY.size)
    return np.frombuffer(raw, INDEX_DTYPE, len(raw) // INDEX_ENTRY.size)


def _are_sound(data: SegmentedLog, entries: Entries, point: LogPoint) -> Bools:
    """Whether records follow each other from a point on, and are undamaged or have expired."""
    positions = entries["position"].astype(np.int64)
    ends = positions + entries["size"]
    rising = positions >= np.concatenate(([point.data], ends[:-1]))
    claims = (entries["partition"] >= 0) & (entries["size"] > RECORD_HEADER.size)
    offsets = point.index + np.arange(len(entries)) * INDEX_ENTRY.size
    sound: Bools = rising & claims & ((ends <= data.start) | read_block(data, entries, offsets).sound)
    return sound


def _crc(index: int, data: int) -> int:
    return zlib.crc32(struct.pack(">qq", index, data))
