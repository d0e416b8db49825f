"""The files of a checkpoint that say how far its query has come, wherever ``pyarrow.fs`` reaches.

They are only read, and the query may be running: it writes whole files, numbered in their order, and removes
old ones.
"""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyarrow import fs

from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.offsets.checkpoint_log import OffsetLog, Progress, UnknownLogError, progress
from tubemq_spark.offsets.source_offset import StreamOffset

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
SOURCES: Final = "sources"
STATE: Final = "state"
METADATA: Final = "metadata"
"""What Spark calls the parts of a checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a query has come."""

    finished: int | None
    """The number of the last micro-batch that has finished; None before the first."""
    sources: Mapping[str, Progress]
    """Each source of ours, by its name, or its number in the query; at least one."""


def read_checkpoint(location: FolderUri) -> Checkpoint:
    """Read what a query has written to its checkpoint, its ``checkpointLocation``; it may be running."""
    return CheckpointFiles(location).progress()


class CheckpointFiles:
    """The files of one checkpoint, as they were when this was made."""

    def __init__(self, location: FolderUri) -> None:
        """List them."""
        self.location = location
        with self._reading():
            self._system, path = fs.FileSystem.from_uri(location.text)
            self._root = path.rstrip("/")
            self.planned = tuple(sorted(self._numbered(OFFSETS)))
            """The numbers of the micro-batches that it tells of, at least one."""
            # A running query removes old files of both, so these may be others.
            self._finished_at = self._numbered(COMMITS)
        if not self.planned:
            raise self._unreadable("its query has not planned a micro-batch yet")

    @property
    def last(self) -> int:
        """The number of the last micro-batch that was planned."""
        return self.planned[-1]

    @property
    def finished(self) -> int | None:
        """The number of the last micro-batch that has finished; None before the first."""
        number = self.last if self.is_finished(self.last) else self.last - 1
        return number if number >= 0 else None

    def is_finished(self, number: int) -> bool:
        """Tell whether a micro-batch has finished: Spark runs one after the other."""
        return number < self.last or number in self._finished_at

    def finished_at(self, number: int) -> datetime.datetime | None:
        """Return when a micro-batch finished, in UTC; None if it has not, or if that is not told any more."""
        return self._finished_at.get(number)

    def log(self, number: int) -> OffsetLog:
        """Read what was planned for one of the micro-batches."""
        with self._reading():
            return OffsetLog.parse(self._text(f"{OFFSETS}/{number}"))

    def progress(self) -> Checkpoint:
        """Read how far the sources of ours have come."""
        ends = self.log(self.last).of_ours()
        if not ends:
            raise self._unreadable("its query does not read from TubeMQ")
        finished = self.is_finished(self.last)
        before: Mapping[str, StreamOffset] = {}
        if not finished and self.last - 1 in self.planned:
            before = self.log(self.last - 1).of_ours()
        return Checkpoint(self.finished, progress(before, ends, finished=finished))

    def query_id(self) -> str | None:
        """Return Spark's id of the query, if the checkpoint says it."""
        with self._reading():
            if self._system.get_file_info(f"{self._root}/{METADATA}").type is not fs.FileType.File:
                return None
            text = self._text(METADATA)
        try:
            return str(json.loads(text)["id"])
        except (ValueError, LookupError, TypeError):
            return None

    def keeps_state(self) -> bool:
        """Tell whether the query keeps state, as aggregations, joins and ``dropDuplicates`` do."""
        with self._reading():
            return bool(self._listed(STATE))

    def files_of_sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path in the checkpoint, and the content, of each file that Spark's sources keep."""
        with self._reading():
            infos = self._listed(SOURCES, recursive=True)
            for path in sorted(info.path for info in infos if info.type is fs.FileType.File):
                place = path.removeprefix(self._root).lstrip("/")
                yield place, self._content(place)

    def _numbered(self, folder: str) -> dict[int, datetime.datetime]:
        """Return the files of a folder that are named by a number, with the time of their last change."""
        # Others are checksums, and files that are not complete yet.
        return {
            int(info.base_name): info.mtime for info in self._listed(folder) if info.base_name.isdecimal()
        }

    def _listed(self, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        missing_ok = folder != OFFSETS
        selector = fs.FileSelector(f"{self._root}/{folder}", missing_ok, recursive)
        infos: list[fs.FileInfo] = self._system.get_file_info(selector)
        return infos

    def _text(self, place: str) -> str:
        return self._content(place).decode(errors="replace")

    def _content(self, place: str) -> bytes:
        with self._system.open_input_stream(f"{self._root}/{place}", compression=None) as stream:
            content: bytes = stream.readall()
        return content

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Give errors the name of the checkpoint."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(self.location.hide_in(" ".join(str(error).split()))) from None
        except UnknownLogError as error:
            raise self._unreadable(f"a file of its offsets is something else, {error}") from None

    def _unreadable(self, problem: str) -> OptionError:
        return OptionError("TUBEMQ_CHECKPOINT_UNREADABLE", checkpoint=self.location, problem=problem)
