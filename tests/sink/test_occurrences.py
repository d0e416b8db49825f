"""Rows are counted, whatever batches they come in."""

import collections

import numpy as np
from hypothesis import given, strategies as st

from tubemq_spark.sink.uids import Occurrences

hashes = st.integers(0, 9) | st.integers(0, 2**64 - 1)


@given(st.lists(st.lists(hashes, max_size=30), max_size=12))
def test_each_row_has_the_number_of_those_before_it(batches):
    occurrences = Occurrences()
    seen = collections.Counter()
    for batch in batches:
        numbers = occurrences.numbers(np.array(batch, np.uint64))
        expected = []
        for one in batch:
            expected.append(seen[one])
            seen[one] += 1
        assert numbers.tolist() == expected


def test_a_long_task_has_few_tables():
    """Looking a row up takes a search in each of them."""
    occurrences = Occurrences()
    for first in range(0, 100_000, 100):
        occurrences.numbers(np.arange(first, first + 100, dtype=np.uint64))
    assert len(occurrences._tables) <= 12
    assert sum(len(table.hashes) for table in occurrences._tables) == 100_000
