"""Reads the two logs of a store from their files, by their layout alone, and checks that they agree."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ENTRY: Final = struct.Struct(">iqiiq")
_HEADER: Final = struct.Struct(">iIiiqqiiqi")
_MAGIC: Final = 0x02C998B8
_FLUSHED: Final = struct.Struct(">qqI")


class Log:
    """One log: files that follow each other, each named after the position of its first byte."""

    def __init__(self, directory: Path, suffix: str) -> None:
        """Look at the files' names and sizes; a log that was never written to may have none."""
        self._files = [(int(path.stem), path) for path in sorted(directory.glob(f"*{suffix}"))]
        self.start = self.end = self._files[0][0] if self._files else 0
        for start, path in self._files:
            assert start == self.end, f"{path} does not begin where the file before it ends"
            self.end = start + path.stat().st_size

    @property
    def last_file(self) -> tuple[int, int]:
        """Where the last file begins, and its size."""
        start = self._files[-1][0] if self._files else 0
        return start, self.end - start

    def read(self, position: int, size: int) -> bytes:
        """Return bytes that all lie in one file."""
        start, path = max(file for file in self._files if file[0] <= position)
        with path.open("rb") as file:
            file.seek(position - start)
            data = file.read(size)
        assert len(data) == size, f"{path} ends inside what should be at {position}"
        return data


class Stored(NamedTuple):
    """A message as the logs hold it."""

    offset: int
    partition_id: int
    payload: bytes
    message_id: int


def logs(directory: Path) -> tuple[Log, Log]:
    """Return a store's index and data."""
    return Log(directory / "index", ".index"), Log(directory, ".tube")


def unflushed_bytes(directory: Path) -> int:
    """Return how much of the data a killed server did not know to be on the disk."""
    if not (directory / "flushed").exists():
        return 0
    _, flushed, _ = _FLUSHED.unpack((directory / "flushed").read_bytes())
    return logs(directory)[1].end - int(flushed)


def first_offset_from(directory: Path, position: int) -> int:
    """Return the offset of the first message whose record is not before a position of the data."""
    index, _ = logs(directory)
    for offset in range(index.start, index.end, _ENTRY.size):
        if _ENTRY.unpack(index.read(offset, _ENTRY.size))[1] >= position:
            return offset
    return index.end


def messages(directory: Path, start: int = 0) -> Iterator[Stored]:
    """Yield every message from an offset on; fails where an entry and its record differ in anything.

    Records lie one behind the other, and nothing is behind the last.
    """
    index, data = logs(directory)
    assert index.end % _ENTRY.size == 0, "the index ends inside an entry"
    position = _ENTRY.unpack(index.read(start, _ENTRY.size))[1] if start < index.end else data.end
    last_id = 0
    for offset in range(start, index.end, _ENTRY.size):
        partition_id, at, size, key, received = _ENTRY.unpack(index.read(offset, _ENTRY.size))
        assert at == position, f"entry {offset} points to {at}; the record before it ends at {position}"
        raw = data.read(at, size)
        payload = raw[_HEADER.size :]
        *claims, message_id, _ = _HEADER.unpack_from(raw)
        crc = zlib.crc32(payload) & 0x7FFFFFFF
        # The sender's address stands in the record only.
        expected = [size - 4, _MAGIC, crc, partition_id, offset, received, claims[6], key]
        assert claims == expected, f"entry {offset} and its record differ"
        assert message_id > last_id, f"message ids do not rise at {offset}"
        yield Stored(offset, partition_id, payload, message_id)
        position, last_id = at + size, message_id
    assert position == data.end, f"{data.end - position} bytes of data have no entry"
