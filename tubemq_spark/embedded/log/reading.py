"""Reading the messages of one partition from a store's two logs.

A fetch of small messages reads thousands of records, and after a kill a store checks everything that was not
flushed. So records that are close together are read with one system call, and numpy compares all their
headers at once; only the checksum takes a call per record.
"""

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.embedded.log.records import (
    INDEX_DTYPE,
    INDEX_ENTRY,
    LENGTH_BYTES,
    RECORD_DTYPE,
    RECORD_HEADER,
    RECORD_MAGIC,
)
from tubemq_spark.embedded.log.segments import SegmentedLog
from tubemq_spark.protocol.constants import MAX_FRAME_BYTES
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Entries = NDArray[np.void]
"""Index entries, of ``records.INDEX_DTYPE``."""

_MAX_GAP_BYTES: Final = 4096
"""Gaps between records up to this size are read too: that is cheaper than another system call."""
_NOT_THERE: Final = -1
_CRC_MASK: Final = 0x7FFFFFFF
_ATTRIBUTE_LENGTH: Final = struct.Struct(">i")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Valid records: the parts of row ``i`` are ``payloads[i]``, ``message_ids[i]`` and so on."""

    payloads: list[memoryview]
    """Pieces of one block."""
    sizes: Int64s
    """Of the payloads, in bytes."""
    message_ids: Int64s
    checksums: Int64s
    flags: Int64s

    def __len__(self) -> int:
        return len(self.payloads)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The records of some index entries, as far as they are in the data log."""

    heads: NDArray[np.void]
    """One per entry, of ``records.RECORD_DTYPE``; those of unsound records have no meaning."""
    payloads: list[memoryview]
    sound: Bools
    """Which records exist, match their index entries, and are undamaged."""

    def deliverable(self) -> Records:
        """Return the records that a consumer gets.

        A record that claims to have attributes but has none is omitted, as by the Java broker.
        """
        deliverable = self.sound.copy()
        prefixed = (self.heads["flag"] & FLAG_ATTRIBUTES) != 0
        for row in np.flatnonzero(deliverable & prefixed).tolist():
            deliverable[row] = _has_attributes(self.payloads[row])
        heads, payloads = self.heads, self.payloads
        if not deliverable.all():
            heads, payloads = heads[deliverable], list(itertools.compress(payloads, deliverable))
        return Records(
            payloads,
            heads["length"].astype(np.int64) - (RECORD_HEADER.size - LENGTH_BYTES),
            heads["id"].astype(np.int64),
            heads["checksum"].astype(np.int64),
            heads["flag"].astype(np.int64),
        )


