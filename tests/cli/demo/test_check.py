"""The demo's checks: right rows pass, and every kind of wrong row is reported."""

import random
import zlib
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.cli.demo.check import Truth, compare_counts, compare_lines

LINES = [b"import os\n", b"\n", b"\xff Os OS a1b2 xyzzy"]


@pytest.fixture
def truth():
    truth = Truth()
    assert truth.add("f.py", "py", LINES[:2]) == 1
    assert truth.add("f.py", "py", LINES[2:]) == 3
    assert truth.add("g.txt", "txt", [b"xyzzy"]) == 1
    return truth


def _rows():
    rows = [("f.py", str(number), zlib.crc32(line)) for number, line in enumerate(LINES, 1)]
    return [*rows, ("g.txt", "1", zlib.crc32(b"xyzzy"))]


def test_truth_counts_lines_and_words_of_three_letters_without_case(truth):
    assert truth.line_count == 4
    assert truth.lines_by_extension == {"py": 3, "txt": 1}
    assert truth.word_counts() == {("py", "import"): 1, ("py", "xyzzy"): 1, ("txt", "xyzzy"): 1}


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(["py", "c"]), st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b)
        )
    )
)
def test_words_of_many_lines_are_the_sum_of_each_lines_words(lines):
    truth, expected = Truth(), Counter()
    for extension, line in lines:
        truth.add("f", extension, [line + b"\n"])
        alone = Truth()
        alone.add("f", extension, [line])
        expected.update(alone.word_counts())
    assert truth.word_counts() == expected


def test_every_line_once_in_any_order_is_right(truth):
    rows = _rows()
    random.Random(7).shuffle(rows)
    report = compare_lines(truth, rows)
    assert report.read == 4
    assert report.faults() == []


def test_a_lost_line_is_told(truth):
    report = compare_lines(truth, [row for row in _rows() if row[:2] != ("f.py", "2")])
    assert report.faults() == ["1 lines were published but not read back", "for example f.py:2"]


def test_a_repeated_line_is_told(truth):
    assert compare_lines(truth, [*_rows(), _rows()[0]]).repeated == 1


def test_a_changed_line_is_told_and_not_called_lost(truth):
    report = compare_lines(truth, [("f.py", "1", 0), *_rows()[1:]])
    assert (report.altered, report.lost) == (1, 0)
    assert report.faults() == ["1 lines came back with different bytes", "for example f.py:1"]


@in_one_test(
    "row",
    [
        (None, None, 0),
        ("h.py", "1", 0),
        ("f.py", None, 0),
        ("f.py", "0", 0),
        ("f.py", "4", 0),
        ("f.py", "-1", 0),
        ("f.py", "one", 0),
        ("f.py", "²", 0),
    ],
)
def test_a_row_that_is_no_line_of_the_run_is_told(truth, row):
    report = compare_lines(truth, [*_rows(), row])
    assert (report.foreign, report.lost, report.repeated) == (1, 0, 0)


def test_few_examples_stand_for_many_faults(truth):
    faults = compare_lines(truth, [_rows()[0]] * 10).faults()
    assert faults == [
        "3 lines were published but not read back",
        "9 rows repeat a line",
        "for example f.py:1, f.py:1, f.py:1",
    ]


def test_equal_counts_are_right(truth):
    assert compare_counts(truth.word_counts(), dict(truth.word_counts())) == []


def test_missing_wrong_and_surplus_counts_are_told(truth):
    found = {("py", "import"): 2, ("py", "xyzzy"): 1, ("py", "zzz"): 5}
    (fault,) = compare_counts(truth.word_counts(), found)
    assert fault.startswith("3 of 3 word counts are wrong, for example py/import: 2 instead of 1, ")
    assert fault.endswith("py/zzz: 5 instead of 0, txt/xyzzy: 0 instead of 1")
