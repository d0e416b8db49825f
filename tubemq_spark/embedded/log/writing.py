"""Encoding of new messages: their index entries and their data records."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from tubemq_spark.embedded.log.records import (
    INDEX_ENTRY,
    LENGTH_BYTES,
    RECORD_HEADER,
    RECORD_MAGIC,
    NewRecord,
)

_ENTRY_BYTES: Final = INDEX_ENTRY.size


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was stored: message ``i`` has offset ``offset + 28 * i`` and id ``message_id + i``."""

    offset: int
    message_id: int
    time_ms: int


def encode_batch(records: Sequence[NewRecord], place: Appended, position: int) -> tuple[bytes, bytes]:
    """Return the index entries and the data records of messages."""
    entries: list[bytes] = []
    parts: list[bytes] = []
    pack_entry, pack_header = INDEX_ENTRY.pack, RECORD_HEADER.pack
    offset, message_id, now = place.offset, place.message_id, place.time_ms
    for partition_id, payload, crc, key_code, address, flag in records:
        size = RECORD_HEADER.size + len(payload)
        entries.append(pack_entry(partition_id, position, size, key_code, now))
        parts.append(
            pack_header(
                size - LENGTH_BYTES,
                RECORD_MAGIC,
                crc,
                partition_id,
                offset,
                now,
                address,
                key_code,
                message_id,
                flag,
            )
        )
        parts.append(payload)
        offset += _ENTRY_BYTES
        position += size
        message_id += 1
    return b"".join(entries), b"".join(parts)
