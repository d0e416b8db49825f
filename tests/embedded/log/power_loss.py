"""What is left of a directory after a power failure: only what was flushed is sure to be there.

Of everything else the kernel may have written any part on its own. So a file's bytes after its last sync are
either gone, or there, or there in length only: zeros, as file systems leave them that write sizes first.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Fate = Callable[[bytes, bytes], bytes]
"""Returns what is left of a file, given what was last synced and what it holds now."""


def gone(synced: bytes, _now: bytes) -> bytes:
    return synced


def zeros(synced: bytes, now: bytes) -> bytes:
    return synced.ljust(len(now), b"\0")


def there(_synced: bytes, now: bytes) -> bytes:
    return now


class Disk:
    """Observes syncs in a directory, and calls ``look`` after each step that changes something."""

    def __init__(self, root: Path, monkeypatch, look: Callable[[], None]) -> None:
        self._root = root
        self._names = {root: _entries(root)}
        self._contents: dict[int, bytes] = {}  # By inode: files are renamed.
        monkeypatch.setattr(os, "fsync", _followed_by(look, self._sync))
        for name in ("pwrite", "ftruncate", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, _followed_by(look, getattr(os, name)))

    def left(self, fates: Mapping[str, Fate]) -> Iterator[tuple[Path, bytes]]:
        """Yield the files that are left, by paths in the directory; their suffixes decide what is left."""
        return self._left_in(self._root, fates)

    def _left_in(self, directory: Path, fates: Mapping[str, Fate]) -> Iterator[tuple[Path, bytes]]:
        for name, inode in self._names.get(directory, {}).items():
            path = directory / name
            if path.is_dir():
                yield from self._left_in(path, fates)
            else:
                synced = self._contents.get(inode, b"")
                same = path.exists() and path.stat().st_ino == inode
                now = path.read_bytes() if same else synced
                yield path.relative_to(self._root), fates[path.suffix](synced, now)

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            self._names[path] = _entries(path)
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()


def _entries(directory: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory)}


def _followed_by(look, function):
    def call(*arguments, **named):
        result = function(*arguments, **named)
        look()
        return result

    return call
