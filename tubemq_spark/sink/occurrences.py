"""Counts how often each row of a task has occurred, in 12 bytes per different row.

Rows are known by 64-bit hashes, in tables that are sorted by hash. Each call adds a table; neighbouring
tables are merged as soon as the newer one is at least half as long as the older one, so there are few of them
and each hash is moved rarely. Different rows with equal hashes are taken for one: the second of them then has
number 1 instead of 0.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.protocol.send_batch import Int64s

Hashes = NDArray[np.uint64]
Counts = NDArray[np.int32]


class _Table(NamedTuple):
    hashes: Hashes
    """Ascending, each once."""
    counts: Counts


class Occurrences:
    """What has occurred so far."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []

    def numbers(self, hashes: Hashes) -> Int64s:
        """Return how often each of some rows has occurred before: earlier, and among these before it."""
        distinct, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        numbers = self._counts_of(distinct)[inverse] + _ranks(inverse, counts)
        self._add(_Table(distinct, counts.astype(np.int32)))
        return numbers

    def _counts_of(self, hashes: Hashes) -> Int64s:
        counts = np.zeros(len(hashes), np.int64)
        for table in self._tables:
            places = np.searchsorted(table.hashes, hashes)
            places[places == len(table.hashes)] = 0
            counts += np.where(table.hashes[places] == hashes, table.counts[places], 0)
        return counts

    def _add(self, table: _Table) -> None:
        while self._tables and 2 * len(table.hashes) >= len(self._tables[-1].hashes):
            table = _merged(self._tables.pop(), table)
        if len(table.hashes):
            self._tables.append(table)


def _merged(older: _Table, newer: _Table) -> _Table:
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
