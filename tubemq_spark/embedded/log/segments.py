"""One append-only log on disk: a sequence of files without gaps.

A file is named after the position of its first byte in the log, in 20 digits (FileSegmentList). There is one
writer at a time, which the store's lock ensures; readers need no lock, even while files are dropped.
"""

import bisect
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Final

from tubemq_spark.embedded.files import make_directory, sync_directory
from tubemq_spark.embedded.scheduler import monotonic_ms
from tubemq_spark.errors import DataLossError

_NAME_DIGITS: Final = 20
_KEEP_OPEN_MS: Final = 120_000
"""How long a dropped file stays open, so that reads in progress can finish (as long as in TubeMQ)."""


@dataclasses.dataclass(slots=True, eq=False)
class Segment:
    """One file: bytes ``start`` to ``end`` of the log."""

    path: Path
    fd: int
    """-1 while the log rests."""
    start: int
    end: int


class SegmentedLog:
    """The files of one log in a directory, identified by their suffix."""

    def __init__(self, directory: Path, suffix: str, segment_bytes: int) -> None:
        """Open the log, or create one at position 0; files of ``segment_bytes`` or more are not extended.

        A gap between two files is a DataLossError; nothing is changed then.
        """
        self._directory = directory
        self._suffix = suffix
        self._segment_bytes = segment_bytes
        self._dropped: list[tuple[int, Segment]] = []
        self.failed_sync: OSError | None = None
        """The error of a failed sync, after which some bytes may never reach the disk."""
        make_directory(directory)
        self.segments: tuple[Segment, ...] = ()
        """The files, oldest first; there is always at least one."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for path in sorted(directory.glob("[0-9]" * _NAME_DIGITS + suffix)):
                self._adopt(path)
            if not self.segments:
                self._begin_segment(0)
            undo.pop_all()

    @property
    def start(self) -> int:
        """Position of the first byte that still exists."""
        return self.segments[0].start

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.segments[-1].end

    def find(self, position: int) -> Segment | None:
        """Return the file that contains a position; None before the start and from the end on."""
        segments = self.segments
        index = bisect.bisect_right(segments, position, key=lambda segment: segment.start) - 1
        if index < 0 or position >= segments[index].end:
            return None
        return segments[index]

    def read(self, position: int, size: int) -> bytes:
        """Read up to ``size`` bytes, but not beyond the end of the position's file."""
        segment = self.find(position)
        if segment is None:
            return b""
        return os.pread(segment.fd, min(size, segment.end - position), position - segment.start)

    def append(self, data: bytes) -> None:
        """Write at the end, into one file; if the last file is full, a new one is started.

        After an OSError the log is unchanged.
        """
        last = self.segments[-1]
        if last.end - last.start >= self._segment_bytes:
            last = self.roll()
        at = last.end - last.start
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(last.fd, rest, at + len(data) - len(rest)) :]
        except OSError:
            # Whole records of a failed write must not reappear when the log is opened again.
            with contextlib.suppress(OSError):
                os.ftruncate(last.fd, at)
            raise
        last.end += len(data)

    def roll(self) -> Segment:
        """Start a new file, unless the last one is empty; everything before it is flushed."""
        last = self.segments[-1]
        if last.end == last.start:
            return last
        self.sync()
        return self._begin_segment(last.end)

    def sync(self) -> None:
        """Flush everything to the disk; only the last file can have bytes that are not flushed.

        After a failure the kernel forgets which bytes it could not write, so a later success would prove
        nothing (fsync(2), EIO): each further call raises the first error again.
        """
        if self.failed_sync is not None:
            raise self.failed_sync
        try:
            os.fsync(self.segments[-1].fd)
        except OSError as error:
            self.failed_sync = error
            raise

    def truncate(self, end: int) -> None:
        """Cut off everything from a position on, which must not be before the log's start.

        The newest file is deleted first, so that an interruption leaves a log without a gap.
        """
        while (last := self.segments[-1]).start > end:
            last.path.unlink()
            self.segments = self.segments[:-1]
            os.close(last.fd)
            sync_directory(self._directory)
        if last.end > end:
            os.ftruncate(last.fd, end - last.start)
            last.end = end

    def drop_before(self, position: int, now_ms: int | None = None) -> None:
        """Delete the files that end at or before a position, except the last one.

        Each leaves the log before its file is closed, and only when its file is gone: after a failure the
        next call continues. ``now_ms`` is time that has passed since some moment, not the time of day.
        """
        now_ms = monotonic_ms() if now_ms is None else now_ms
        while len(self.segments) > 1 and self.segments[0].end <= position:
            first = self.segments[0]
            first.path.unlink(missing_ok=True)
            self.segments = self.segments[1:]
            self._dropped.append((now_ms, first))
        while self._dropped and self._dropped[0][0] + _KEEP_OPEN_MS <= now_ms:
            os.close(self._dropped.pop(0)[1].fd)

    def expired_end(self, written_before_ms: int) -> int:
        """Return where the log would begin without the files that were last written before a time."""
        start = self.start
        for segment in self.segments[:-1]:
            status = segment.path.stat() if segment.fd < 0 else os.fstat(segment.fd)
            if status.st_mtime_ns // 1_000_000 > written_before_ms:
                break
            start = segment.end
        return start

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return sum(segment.fd >= 0 for segment in self.segments) + len(self._dropped)

    def rest(self) -> None:
        """Close the files until ``wake``; there must be no reads in the meantime, and nothing to flush."""
        for segment in (*self.segments, *(segment for _, segment in self._dropped)):
            fd, segment.fd = segment.fd, -1
            if fd >= 0:
                os.close(fd)
        self._dropped.clear()

    def wake(self) -> None:
        """Open the files again."""
        for segment in self.segments:
            if segment.fd < 0:
                segment.fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the files; there must be no reads any more."""
        self.rest()
        self.segments = ()

    def _adopt(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        start = int(path.name.removesuffix(self._suffix))
        segment = Segment(path, fd, start, start + os.fstat(fd).st_size)
        previous = self.segments[-1:]
        self.segments += (segment,)
        if previous and previous[0].end != start:
            raise DataLossError(
                "TUBEMQ_STORE_DAMAGED",
                path=self._directory,
                what=f"{previous[0].path.name} ends at {previous[0].end}, but {path.name} follows",
            )

    def _begin_segment(self, start: int) -> Segment:
        path = self._directory / f"{start:0{_NAME_DIGITS}d}{self._suffix}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        segment = Segment(path, fd, start, start)
        self.segments += (segment,)
        sync_directory(self._directory)
        return segment
