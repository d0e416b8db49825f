"""Small files that are replaced as a whole, and the lock that keeps a data directory to one process."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from tubemq_spark.embedded.directories import sync_directory
from tubemq_spark.errors import DataLossError, OptionError

_FORMAT_VERSION: Final = 1

Value = TypeVar("Value")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file of our own form, as ``replace_text`` does."""
    replace_text(path, json.dumps({"version": _FORMAT_VERSION, **content}, indent=1))


def replace_text(path: Path, text: str) -> None:
    """Replace a file at once: whoever reads it, after a kill too, sees the old content or the new."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def read_json(path: Path, build: Callable[[Any], Value]) -> Value | None:
    """Read what ``write_json`` wrote and make a value of it; None when there is no file.

    Raises:
        DataLossError: the file cannot be understood; it is left as it is.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _FORMAT_VERSION:
            raise ValueError(f"it has format {content['version']}, this release knows {_FORMAT_VERSION}")
        return build(content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"it cannot be read: {error!r}"
        raise DataLossError("TUBEMQ_STORE_DAMAGED", path=path, what=what) from error


class DirectoryLock:
    """Keeps a directory to this process; the kernel lets go of it when the process ends, however."""

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            OptionError: another process, or another server in this one, has it.
        """
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise OptionError("TUBEMQ_DATA_DIR_IN_USE", path=directory, owner=owner) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory; the file stays, for removing it would race with the next owner."""
        # Closing alone would not do: a forked child has the same lock as long as it lives.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
