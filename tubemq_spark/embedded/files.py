"""Small files that are replaced as a whole, directories that survive a power failure, and the lock on one."""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from tubemq_spark.errors import DataLossError, OptionError


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents so that they survive a power failure."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Flush a directory's entries to the disk; otherwise a power failure can lose the name of a new file."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_FORMAT_VERSION: Final = 1

Value = TypeVar("Value")


class JsonFile(Generic[Value]):
    """A value that is kept in a JSON file.

    Reading ``value`` takes no lock, because a change replaces it as a whole, in the file first. Hold ``lock``
    from reading the old value to replacing it with one that was made from it. A file that cannot be
    understood raises a DataLossError, and is left as it is.
    """

    def __init__(
        self,
        path: Path,
        default: Value,
        from_json: Callable[[Any], Value],
        to_json: Callable[[Value], Mapping[str, Any]],
    ) -> None:
        """Read the file; if there is none, the value is ``default``."""
        self.path = path
        self.lock = threading.Lock()
        self._to_json = to_json
        self._value = _read(path, from_json) if path.exists() else default

    @property
    def value(self) -> Value:
        """The present value."""
        return self._value

    def replace(self, value: Value) -> None:
        """Write a value to the file, and use it from then on; hold ``lock``."""
        content = {"version": _FORMAT_VERSION, **self._to_json(value)}
        # Without indent: only that way the compiled encoder writes it, at a third of the cost.
        replace_text(self.path, json.dumps(content))
        self._value = value


def replace_text(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old content or the new, even after a kill."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def _read(path: Path, from_json: Callable[[Any], Value]) -> Value:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _FORMAT_VERSION:
            raise ValueError(
                f"it has format version {content['version']}, this release reads {_FORMAT_VERSION}"
            )
        return from_json(content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"it cannot be read, or only by a newer release, if one wrote it: {error!r}"
        raise DataLossError("TUBEMQ_STORE_DAMAGED", path=path, what=what) from error


class DirectoryLock:
    """Gives a directory to this process; the kernel releases the lock when the process ends in any way."""

    def __init__(self, directory: Path) -> None:
        """Take the lock."""
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise OptionError("TUBEMQ_DATA_DIR_IN_USE", path=directory, owner=owner) from error
        # For people only: the lock holds also where the disk is full.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; the file is kept, because deleting it would race with the next owner."""
        # Closing the file does not suffice: a forked child shares the lock as long as it lives.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
