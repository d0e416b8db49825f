"""Checkpoints of streaming queries as files, wherever ``pyarrow.fs`` reaches.

``CheckpointFiles`` say how far a query has come. They are only read, and the query may be running: it writes
whole files, numbered in their order, and removes old ones.

``NewCheckpoint`` lets a stream go on elsewhere than with its old one, which stays as it is. When a query
starts, Spark (``MicroBatchExecution`` of PySpark 4.2 and 4.3) takes the last file of ``offsets``, with the
one before it as its beginning, and runs that micro-batch again unless ``commits`` has it. So the new
checkpoint has one micro-batch that is planned, not finished, and empty: it begins and ends at the new
offsets. Spark runs it, and goes on from there.

- **Numbers go on behind the old ones.** Sinks pass over a micro-batch whose number they know: Spark's file
  sink, and Delta tables with an application id of the user's. Only a query without its state begins at 0
  again, since its state store cannot begin with another version.
- **The query's id is new.** Spark refuses two running queries with one id. Receipts and the ids of messages
  are named by it, so what is read again is written again.
- **The watermark is left out**: what is read again would be late.
- What other sources of the query keep is copied. They go on where the last finished micro-batch ended.
"""

import contextlib
import dataclasses
import datetime
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyarrow import fs

from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.checkpoint_log import OffsetLog, Progress, UnknownLogError, progress
from tubemq_spark.offsets.marks import Mark, passed
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset

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


class CheckpointFiles:
    """The files of one checkpoint, a query's ``checkpointLocation``, as they were when this was made."""

    def __init__(self, location: FolderUri) -> None:
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


_NOT_BEGUN: Final = "-"
"""The offset of a source that has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stand:
    """Where a source of a query stands, and with it the others."""

    source: str
    """Its name, or its number in the query."""
    offsets: Mapping[TopicPartition, int]
    """Where the last finished micro-batch ended, in index bytes."""
    partial: bool
    """See ``SourceOffset``."""
    log: OffsetLog
    """Where all sources stood then; the offset of this one may be missing."""
    marks: tuple[Mark, ...] = ()
    """See ``SourceOffset``."""

    def elsewhere(
        self, offsets: Mapping[TopicPartition, int], new: Mapping[TopicPartition, int]
    ) -> SourceOffset:
        """Return where the source stands at other offsets, with the marks of records before them."""
        return SourceOffset(offsets, new, self.partial, tuple(passed(self.marks, offsets)))


def stand_of(files: CheckpointFiles, named: str | None) -> Stand:
    """Return where the source stands that is named, or the only one."""
    checkpoint = files.progress()
    last = files.log(files.last)
    ours = list(checkpoint.sources)
    if named is None and len(last.ends) == 1:
        named = ours[0]
    if named not in ours:
        raise OptionError(
            "TUBEMQ_OPTION_VALUE",
            option="--source",
            value=named or "",
            expected=f"the source that is meant of this query's {len(last.ends)}; these read from TubeMQ: "
            f"{', '.join(ours)}",
        )
    progress = checkpoint.sources[named]
    if checkpoint.finished is None:
        log = dataclasses.replace(last, ends=dict.fromkeys(last.ends, _NOT_BEGUN))
    else:
        log = files.log(checkpoint.finished)
    return Stand(named, progress.reached, progress.partial, log, progress.marks)


def stand_after(files: CheckpointFiles, source: str, number: int) -> Stand:
    """Return where a source stood when a micro-batch had finished."""
    finished = [planned for planned in files.planned if files.is_finished(planned)]
    end = _end_of(source, files, number) if number in finished else None
    if end is None:
        # Named sources may have come later, or may have been away for a while.
        finished = [planned for planned in finished if _end_of(source, files, planned)]
        expected = f"{finished[0]} to {finished[-1]}" if finished else "none has finished"
        raise OptionError(
            "TUBEMQ_OPTION_VALUE",
            option="--batch",
            value=number,
            expected=f"a finished micro-batch of source {source} that the checkpoint still has: {expected}",
        )
    return Stand(source, end.next_offsets, end.partial, files.log(number), end.marks)


def _end_of(source: str, files: CheckpointFiles, number: int) -> SourceOffset | None:
    """Return where a micro-batch ends for a source; None if the source has no offset in it."""
    end = files.log(number).of_ours().get(source)
    return end if isinstance(end, SourceOffset) else None


class NewCheckpoint:
    """A checkpoint that is about to be written."""

    def __init__(self, old: CheckpointFiles, target: FolderUri, *, drop_state: bool) -> None:
        """See that it can be written."""
        self._old = old
        self._target = target
        self.query_id = str(uuid.uuid4())
        self.without_state = old.keeps_state()
        """Whether there is state, which is left out."""
        if self.without_state and not drop_state:
            raise OptionError("TUBEMQ_CHECKPOINT_STATE", checkpoint=old.location)
        if self.without_state and len(old.log(old.last).ends) > 1:
            raise OptionError("TUBEMQ_CHECKPOINT_STATE_OF_SOURCES", checkpoint=old.location)
        self.first = 0 if self.without_state else old.last + 1
        """The number of its micro-batch, which is empty."""
        self._refuse_other_than_empty()

    def write(self, stand: Stand, offsets: SourceOffset, time_ms: int) -> None:
        """Write it."""
        system, root = self._opened()
        for place, content in self._files(stand, offsets, time_ms):
            try:
                system.create_dir(f"{root}/{place}".rpartition("/")[0], recursive=True)
                with system.open_output_stream(f"{root}/{place}", compression=None) as stream:
                    stream.write(content)
            except (OSError, pa.ArrowException) as error:
                raise self._target.unusable("NEW_DIR", "written to", error) from None

    def _files(self, stand: Stand, offsets: SourceOffset, time_ms: int) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each file, and what is in it."""
        log = stand.log.without_watermark(time_ms)
        # Spark needs the last two, so the checkpoint is whole when the last one is written.
        if self.first:
            before = dataclasses.replace(offsets, first_offsets={})
            yield f"{OFFSETS}/{self.first - 1}", _with_end(log, stand.source, before)
        else:
            offsets = dataclasses.replace(offsets, first_offsets=offsets.next_offsets)
        yield METADATA, json.dumps({"id": self.query_id}).encode()
        yield from self._old.files_of_sources()
        yield f"{OFFSETS}/{self.first}", _with_end(log, stand.source, offsets)

    def _refuse_other_than_empty(self) -> None:
        try:
            system, root = self._opened()
            old_system, old_path = fs.FileSystem.from_uri(self._old.location.text)
            infos = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise self._target.unusable("NEW_DIR", "read", error) from None
        within = old_system.equals(system) and f"{root}/".startswith(f"{old_path.rstrip('/')}/")
        if infos or within:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option="NEW_DIR",
                value=self._target,
                expected="a folder that is not there, or is empty, and not a part of the old checkpoint",
            )

    def _opened(self) -> tuple[fs.FileSystem, str]:
        system, path = fs.FileSystem.from_uri(self._target.text)
        return system, path.rstrip("/")


def _with_end(log: OffsetLog, source: str, offsets: SourceOffset) -> bytes:
    """Return a file of offsets in which a source ends elsewhere."""
    line = json.dumps(offsets.to_json())  # as PySpark writes them: Spark compares offsets as text
    return dataclasses.replace(log, ends={**log.ends, source: line}).text.encode()
