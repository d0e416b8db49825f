"""Arrow's columns are the same values after coding, whatever their slices and nulls."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tubemq_spark.protocol.send_batch import Coded
from tubemq_spark.sink import columns as coding

TEXTS = st.none() | st.text(max_size=3)
MAPS = st.none() | st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "a:", "0", ","]), st.sampled_from([None, "", "1", ":1", "0"])),
    max_size=3,
    unique_by=lambda pair: pair[0],
)


def values(column):
    return [column.value(row) for row in range(len(column.codes))]


@given(st.lists(TEXTS, max_size=12), st.integers(0, 3))
def test_texts(texts, start):
    column = coding.coded(pa.array(texts, pa.string()).slice(start))
    assert values(column) == texts[start:]
    assert list(column.values) == list(dict.fromkeys(texts[start:]))


@given(st.lists(MAPS, max_size=12), st.integers(0, 3))
def test_maps(maps, start):
    column = coding.coded_maps(pa.array(maps, pa.map_(pa.string(), pa.string())).slice(start))
    assert values(column) == [pairs or None for pairs in maps[start:]]
    assert len(column.values) == len({tuple(pairs or ()) for pairs in maps[start:]})


@given(st.lists(TEXTS, max_size=12), st.integers(0, 3))
def test_bytes(texts, start):
    column = coding.bytes_column(pa.array(texts, pa.string()).slice(start))
    expected = [None if text is None else text.encode() for text in texts[start:]]
    assert [column.value(row) for row in range(len(expected))] == expected
    assert column.offsets[0] == 0
    assert column.offsets[-1] == len(column.data)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "Etc/UTC"), pa.timestamp("ms", "UTC")])
def test_minutes(kind):
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    moments = [epoch - datetime.timedelta(seconds=1), None, epoch + datetime.timedelta(seconds=90)]
    assert values(coding.coded_minutes(pa.array(moments, kind))) == [-1, None, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=20))
def test_combinations(rows):
    columns = [
        Coded(("a", "b", None), np.array([first for first, _ in rows])),
        Coded((0, 1, 2, 3), np.array([second for _, second in rows])),
    ]
    found = coding.combined(*columns)
    assert values(found) == [(columns[0].values[first], second) for first, second in rows]
    assert len(found.values) == len(set(rows))
