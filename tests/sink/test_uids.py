"""A row has one id, whatever comes before it and however often it is sent; no two rows share one."""

import collections
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tubemq_spark.protocol.payload import encode_prefix
from tubemq_spark.protocol.send_batch import BytesColumn, Coded
from tubemq_spark.sink.uids import (
    UID_CHARACTERS,
    WRITE_CHARACTERS,
    Occurrences,
    TaskUids,
    row_uids,
    write_prefix,
)

contents = st.lists(st.binary(max_size=3), max_size=40)


def ids(rows, write="query/7", task=0, size=7):
    """The ids of rows that come in batches of a size."""
    uids = TaskUids(write, task)
    return [uid for first in range(0, len(rows), size) for uid in uids.of(rows[first : first + size])]


@given(contents, st.randoms())
def test_ids_do_not_depend_on_the_order_of_rows(rows, chance):
    shuffled = list(rows)
    chance.shuffle(shuffled)
    one_by_one = zip(shuffled, ids(shuffled, size=1), strict=True)
    assert sorted(zip(rows, ids(rows), strict=True)) == sorted(one_by_one)


@given(contents)
def test_no_two_rows_share_an_id(rows):
    everywhere = [
        uid for write in ("query/7", "query/8", "run") for task in (0, 1) for uid in ids(rows, write, task)
    ]
    assert len(set(everywhere)) == 6 * len(rows)


def test_the_id_of_a_row_is_that_of_earlier_releases():
    """Rows that an earlier release sent may be sent again by this one."""
    assert ids([b"a", b"a", b"b"]) == [
        b"IRLEPQhZdBhhWL0ske-7FfblAl0D",
        b"IRLEPQhZVyuff2rLxD5y6iu2MXr_",
        b"IRLEPQhZqMd4v22orPm5cqvJNp2Z",
    ]


@given(contents)
def test_an_id_can_be_an_attribute_and_says_which_write_it_is_of(rows):
    for uid in ids(rows):
        assert re.fullmatch(rb"[A-Za-z0-9_-]{%d}" % UID_CHARACTERS, uid)
        assert uid[:WRITE_CHARACTERS] == write_prefix("query/7")
        encode_prefix({"messageUid": uid.decode()}, None, None)


def test_no_rows_have_no_ids():
    assert ids([]) == []
    assert TaskUids("run", 0).of([]) == []


@pytest.mark.parametrize("write", ["", "é", "a" * 1000])
def test_any_text_names_a_write(write):
    assert len(write_prefix(write)) == WRITE_CHARACTERS


def test_the_id_of_a_row_is_made_of_all_that_it_carries():
    """As in earlier releases, too; a key that is null is not one that is empty."""
    described = Coded(((None, None, None), ([("k", "v")], "news", "202402291234")), np.array([0, 1, 0, 0, 0]))
    topics = Coded(("demo", "other"), np.array([0, 0, 1, 0, 0]))
    keys = BytesColumn.of([b"", b"key", b"", b"", b""])._replace(
        nulls=np.array([True, False, True, False, True])
    )
    values = BytesColumn.of([b"x", b"x", b"x", b"x", b""])._replace(nulls=np.array([False] * 4 + [True]))
    stamped = row_uids(None, described, topics, keys, values, TaskUids("query/7", 0))
    assert [stamped.value(row)[WRITE_CHARACTERS:] for row in range(5)] == [
        b"-poDXAtfCBTq4yg1tK4E",
        b"4BSRvxTeC2vmtBnyrr5l",
        b"D96AJ6L_KN11Lv_l7g-m",
        b"KpG1y-HvrbkY7ZcZm6P1",
        b"Lzle-NUptJjeB3Q3BIpv",
    ]


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
