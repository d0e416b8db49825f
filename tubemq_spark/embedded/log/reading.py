"""Reading the messages of one partition from a store's two logs."""

import dataclasses
from typing import Final

import numpy as np

from tubemq_spark.embedded.log.blocks import Bools, Entries, Records, read_block
from tubemq_spark.embedded.log.records import INDEX_DTYPE, INDEX_ENTRY
from tubemq_spark.embedded.log.segments import SegmentedLog

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
class Batch:
    """What a read found: the records of the entries up to ``next_offset``."""

    records: Records
    next_offset: int
    data_end: int
    """Where the record of the last examined entry ends in the data log."""
    damaged: tuple[int, ...] = ()
    """Offsets of entries whose records are damaged, and have not just expired."""


def read_batch(
    index: SegmentedLog, data: SegmentedLog, partition_id: int, start: int, limits: ReadLimits
) -> Batch | None:
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
    matching = _matching(entries, partition_id, limits.key_codes)
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
    return Batch(records, start + count * _ENTRY_BYTES, int(last["position"]) + int(last["size"]), damaged)


def _matching(entries: Entries, partition_id: int, key_codes: frozenset[int]) -> Bools:
    matching: Bools = entries["partition"] == partition_id
    if key_codes:
        matching &= np.isin(entries["key"], sorted(key_codes))
    return matching
