"""Checksums of bodies are sums of CRC-32, by both twins."""

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.send_batch import BytesColumn, running_checksums, sum_of_checksums

TWINS = [pytest.param(speedups.compiled, id="compiled"), pytest.param(None, id="Python")]


@pytest.mark.parametrize("twin", TWINS)
@given(bodies=st.lists(st.binary(max_size=40), max_size=9))
def test_the_sum_of_bodies_one_behind_the_other_is_a_difference(twin, bodies):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "compiled", twin)
        sums = running_checksums(BytesColumn.of(bodies))
    assert sums == list(itertools.accumulate(map(zlib.crc32, bodies), initial=0))


@pytest.mark.parametrize("twin", TWINS)
@given(bodies=st.lists(st.binary(max_size=9), max_size=9), data=st.data())
def test_the_sum_does_not_depend_on_the_order_nor_on_what_lies_between(twin, bodies, data):
    column = BytesColumn.of(bodies)
    rows = np.array(data.draw(st.permutations(range(len(bodies)))), np.int64)[: len(bodies) // 2]
    expected = sum(zlib.crc32(bodies[row]) for row in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "compiled", twin)
        for order in (rows, rows[::-1]):
            starts, ends = column.offsets[order], column.offsets[order + 1]
            assert sum_of_checksums(memoryview(column.data), starts, ends) == expected
