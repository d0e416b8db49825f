"""Ids of rows that stay the same however often a row is sent, so that readers can drop repeats.

An id has two parts of fixed length, both in the alphabet of base64 for URLs, which TubeMQ's attributes allow:

- ``WRITE_CHARACTERS`` name the write: a micro-batch of a query, or one run of a batch write. They are the
  same in all rows of the write.
- The others are a digest of the row's content, of the number of its task, and of how many rows with this
  content the task had before it.

**Why this is stable.** Spark repeats a task with the rows that it had, but perhaps in another order, when
they come out of a shuffle. So nothing here depends on the order: of rows with equal content it does not
matter which one is the first. The number of the task keeps rows with equal content in different tasks apart.

**When it is not stable.** When a repeated micro-batch has other rows (a source that does not replay, a
function that is not deterministic), or when its rows are spread over tasks in another way. Then a repeat is
not recognised; no row is ever taken for another one.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, Int64s

Described = tuple[Any, ...]
"""Attributes (pairs, or None), type and time of a row, as the frame has them."""

WRITE_CHARACTERS: Final = 8
UID_CHARACTERS: Final = 28

_WRITE_BYTES: Final = WRITE_CHARACTERS * 3 // 4
_ROW_BYTES: Final = (UID_CHARACTERS - WRITE_CHARACTERS) * 3 // 4
_HASH_BYTES: Final = 8


def write_prefix(write: str) -> bytes:
    """Return how the ids of a write begin, whose name may be any text."""
    return base64.urlsafe_b64encode(hashlib.blake2b(write.encode(), digest_size=_WRITE_BYTES).digest())


class TaskUids:
    """The ids of the rows of one task."""

    def __init__(self, write: str, task: int) -> None:
        """Begin a task."""
        self._prefix = write_prefix(write)
        self._hash = hashlib.blake2b(f"{write}/{task}".encode(), digest_size=_ROW_BYTES)
        self._occurrences = Occurrences()

    def of(self, contents: Iterable[bytes]) -> list[bytes]:
        """Return the ids of some rows, whose contents no two different rows share."""
        digests = [self._digest(content) for content in contents]
        hashes = np.frombuffer(b"".join([digest[:_HASH_BYTES] for digest in digests]), np.dtype("<u8"))
        numbers = self._occurrences.numbers(hashes)
        for row in np.flatnonzero(numbers).tolist():
            digests[row] = self._digest(digests[row] + int(numbers[row]).to_bytes(8, "little"))
        encode, prefix = base64.urlsafe_b64encode, self._prefix
        return [prefix + encode(digest) for digest in digests]

    def _digest(self, content: bytes) -> bytes:
        state = self._hash.copy()
        state.update(content)
        return state.digest()


def row_uids(
    column: BytesColumn | None,
    described: Coded[Described],
    topics: Coded[str],
    keys: BytesColumn | None,
    values: BytesColumn,
    stamp: TaskUids | None,
) -> BytesColumn | None:
    """Return the ids that rows have or get; None when the frame has none and none are stamped."""
    if stamp is None:
        return column
    uids = stamp.of(_contents(described, topics, keys, values))
    if column is not None:
        has = np.ones(len(uids), bool) if column.nulls is None else ~column.nulls
        for row in np.flatnonzero(has).tolist():
            uids[row] = column.value(row) or b""
        return BytesColumn.of(uids)
    inside = [any(name == MESSAGE_UID_KEY for name, _ in pairs or ()) for pairs, _, _ in described.values]
    stamped = BytesColumn.of(uids)
    return stamped._replace(nulls=np.array(inside)[described.codes]) if any(inside) else stamped


def _contents(
    described: Coded[Described], topics: Coded[str], keys: BytesColumn | None, values: BytesColumn
) -> Iterator[bytes]:
    """Yield for each row bytes that no row with another content has: they begin with the lengths of parts."""
    heads = [repr((topic,)).encode() for topic in topics.values]
    middles = [repr((pairs, kind, moment)).encode() for pairs, kind, moment in described.values]
    codes = zip(topics.codes.tolist(), described.codes.tolist(), strict=True)
    for row, (topic, description) in enumerate(codes):
        key = None if keys is None else keys.value(row)
        yield b"%d,%d;%b%b%b%b" % (
            len(heads[topic]) + len(middles[description]),
            -1 if key is None else len(key),
            heads[topic],
            middles[description],
            key or b"",
            values.value(row) or b"",
        )


Hashes = NDArray[np.uint64]
Counts = NDArray[np.int32]


class _Table(NamedTuple):
    hashes: Hashes
    """Ascending, each once."""
    counts: Counts


class Occurrences:
    """Counts how often each row of a task has occurred, in 12 bytes per different row.

    Rows are known by 64-bit hashes, in tables that are sorted by hash. Each call adds a table; neighbouring
    tables are merged as soon as the newer one is at least half as long as the older one, so there are few of
    them and each hash is moved rarely. Different rows with equal hashes are taken for one: the second of them
    then has number 1 instead of 0.
    """

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    def numbers(self, hashes: Hashes) -> Int64s:
        """Return how often each of some rows has occurred before: earlier, and among these before it."""
        distinct, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        numbers = self._counts_of(distinct)[inverse] + _ranks(inverse, counts)
        self._add(_Table(distinct, counts.astype(np.int32)))
        return numbers

    def _counts_of(self, hashes: Hashes) -> Int64s:
        """Return how often each of some distinct rows has occurred in all tables."""
        counts = np.zeros(len(hashes), np.int64)
        for table in self._tables:
            places = np.searchsorted(table.hashes, hashes)
            places[places == len(table.hashes)] = 0
            counts += np.where(table.hashes[places] == hashes, table.counts[places], 0)
        return counts

    def _add(self, table: _Table) -> None:
        """Add a table; those of less than twice its size are merged into it, so there are few."""
        while self._tables and 2 * len(table.hashes) >= len(self._tables[-1].hashes):
            table = _merge(self._tables.pop(), table)
        if len(table.hashes):
            self._tables.append(table)


def _merge(older: _Table, newer: _Table) -> _Table:
    """Return a table of the rows of two, each with the sum of its counts."""
    hashes, inverse = np.unique(np.concatenate((older.hashes, newer.hashes)), return_inverse=True)
    counts = np.bincount(inverse, weights=np.concatenate((older.counts, newer.counts)), minlength=len(hashes))
    return _Table(hashes, counts.astype(np.int32))


def _ranks(inverse: Int64s, counts: Int64s) -> Int64s:
    """Return for each row how many before it have the same value."""
    order = np.argsort(inverse, kind="stable")
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    ranks = np.empty(len(inverse), np.int64)
    ranks[order] = np.arange(len(inverse)) - firsts
    return ranks
