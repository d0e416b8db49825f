"""A row has one id, whatever comes before it and however often it is sent; no two rows share one."""

import re

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.protocol.payload import encode_prefix
from tubemq_spark.sink.uids import UID_CHARACTERS, WRITE_CHARACTERS, TaskUids, write_prefix

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
