"""The log of one store: an index of fixed-size entries, and the records that they point to, on disk.

All partitions of a store share both (MessageStore, MsgFileStore). An append is acknowledged when it is in the
files: then the kernel keeps it if this process is killed; ``flush`` makes it survive a power failure.

States: a store is *open* until ``close``. An open one *rests* while it has no files open: ``rest`` closes
them when everything is flushed, and each use opens them again. When the disk refuses a flush, the
store stays open but is *read-only*: the kernel forgets which bytes it could not write, so nothing after that
counts as flushed, and no append succeeds.

Invariants:

1. ``_lock`` guards the ends of both logs, the number of readers, ``resting`` and ``_closed``. Appends,
   retention and cutting hold it, so there is one writer at a time.
2. ``_flush_lock`` is held during a flush, and taken before ``_lock``. A flush holds ``_lock`` only to take
   the point that it flushes and to publish it, so appends continue while the disk works.
3. Reads hold no lock while they read: they are counted in ``_readers``. What cuts or closes the logs waits
   until the count is 0. Retention does not wait: dropped files stay open for a while. A store does not rest
   while the count is not 0, nor during a flush.
4. Data is written before its index entry, and cut after it: an entry never points to data that does not
   exist.
"""

import contextlib
import dataclasses
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tubemq_spark.embedded.log.reading import LogBatch, ReadLimits, read_batch
from tubemq_spark.embedded.log.records import (
    INDEX_ENTRY,
    RECORD_HEADER,
    Appended,
    LogBounds,
    NewRecord,
    Traffic,
    encode_batch,
)
from tubemq_spark.embedded.log.recovery import (
    FlushedPointFile,
    LogPoint,
    first_readable,
    newest_message_id,
    recover,
)
from tubemq_spark.embedded.log.segments import SegmentedLog
from tubemq_spark.embedded.scheduler import monotonic_ms, wall_ms

logger = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 10_000
"""Offsets that are remembered; damaged records beyond that are neither counted nor logged."""


class DamagedRecords:
    """The damaged records of one store: each is counted and logged once; safe to use from any thread."""

    def __init__(self, store: str) -> None:
        """Take the name that the log gives the store."""
        self._store = store
        self._lock = threading.Lock()
        self._offsets: set[int] = set()

    def report(self, offsets: Sequence[int]) -> int:
        """Log those of some damaged records that are new; return how many that were."""
        with self._lock:
            new = [offset for offset in offsets if offset not in self._offsets]
            new = new[: max(0, _MAX_REMEMBERED - len(self._offsets))]
            self._offsets.update(new)
            total = len(self._offsets)
        if new:
            logger.error(
                "Store %s: %d damaged records from offset %d to %d are not delivered; %d have been found "
                "since the start. Check the disk, or restore the directory from a backup",
                self._store,
                len(new),
                new[0],
                new[-1],
                total,
            )
        return len(new)


