"""Marks as values: their text, which of them count, and how many there are."""

import json

import pytest
from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.offsets.marks import MOST_MARKS, Mark, newest, passed, write_marks
from tubemq_spark.offsets.source_offset import SourceOffset, read_stream_offset, start_of

DEMO = tp("demo/1:0")
MARK = Mark(DEMO, 252, 1_795_768_270_569_947_718, 0x5C6E2F24, 20)


def test_an_offset_with_marks_is_of_the_second_version_and_one_without_of_the_first():
    assert json.dumps(SourceOffset({DEMO: 280}, marks=(MARK,)).to_json(), separators=(",", ":")) == (
        '{"v":2,"topics":{"demo":{"1:0":280}},"marks":{"demo":{"1:0":"252.dn5uq2qelb9i.pn9ezo.20"}}}'
    )
    assert SourceOffset({DEMO: 280}, replaced={DEMO: 28}).to_json()["v"] == 2
    assert SourceOffset({DEMO: 280}, {DEMO: 0}, partial=True).to_json()["v"] == 1


@pytest.mark.parametrize("key", ["marks", "replaced"])
def test_the_first_version_has_neither_marks_nor_logs_that_were_replaced(key):
    with pytest.raises(OffsetFormatError, match=f"the field '{key}' is not known"):
        read_stream_offset({"v": 1, "topics": {"demo": {"1:0": 280}}, key: {}})


@pytest.mark.parametrize(
    "text",
    ["", "252", "252.a.b", "252.a.b.c", "252.a.b.20.1", "252.!.b.20", "1.a.b.20", "-28.a.b.20", 252, None],
)
def test_a_wrong_mark_is_refused(text):
    with pytest.raises(OffsetFormatError, match="demo"):
        read_stream_offset({"v": 2, "topics": {"demo": {"1:0": 280}}, "marks": {"demo": {"1:0": text}}})


@pytest.mark.parametrize("key", ["marks", "replaced"])
def test_a_partition_that_has_no_offset_is_refused(key):
    value = "252.a.b.20" if key == "marks" else 252
    with pytest.raises(OffsetFormatError, match=f"demo/1:1 is in '{key}' but not in 'topics'"):
        read_stream_offset({"v": 2, "topics": {"demo": {"1:0": 280}}, key: {"demo": {"1:1": value}}})


def test_a_log_that_was_replaced_begins_where_the_end_says():
    start, end = SourceOffset({DEMO: 280}), SourceOffset({DEMO: 560}, replaced={DEMO: 28})
    assert start_of(DEMO, start, end) == 28


def test_only_records_before_an_offset_count():
    assert passed([MARK], {DEMO: 280}) == [MARK]
    assert passed([MARK], {DEMO: 252}) == []
    assert passed([MARK], {}) == []


def test_a_topic_on_a_broker_has_one_mark_and_the_newest_remain():
    later, elsewhere = MARK._replace(offset=504), MARK._replace(partition=tp("demo/2:0"))
    other_store = MARK._replace(partition=tp("demo/1:10000"), offset=0)
    assert newest([MARK, elsewhere, later, other_store]) == (other_store, elsewhere)
    many = [MARK._replace(partition=tp(f"demo/{broker}:0")) for broker in range(1, MOST_MARKS + 11)]
    assert newest(many) == tuple(many[10:])


@given(st.lists(own.marks(), max_size=8))
def test_there_is_one_text_of_marks_in_any_order(marks):
    kept = newest(marks)
    assert json.dumps(write_marks(kept)) == json.dumps(write_marks(kept[::-1]))
    offset = SourceOffset({mark.partition: mark.offset for mark in kept}, marks=kept)
    assert SourceOffset.from_json(json.loads(json.dumps(offset.to_json()))).marks == kept


def test_two_hundred_marks_take_at_most_ten_kilobytes_of_a_checkpoint():
    marks = [
        Mark(tp(f"topic_{broker % 2}/{broker // 2 + 1}:{broker % 100}"), 28 * 10**7, 2**61, 2**32 - 1, 1_024)
        for broker in range(MOST_MARKS)
    ]
    assert len(json.dumps(write_marks(newest(marks)))) <= 10_000
