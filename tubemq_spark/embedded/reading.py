"""Reading messages of one partition out of a store's two logs."""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tubemq_spark.embedded.records import (
    INDEX_DTYPE,
    INDEX_ENTRY,
    LENGTH_BYTES,
    RECORD_HEADER,
    RECORD_MAGIC,
    StoredMessage,
)
from tubemq_spark.embedded.segments import SegmentedLog
from tubemq_spark.protocol.payload import checksum

_ENTRY_BYTES: Final = INDEX_ENTRY.size
_MAX_GAP_BYTES: Final = 4096
"""Records of other partitions up to this size are read along: cheaper than one more system call."""

_HAS_ATTRIBUTES: Final = 1
_ATTRIBUTE_LENGTH: Final = struct.Struct(">i")

_Entries = npt.NDArray[np.void]


@dataclasses.dataclass(frozen=True, slots=True)
class ReadLimits:
    """How far one read may go; it always looks at one entry, if there is one."""

    end: int
    """Offset at which what the reader may see ends."""
    max_bytes: int
    """Stops after the message that reaches it; counts payloads and 52 bytes a message."""
    max_entries: int
    """Entries to look at, those of other partitions too."""
    key_codes: frozenset[int] = frozenset()
    """Only messages whose type hashes to one of them; none means all."""
    halve: bool = False
    """Look at half of the entries only, as TubeMQ's reads from files do (MsgFileStore.getMessages)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """What a read found: ``messages`` of the entries up to ``next_offset``."""

    messages: list[StoredMessage]
    next_offset: int
    data_end: int
    """Where the record of the last entry looked at ends in the data log."""


def read_batch(
    index: SegmentedLog, data: SegmentedLog, partition_id: int, start: int, limits: ReadLimits
) -> Batch | None:
    """Read from an offset on; None when there is no entry that may be seen.

    Records that have expired or are damaged are passed over, as in TubeMQ (DataStoreUtils.getTransferMsg).

    Raises:
        OSError: the files could not be read.
    """
    room = min((limits.end - start) // _ENTRY_BYTES, limits.max_entries)
    raw = index.read(start, room * _ENTRY_BYTES) if room > 0 else b""
    entries: _Entries = np.frombuffer(raw, INDEX_DTYPE)
    if limits.halve:
        entries = entries[: -(-len(entries) // 2)]
    if not len(entries):
        return None
    wanted = _wanted(entries, partition_id, limits.key_codes)
    # int64 sums: sizes are 32 bits wide.
    sizes = np.cumsum(np.where(wanted, entries["size"], 0), dtype=np.int64)
    count = min(int(np.searchsorted(sizes, limits.max_bytes)) + 1, len(entries))
    chosen = np.flatnonzero(wanted[:count])
    messages = [
        message
        for run in _runs(entries, chosen)
        for message in _read_run(data, entries[run], start + run * _ENTRY_BYTES)
    ]
    last = entries[count - 1]
    return Batch(messages, start + count * _ENTRY_BYTES, int(last["position"]) + int(last["size"]))


def _wanted(entries: _Entries, partition_id: int, key_codes: frozenset[int]) -> npt.NDArray[np.bool_]:
    wanted: npt.NDArray[np.bool_] = entries["partition"] == partition_id
    if key_codes:
        wanted &= np.isin(entries["key"], sorted(key_codes))
    return wanted


def _runs(entries: _Entries, chosen: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
    """Cut the chosen entries where their records lie far apart in the data log."""
    positions = entries["position"][chosen].astype(np.int64)
    ends = positions + entries["size"][chosen]
    borders = np.flatnonzero(positions[1:] - ends[:-1] > _MAX_GAP_BYTES) + 1
    return iter(np.split(chosen, borders)) if len(chosen) else iter(())


def _read_run(
    data: SegmentedLog, entries: _Entries, offsets: npt.NDArray[np.intp]
) -> Iterator[StoredMessage]:
    """Read records that lie close together; a run may go over the border of a file."""
    positions: list[int] = entries["position"].tolist()
    sizes: list[int] = entries["size"].tolist()
    partition_ids: list[int] = entries["partition"].tolist()
    end = positions[-1] + sizes[-1]
    block, block_start = b"", 0
    for position, size, partition_id, offset in zip(
        positions, sizes, partition_ids, offsets.tolist(), strict=True
    ):
        if position + size > block_start + len(block):
            block, block_start = data.read(position, end - position), position
        message = _message(block, position - block_start, size, partition_id, offset)
        if message is not None:
            yield message


def _message(block: bytes, at: int, size: int, partition_id: int, offset: int) -> StoredMessage | None:
    """Take a record out of a block; None when it is not there, or damaged."""
    payload = block[at + RECORD_HEADER.size : at + size]
    if len(payload) != size - RECORD_HEADER.size:
        return None
    length, magic, crc, its_partition, its_offset, _, _, _, message_id, flag = RECORD_HEADER.unpack_from(
        block, at
    )
    sound = (
        magic == RECORD_MAGIC
        and length == size - LENGTH_BYTES
        and its_partition == partition_id
        and its_offset == offset
        and crc == checksum(payload)
        and (not flag & _HAS_ATTRIBUTES or _has_prefix(payload))
    )
    return StoredMessage(message_id, crc, payload, flag) if sound else None


def _has_prefix(payload: bytes) -> bool:
    """Whether a payload said to have attributes has: the Java broker delivers none that lies."""
    if len(payload) < _ATTRIBUTE_LENGTH.size:
        return False
    return bool(_ATTRIBUTE_LENGTH.unpack_from(payload)[0] <= len(payload) - _ATTRIBUTE_LENGTH.size)
