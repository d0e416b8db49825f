"""Fields read at many places at once are those protobuf reads one by one."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tubemq_spark.protocol.varints import PADDING, Words, encode_rows, sizes

lengths = st.integers(1, 10)
TAG = 0x08


def read(fields: list[bytes], tag: int = TAG):
    """Read one field at the start of each piece, and give positions relative to that start."""
    sizes = np.array([len(field) for field in fields], np.int64)
    starts = np.cumsum(sizes) - sizes
    values, ends, found = Words(b"".join((*fields, PADDING))).read_field(tag, starts)
    return values.tolist(), (ends - starts).tolist(), found.tolist()


@given(st.lists(st.tuples(own.int64s, lengths), max_size=8))
def test_varints_of_any_length(numbers):
    """Also those written longer than needed, which parsers must take."""
    fields = [own.varint_field(1, value, least) for value, least in numbers]
    values, ends, found = read(fields)
    assert values == [value for value, _ in numbers]
    assert ends == [len(field) for field in fields]
    assert all(found)


@in_one_test("bits", range(64))
def test_powers_of_two_and_their_neighbours(bits):
    numbers = [value - (value >= 2**63) * 2**64 for value in ((1 << bits) - 1, 1 << bits)]
    values, _, found = read([own.varint_field(1, value) for value in numbers])
    assert values == numbers
    assert all(found)


def test_another_tag_is_not_found():
    assert read([own.varint_field(1, 5), own.varint_field(2, 5)])[2] == [True, False]
    assert read([own.varint_field(1, 5), own.varint_field(2, 5)], tag=0x10)[2] == [False, True]


@pytest.mark.parametrize("last", [2, 3, 0x7F, 0x80, 0xFF])
def test_a_tenth_byte_above_one_is_no_varint(last):
    """Also one that asks for an eleventh."""
    field = bytes([TAG]) + b"\xff" * 9 + bytes([last])
    sound = own.varint_field(1, -1)
    assert read([sound, field, sound])[2] == [True, False, True]


@given(st.lists(st.integers(0, 200), min_size=1))
def test_positions_behind_the_end_read_zeros(positions):
    words = Words(b"\x08\x01" * 3 + PADDING)
    behind = np.array(positions, np.int64) + 6
    assert not words.read_field(TAG, behind)[2].any()
    assert not words.read_int32(behind).any()


@given(st.binary(max_size=12), st.lists(own.int32s, min_size=1, max_size=5))
def test_int32_are_big_endian_and_signed(before, numbers):
    data = before + b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)
    places = len(before) + 4 * np.arange(len(numbers))
    assert Words(data + PADDING).read_int32(places).tolist() == numbers


def test_nothing_to_read():
    none = np.empty(0, np.int64)
    values, ends, found = Words(PADDING).read_field(TAG, none)
    assert len(values) == len(ends) == len(found) == 0
    assert len(Words(PADDING).read_int32(none)) == 0


@st.composite
def tables(draw):
    """Rows of numbers of all lengths, and a tag for each column."""
    columns = draw(st.integers(1, 5))
    numbers = st.one_of(own.int64s, st.integers(0, 63).map(lambda bits: (1 << bits) - 1), st.integers(0, 300))
    rows = draw(st.lists(st.lists(numbers, min_size=columns, max_size=columns), max_size=6))
    return bytes(range(8, 8 + 8 * columns, 8)), np.array(rows, np.int64).reshape(-1, columns)


@given(tables())
def test_rows_are_written_as_protobuf_writes_them(table):
    tags, values = table
    rows = [
        b"".join(own.varint_field(tag >> 3, value) for tag, value in zip(tags, row, strict=True))
        for row in values.tolist()
    ]
    data, ends = encode_rows(tags, values)
    assert data == b"".join(rows)
    assert ends.tolist() == np.cumsum([len(row) for row in rows]).tolist()


@in_one_test("bits", range(64))
def test_sizes_at_powers_of_two(bits):
    numbers = [value - (value >= 2**63) * 2**64 for value in ((1 << bits) - 1, 1 << bits)]
    assert sizes(np.array(numbers)).tolist() == [len(own.varint(number)) for number in numbers]
