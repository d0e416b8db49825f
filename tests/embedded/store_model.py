"""Helpers for stores without a server: killed, and with torn files."""

import zlib

from tubemq_spark.embedded.log.reading import ReadLimits
from tubemq_spark.embedded.log.records import NO_KEY, NewRecord
from tubemq_spark.embedded.log.store import Store, StoreSettings

HEADER_BYTES = 52
ENTRY_BYTES = 28
SMALL_FILES = StoreSettings(data_segment_bytes=400, index_segment_bytes=3 * ENTRY_BYTES)


def record(payload, partition_id=0, key_code=NO_KEY, flag=0):
    return NewRecord(partition_id, payload, zlib.crc32(payload) & 0x7FFFFFFF, key_code, 0, flag)


def limits(store, **fields):
    return ReadLimits(**{"end": store.bounds.latest, "max_bytes": 1 << 20, "max_entries": 1000, **fields})


def payloads_of(batch):
    return [bytes(payload) for payload in batch.records.payloads]


def read_all(store, partition_id=0, start=None, **fields):
    """Return the payloads from an offset on, and the number of reads."""
    offset = store.bounds.earliest if start is None else start
    payloads, reads = [], 0
    while (batch := store.read(partition_id, offset, limits(store, **fields))) is not None:
        assert batch.next_offset > offset
        payloads += payloads_of(batch)
        offset = batch.next_offset
        reads += 1
    assert offset == store.bounds.latest
    return payloads, reads


def kill(store: Store) -> None:
    """Release the files as a killed process does: nothing is flushed."""
    store._closed = True
    store._data.close()
    store._index.close()


def files(directory, suffix):
    return sorted(directory.rglob(f"*{suffix}"))


def log_end(directory, suffix):
    last = files(directory, suffix)[-1]
    return int(last.stem) + last.stat().st_size


def cut_log(directory, suffix, end):
    """Make a log end at a position, as after a power failure."""
    for path in files(directory, suffix):
        start = int(path.stem)
        if start > end:
            path.unlink()
        elif start + path.stat().st_size > end:
            with path.open("r+b") as file:
                file.truncate(end - start)


def extend_log(directory, suffix, data):
    """Write bytes after a log's end: a write that was not finished."""
    with files(directory, suffix)[-1].open("ab") as file:
        file.write(data)
