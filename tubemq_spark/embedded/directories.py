"""Directories whose entries survive a power failure."""

import os
from pathlib import Path


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