_ENTRY_BYTES: Final = INDEX_ENTRY.size


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes of the files in bytes, and when to flush (TubeMQ's names in brackets)."""

    data_segment_bytes: int = 1 << 30
    """[maxSegmentSize]"""
    index_segment_bytes: int = 700_000 * _ENTRY_BYTES
    """[maxIndexSegmentSize]"""
    flush_messages: int = 1000
    """[unflushThreshold]"""
    flush_interval_ms: int = 10_000
    """[unflushInterval]"""
    flush_bytes: int = 0
    """[unflushDataHold]; 0: not used."""
    max_unflushed_bytes: int = 0
    """The store is full when this much is not flushed; 0: never."""
    wait_bytes: int = 128 << 20
    """When this much is not flushed, an append waits for the disk. That limits what is checked when the store
    is opened after a kill. At half of it, a flush is due."""


class Store:
    """One store of one topic; safe to use from any thread."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        now_ms: Callable[[], int] = wall_ms,
        elapsed_ms: Callable[[], int] = monotonic_ms,
        awake: "set[Store] | None" = None,
    ) -> None:
        """Open the store in a directory, or create it; what a killed process left unfinished is cut off.

        ``now_ms`` is used for the times of messages and the age of files; ``elapsed_ms`` for when a flush is
        due, because the time of day can be set back. ``awake`` is a set that the store is in while it has
        files open.
        """
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self._lock = threading.Condition(threading.Lock())
        self._flush_lock = threading.Lock()
        self._readers = 0
        self._awake = set() if awake is None else awake
        self.resting = False
        """Whether it has no files open until it is used."""
        self._closed = False
        self.used_at_ms = elapsed_ms()
        """When it was last written or read, in the time of ``elapsed_ms``."""
        self._traffic = Traffic()
        self._damaged = DamagedRecords(directory.name)
        with contextlib.ExitStack() as undo:
            self._data = SegmentedLog(directory, ".tube", settings.data_segment_bytes)
            undo.callback(self._data.close)
            self._index = SegmentedLog(directory / "index", ".index", settings.index_segment_bytes)
            undo.callback(self._index.close)
            self._point_file = FlushedPointFile(directory / "flushed")
            recover(directory, self._index, self._data, self._point_file.load())
            self._earliest = first_readable(self._index, self._data)
            self._last_id = newest_message_id(self._index, self._data)
            self._flushed = LogPoint(-1, -1)
            self._flushed_at_ms = elapsed_ms()
            self.flush()
            self._awake.add(self)
            undo.pop_all()

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self._directory.name

    @property
    def bounds(self) -> LogBounds:
        """Where the store begins and ends at present."""
        with self._lock:
            self._require_not_closed()
            return LogBounds(
                self._earliest, self._index.end, self._flushed.index, self._data.start, self._data.end
            )

    @property
    def traffic(self) -> Traffic:
        """The traffic since the start."""
        with self._lock:
            return dataclasses.replace(self._traffic)

    @property
    def full(self) -> bool:
        """Whether too much is not flushed to accept more; the next ``flush_if_due`` flushes."""
        limit = self._settings.max_unflushed_bytes
        if not limit:
            return False
        with self._lock:
            return self._unflushed_bytes >= limit

    def configure(self, settings: StoreSettings) -> None:
        """Change when to flush; the sizes of files remain those of the opening."""
        self._settings = settings

    def append(self, records: Sequence[NewRecord]) -> Appended:
        """Store messages in order; on return they are visible, and safe from a kill.

        After an OSError none of them is stored.
        """
        with self._lock:
            self._require_open()
            waits = self._unflushed_bytes >= self._settings.wait_bytes
        if waits:  # A start after a kill would take long.
            self.flush()
        with self._lock:
            self._require_open()
            self._require_sound_disk()
            self.used_at_ms = self._elapsed_ms()
            appended = Appended(self._index.end, max(self._last_id + 1, time.time_ns()), self._now_ms())
            index, data = encode_batch(records, appended, self._data.end)
            before = self._data.end
            # Invariant 4: data first.
            self._data.append(data)
            try:
                self._index.append(index)
            except OSError:
                self._data.truncate(before)
                raise
            self._last_id = appended.message_id + len(records) - 1
            self._traffic.messages_in += len(records)
            self._traffic.bytes_in += len(data) - RECORD_HEADER.size * len(records)
        return appended

    def read(self, partition_id: int, start: int, limits: ReadLimits) -> LogBatch | None:
        """Read messages of one partition from an offset on; None if there is no visible entry."""
        with self._lock:
            self._require_open()
            self.used_at_ms = self._elapsed_ms()
            self._readers += 1
        batch = None
        try:
            batch = read_batch(self._index, self._data, partition_id, start, limits)
        finally:
            with self._lock:
                self._readers -= 1
                self._lock.notify_all()
                if batch is not None:
                    self._traffic.messages_out += len(batch.records)
                    self._traffic.bytes_out += int(batch.records.sizes.sum())
        if batch is not None and batch.damaged:
            new = self._damaged.report(batch.damaged)
            with self._lock:
                self._traffic.damaged += new
        return batch

    def flush_if_due(self) -> None:
        """Flush if enough messages, bytes or time have accumulated since the last time."""
        settings = self._settings
        with self._lock:
            if self._closed:
                return
            self._require_sound_disk()
            waiting = self._index.end - self._flushed.index
            waiting_bytes = self._unflushed_bytes
        waited_ms = self._elapsed_ms() - self._flushed_at_ms
        if waiting and (
            waiting >= settings.flush_messages * _ENTRY_BYTES
            or waited_ms >= settings.flush_interval_ms
            or 0 < settings.flush_bytes <= waiting_bytes
            or 0 < settings.max_unflushed_bytes <= waiting_bytes
            or waiting_bytes >= settings.wait_bytes // 2
        ):
            self.flush()

    def flush(self) -> None:
        """Flush everything stored so far to the disk; appends continue in the meantime."""
        with self._flush_lock:
            with self._lock:
                self._require_open()
                self._require_sound_disk()
                point = LogPoint(self._index.end, self._data.end)
            self._flushed_at_ms = self._elapsed_ms()
            if point != self._flushed:
                with contextlib.suppress(OSError):
                    self._data.sync()
                    self._index.sync()
                self._require_sound_disk()
                self._point_file.save(point)
                with self._lock:
                    self._flushed = point

    def expire(self, older_than_ms: int, *, roll: bool = False) -> int:
        """Delete the files that were last written longer ago than that; return the new earliest offset.

        As in TubeMQ, the last files of the index and of the data are kept, unless ``roll`` starts new ones
        first. Index and data are deleted separately; the earliest offset is that of the first message whose
        data still exists. Where no file has expired, nothing is flushed: consumers of flushed messages would
        see them earlier than TubeMQ shows them.
        """
        if roll:
            self.flush()
        now_ms = self._now_ms()
        with self._lock:
            self._require_not_closed()
            self._require_sound_disk()
            logs = (self._index, self._data)
            if roll:
                self._require_open()
                for log in logs:
                    log.roll()
            ends = [log.expired_end(now_ms - older_than_ms) for log in logs]
            expired = any(end > log.start for log, end in zip(logs, ends, strict=True))
            if self.resting and not expired:
                return self._earliest
        if expired:
            # First: a power failure could lose what follows a deleted file, and its offsets would be reused.
            self.flush()
        with self._lock:
            self._require_open()
            for log, end in zip(logs, ends, strict=True):
                log.drop_before(end)
            self._earliest = first_readable(self._index, self._data)
            return self._earliest

    def lose_from(self, offset: int) -> int:
        """Cut off the messages from an offset on, as a crash does; return where the store then ends.

        Their offsets are reused, their message ids are not.
        """
        with self._flush_lock, self._lock:
            self._lock.wait_for(lambda: self._readers == 0)
            self._require_open()
            offset = max(offset - offset % _ENTRY_BYTES, self._earliest)
            raw = self._index.read(offset, _ENTRY_BYTES)
            if raw:
                _, position, *_ = INDEX_ENTRY.unpack(raw)
                # The point first: one behind the end means that flushed messages are missing.
                self._flushed = LogPoint(min(self._flushed.index, offset), min(self._flushed.data, position))
                self._point_file.save(self._flushed)
                # Invariant 4: the index first.
                self._index.truncate(offset)
                self._data.truncate(position)
            return self._index.end

    @property
    def open_files(self) -> int:
        """How many files it has open."""
        return self._data.open_files + self._index.open_files

    def rest(self) -> None:
        """Flush, and close the files until they are needed again, unless it is in use at this moment."""
        if self.resting:
            return
        self.flush()
        with self._flush_lock, self._lock:
            flushed = self._flushed == LogPoint(self._index.end, self._data.end)
            if flushed and not self._readers and not self._closed:
                self._close_files()
                self.resting = True

    def close(self) -> None:
        """Flush and close the files, after the reads in progress have finished."""
        try:
            if not self.resting:
                self.flush()
        finally:
            with self._flush_lock, self._lock:
                self._closed = True
                self._lock.wait_for(lambda: self._readers == 0)
                self._awake.discard(self)
                self._data.close()
                self._index.close()

    @property
    def _unflushed_bytes(self) -> int:
        return self._data.end - self._flushed.data

    def _require_open(self) -> None:
        """Open the files of a store that rests; ``_lock`` is held."""
        self._require_not_closed()
        if self.resting:
            try:
                self._data.wake()
                self._index.wake()
            except OSError:
                self._close_files()
                raise
            self.resting = False
            self._awake.add(self)

    def _close_files(self) -> None:
        self._awake.discard(self)
        self._data.rest()
        self._index.rest()

    def _require_not_closed(self) -> None:
        if self._closed:
            raise OSError(errno.ESHUTDOWN, f"store {self._directory.name} is closed")

    def _require_sound_disk(self) -> None:
        """Refuse to continue after a failed sync, because the kernel forgets what it could not write."""
        error = self._data.failed_sync or self._index.failed_sync
        if error is not None:
            what = f"the disk did not keep the data of store {self._directory.name} ({error})"
            raise OSError(error.errno, f"{what}; check the disk and restart the server") from error
