import pytest
from hypothesis import given

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.offsets.units import MAX_OFFSET, is_aligned, require_aligned, rows_between


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0, 0, 0), (0, 28, 1), (28, 84, 2), (84, 28, 0), (0, MAX_OFFSET, MAX_OFFSET // 28)],
)
def test_rows_between(start, end, rows):
    assert rows_between(start, end) == rows


@given(own.offsets)
def test_an_offset_is_returned_as_it_is(offset):
    assert require_aligned(offset) == offset


@in_one_test("number", [-28, -1, 1, 27, 29, MAX_OFFSET + 28, MAX_OFFSET + 1])
def test_other_numbers_are_refused(number):
    assert not is_aligned(number)
    with pytest.raises(OffsetFormatError) as caught:
        require_aligned(number, own.tp("demo/1:0"))
    assert caught.value.condition == "TUBEMQ_OFFSET_UNALIGNED"
    assert f"{number} of demo/1:0 is not an offset" in str(caught.value)


@in_one_test(
    ("number", "nearest"),
    [(30, "are 28 and 56"), (1, "are 0 and 28"), (-1, "is 0"), (MAX_OFFSET + 1, f"is {MAX_OFFSET}")],
)
def test_a_number_that_is_no_offset_is_told_which_are_nearest(number, nearest):
    with pytest.raises(OffsetFormatError, match=f"one step per message; the nearest {nearest}"):
        require_aligned(number)


def test_the_highest_offset_fits_into_64_bits():
    assert is_aligned(MAX_OFFSET)
    assert MAX_OFFSET < 2**63 <= MAX_OFFSET + 28
