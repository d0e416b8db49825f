"""Directories whose entries outlast a loss of power."""

import os
from pathlib import Path


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents so that a loss of power cannot take their names back.

    Raises:
        OSError: it cannot be made, or is something else.
    """
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Bring a directory's entries to the disk: without it a new file's name can be lost with the power."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