def read_block(data: SegmentedLog, entries: Entries, offsets: Int64s) -> Block:
    """Read and check the records of index entries, whose offsets are given."""
    positions = entries["position"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    possible = (positions >= 0) & (sizes > RECORD_HEADER.size) & (sizes <= MAX_FRAME_BYTES)
    if not possible.all():  # The index is damaged; do not read gigabytes because of it.
        positions, sizes = np.where(possible, positions, 0), np.where(possible, sizes, 0)
    raw, at = _read(data, positions, sizes)
    heads = _heads(raw, at)
    view = memoryview(raw)
    bounds = zip((at + RECORD_HEADER.size).tolist(), (at + sizes).tolist(), strict=True)
    payloads = [view[start:end] for start, end in bounds]
    checksums = np.fromiter(map(zlib.crc32, payloads), np.int64, len(payloads)) & _CRC_MASK
    sound = (
        possible
        & (at != _NOT_THERE)
        & (heads["length"] == sizes - LENGTH_BYTES)
        & (heads["magic"] == RECORD_MAGIC)
        & (heads["partition"] == entries["partition"])
        & (heads["offset"] == offsets)
        & (heads["checksum"] == checksums)
    )
    return Block(heads, payloads, sound)


def _read(data: SegmentedLog, positions: Int64s, sizes: Int64s) -> tuple[bytes, Int64s]:
    """Read records into one buffer; return it, and where each record begins in it."""
    ends = positions + sizes
    at = np.full(len(positions), _NOT_THERE, np.int64)
    pieces: list[bytes] = []
    filled = 0
    for rows in _runs(positions, ends):
        first, end = int(positions[rows.start]), int(ends[rows.stop - 1])
        for start, piece in _read_run(data, first, end):
            moved = positions[rows] + (filled - start)
            if len(piece) < end - first:
                inside = (positions[rows] >= start) & (ends[rows] <= start + len(piece))
                moved = np.where(inside, moved, at[rows])
            at[rows] = moved
            pieces.append(piece)
            filled += len(piece)
    return b"".join(pieces), at


def _runs(positions: Int64s, ends: Int64s) -> Iterator[slice]:
    """Split the records where they are far apart or not in order."""
    gaps = positions[1:] - ends[:-1]
    borders = (np.flatnonzero((gaps < 0) | (gaps > _MAX_GAP_BYTES)) + 1).tolist()
    if len(positions):
        yield from map(slice, [0, *borders], [*borders, len(positions)])


def _read_run(data: SegmentedLog, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Read a range of the log, file by file; what has expired is skipped."""
    while start < end:
        piece = data.read(start, end - start)
        if piece:
            yield start, piece
        elif start >= data.start:
            return
        start = max(start + len(piece), data.start)


def _heads(data: bytes, at: Int64s) -> NDArray[np.void]:
    """Return the headers of records; those of missing records have no meaning."""
    last = len(data) - RECORD_DTYPE.itemsize
    if last < 0:
        return np.zeros(len(at), RECORD_DTYPE)
    everywhere: NDArray[np.void] = np.ndarray((last + 1,), RECORD_DTYPE, data, strides=(1,))
    return everywhere[at]


def _has_attributes(payload: memoryview) -> bool:
    """Whether a payload begins with a length that fits into it."""
    available = len(payload) - _ATTRIBUTE_LENGTH.size
    return available >= 0 and bool(_ATTRIBUTE_LENGTH.unpack_from(payload)[0] <= available)


_ENTRY_BYTES: Final = INDEX_ENTRY.size


@dataclasses.dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of one read, which always examines at least one entry if there is one."""

    end: int
    """The offset where what the reader may see ends."""
    max_bytes: int
    """The read stops after the message that reaches this: payloads and 52 bytes per message."""
    max_entries: int
    """Entries to examine, including those of other partitions."""
    key_codes: frozenset[int] = frozenset()
    """Return only messages whose type has one of these hashes; none means all."""
    halve: bool = False
    """Examine only half of the entries, as TubeMQ's reads from files do (MsgFileStore.getMessages)."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LogBatch:
    """What a read found: the records of the entries up to ``next_offset``."""

    records: Records
    next_offset: int
    data_end: int
    """Where the record of the last examined entry ends in the data log."""
    damaged: tuple[int, ...] = ()
    """Offsets of entries whose records are damaged, and have not just expired."""


def read_batch(
    index: SegmentedLog, data: SegmentedLog, partition_id: int, start: int, limits: ReadLimits
) -> LogBatch | None:
    """Read from an offset on; None if there is no visible entry.

    Records that have expired or are damaged are skipped, as in TubeMQ (DataStoreUtils.getTransferMsg).
    """
    visible = min((limits.end - start) // _ENTRY_BYTES, limits.max_entries)
    raw = index.read(start, visible * _ENTRY_BYTES) if visible > 0 else b""
    entries: Entries = np.frombuffer(raw, INDEX_DTYPE)
    if limits.halve:
        entries = entries[: -(-len(entries) // 2)]
    if not len(entries):
        return None
    matching: Bools = entries["partition"] == partition_id
    if limits.key_codes:
        matching &= np.isin(entries["key"], sorted(limits.key_codes))
    # int64 sums: sizes are 32 bits wide.
    sizes = np.cumsum(np.where(matching, entries["size"], 0), dtype=np.int64)
    count = min(int(np.searchsorted(sizes, limits.max_bytes)) + 1, len(entries))
    chosen = np.flatnonzero(matching[:count])
    offsets = start + chosen * _ENTRY_BYTES
    block = read_block(data, entries[chosen], offsets)
    records = block.deliverable()
    last = entries[count - 1]
    damaged: tuple[int, ...] = ()
    if not block.sound.all():
        expired = entries[chosen]["position"] < data.start
        damaged = tuple(offsets[~block.sound & ~expired].tolist())
    return LogBatch(records, start + count * _ENTRY_BYTES, int(last["position"]) + int(last["size"]), damaged)
