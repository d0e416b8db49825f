"""The files of a checkpoint that say how far its query has come, wherever ``pyarrow.fs`` reaches."""

import dataclasses
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyarrow import fs

from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.offsets.checkpoint_log import Progress, UnknownLogError, progress, read_log
from tubemq_spark.offsets.source_offset import StreamOffset

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a query has come."""

    finished: int | None
    """The number of the last micro-batch that has finished; None before the first."""
    sources: Mapping[str, Progress]
    """Each source of ours, by its name, or its number in the query; at least one."""


def read_checkpoint(location: FolderUri) -> Checkpoint:
    """Read what a query has written to its checkpoint, its ``checkpointLocation``; it may be running.

    Raises:
        OptionError: there is no such checkpoint, it cannot be read, or its query does not read from TubeMQ.
        OffsetFormatError: an offset in it is damaged, or has a newer format version.
    """
    try:
        return _read(location)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(location, location.hide_in(" ".join(str(error).split()))) from None
    except UnknownLogError as error:
        raise _unreadable(location, f"its last file of offsets is something else, {error}") from None


def _read(location: FolderUri) -> Checkpoint:
    system, path = fs.FileSystem.from_uri(location.text)
    root = path.rstrip("/")
    offsets = f"{root}/{_OFFSETS}"
    files = system.get_file_info(fs.FileSelector(offsets))
    # Others are checksums, and files that are not complete yet.
    batches = sorted(int(info.base_name) for info in files if info.base_name.isdecimal())
    if not batches:
        raise _unreadable(location, "its query has not planned a micro-batch yet")
    last = batches[-1]
    ends = read_log(_text(system, f"{offsets}/{last}"))
    if not ends:
        raise _unreadable(location, "its query does not read from TubeMQ")
    finished = system.get_file_info(f"{root}/{_COMMITS}/{last}").type is fs.FileType.File
    before: Mapping[str, StreamOffset] = {}
    if not finished and last - 1 in batches:
        before = read_log(_text(system, f"{offsets}/{last - 1}"))
    number = last if finished else last - 1
    return Checkpoint(number if number >= 0 else None, progress(before, ends, finished=finished))


def _text(system: fs.FileSystem, path: str) -> str:
    with system.open_input_stream(path, compression=None) as stream:
        content: bytes = stream.readall()
    return content.decode(errors="replace")


def _unreadable(location: FolderUri, problem: str) -> OptionError:
    return OptionError("TUBEMQ_CHECKPOINT_UNREADABLE", checkpoint=location, problem=problem)
