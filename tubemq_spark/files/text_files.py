"""Small text files in one folder, on a local disk, in HDFS or in an object store (``pyarrow.fs``).

Tasks, the driver and later readers share the folder and cannot talk to each other. So:

- A file is written whole under a temporary name, and then renamed: a reader sees all of it or nothing.
- A file never changes. Its name is derived from its content, or from what it is about: two writers of
  the same content write the same name, so one file is enough, and either may be first.
- Temporary names begin with ``_``, and readers pass over them: a writer that was killed may leave one.

Folders come from the user, so every error names the option, and no error shows credentials.
"""

import concurrent.futures
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri

Result = TypeVar("Result")

_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.5
"""Before the second attempt, and twice that before the third; object stores retry by themselves too."""
_PERMANENT: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError, pa.ArrowInvalid)
"""What does not pass by waiting: a folder or a right that is missing, a URI that makes no sense."""
_PROBE: Final = " " * 65_536
"""An empty file finds room on a full disk, too. This is larger than most files that follow."""
_READERS: Final = 8
"""An object store answers in tens of milliseconds, so files are read at the same time."""


def _is_linked(system: fs.FileSystem, temporary: str, place: str) -> bool:
    """Rename a local file unless the other name is taken; return False where that cannot be told in one step.

    A move would replace what another process has written since, and a file never changes.
    """
    if not isinstance(system, fs.LocalFileSystem):
        return False
    try:
        Path(place).hardlink_to(temporary)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        return False
    Path(temporary).unlink()
    return True


class TextFiles:
    """The files of one folder; not picklable: each process makes its own."""

    def __init__(
        self, folder: FolderUri, option: str, suffix: str, wait: Callable[[float], object] = time.sleep
    ) -> None:
        """Create it; the file system is opened at the first call."""
        self._folder = folder
        self._option = option
        self._suffix = suffix
        self._wait = wait
        self._opened: tuple[fs.FileSystem, str] | None = None

    def prepare(self) -> None:
        """Make the folder and write to it for a try: a query must not learn in the night that it cannot."""
        self._insist("written to", self._try_out)

    def write(self, name: str, text: str) -> None:
        """Write a file, if it is not there."""
        self._insist("written to", lambda: self._write(name, text))

    def get(self, name: str) -> str | None:
        """Return the text of a file; None when it is not there."""
        return self._insist("read", lambda: self._get(name))

    def read(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of all files, ordered by name; refuse a folder with other files only."""
        names = self._insist("read", self._names)
        with concurrent.futures.ThreadPoolExecutor(_READERS, "tubemq-files") as pool:
            yield from zip(names, pool.map(self._text, names), strict=True)

    def _try_out(self) -> None:
        system, path = self._open()
        system.create_dir(path, recursive=True)
        probe = f"{path}/_{uuid.uuid4().hex}"
        self._put(probe, _PROBE)
        system.delete_file(probe)

    def _write(self, name: str, text: str) -> None:
        system, path = self._open()
        place = f"{path}/{name}{self._suffix}"
        if system.get_file_info(place).type != fs.FileType.NotFound:
            return
        temporary = f"{path}/_{uuid.uuid4().hex}"
        self._put(temporary, text)
        if not _is_linked(system, temporary, place):
            system.move(temporary, place)

    def _put(self, place: str, text: str) -> None:
        system, _ = self._open()
        try:
            with system.open_output_stream(place, compression=None) as stream:
                stream.write(text.encode())
        except (OSError, pa.ArrowException):
            # A part of a file would take room where there is none.
            with contextlib.suppress(OSError, pa.ArrowException):
                system.delete_file(place)
            raise

    def _names(self) -> list[str]:
        system, path = self._open()
        infos = system.get_file_info(fs.FileSelector(path))
        visible = sorted(
            (info.base_name, info.type) for info in infos if not info.base_name.startswith(("_", "."))
        )
        names = [name for name, kind in visible if kind is fs.FileType.File and name.endswith(self._suffix)]
        if visible and not names:
            raise OptionError(
                "TUBEMQ_FOLDER_UNRELATED", folder=self._folder, option=self._option, example=visible[0][0]
            )
        return names

    def _text(self, name: str) -> str:
        return self._insist("read", lambda: self._content(name))

    def _get(self, name: str) -> str | None:
        try:
            return self._content(f"{name}{self._suffix}")
        except FileNotFoundError:
            system, path = self._open()
            if system.get_file_info(path).type is fs.FileType.NotFound:
                raise
            return None

    def _content(self, name: str) -> str:
        system, path = self._open()
        with system.open_input_stream(f"{path}/{name}", compression=None) as stream:
            content: bytes = stream.readall()
        return content.decode(errors="replace")

    def _open(self) -> tuple[fs.FileSystem, str]:
        if self._opened is None:
            system, path = fs.FileSystem.from_uri(self._folder.text)
            self._opened = system, path.rstrip("/")
        return self._opened

    def _insist(self, verb: str, action: Callable[[], Result]) -> Result:
        """Do something, again if it fails; most of what file systems fail with passes."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return action()
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, _PERMANENT) or attempt == _ATTEMPTS:
                    raise self._folder.unusable(self._option, verb, error) from None
            self._wait(_PAUSE_SECONDS * attempt)
        raise AssertionError
