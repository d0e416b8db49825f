"""More tasks for the same records; the numbers are those that Spark's Kafka source gives."""

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange, TopicPartition
from tubemq_spark.offsets.splitting import split_ranges


def part(number, start, end):
    """Return a range of a partition, with its bounds in records."""
    partition = TopicPartition("demo", 1, number)
    return OffsetRange(partition, start * INDEX_ENTRY_BYTES, end * INDEX_ENTRY_BYTES)


def in_records(ranges):
    return [
        (one.partition.partition_id, one.start // INDEX_ENTRY_BYTES, one.end // INDEX_ENTRY_BYTES)
        for one in ranges
    ]


def sizes(ranges):
    return [end - start for _, start, end in in_records(ranges)]


def test_without_a_wish_each_range_is_read_whole_and_empty_ones_are_dropped():
    assert in_records(split_ranges([part(1, 1, 5), part(2, 3, 3)])) == [(1, 1, 5)]


@pytest.mark.parametrize("wish", [1, 2, 3])
def test_no_range_is_cut_when_there_are_as_many_as_wished(wish):
    ranges = [part(1, 1, 5), part(2, 1, 5), part(3, 1, 5)]
    assert split_ranges(ranges, min_partitions=wish) == ranges


@pytest.mark.parametrize(
    ("ranges", "wish", "expected"),
    [
        ([(1, 1, 5), (2, 1, 21)], 4, [(1, 1, 5), (2, 1, 7), (2, 7, 14), (2, 14, 21)]),
        ([(1, 1, 2), (2, 1, 1001)], 4, [(1, 1, 2), (2, 1, 334), (2, 334, 667), (2, 667, 1001)]),
        ([(1, 1, 11)], 3, [(1, 1, 4), (1, 4, 7), (1, 7, 11)]),
    ],
)
def test_large_ranges_are_cut_and_small_ones_stay_whole(ranges, wish, expected):
    assert in_records(split_ranges([part(*one) for one in ranges], min_partitions=wish)) == expected


def test_the_largest_wish_costs_no_more_than_there_are_records():
    ranges = [part(1, 0, 300), part(2, 0, 20)]
    assert sizes(split_ranges(ranges, min_partitions=2**31 - 1)) == [1] * 320


@pytest.mark.parametrize(
    ("lengths", "wish", "expected"),
    [
        ([10, 10, 1], 6, [3, 3, 4, 3, 3, 4, 1]),
        ([500, 12_000, 15_001], 6, [500, 6_000, 6_000, 5_000, 5_000, 5_001]),
        ([1, 1, 10_000], 6, [1, 1, 2_500, 2_500, 2_500, 2_500]),
    ],
)
def test_tasks_that_small_ranges_leave_are_divided_among_the_large_ones(lengths, wish, expected):
    ranges = [part(number, 0, length) for number, length in enumerate(lengths)]
    assert sizes(split_ranges(ranges, min_partitions=wish)) == expected


def test_no_range_is_longer_than_the_limit():
    ranges = split_ranges([part(1, 1, 5), part(2, 2, 23)], max_records=4)
    assert in_records(ranges[:1]) == [(1, 1, 5)]
    assert in_records(ranges[1:]) == [
        (2, 2, 5), (2, 5, 8), (2, 8, 11), (2, 11, 15), (2, 15, 19), (2, 19, 23),
    ]  # fmt: skip


def test_the_limit_comes_first_and_the_wish_after_it():
    assert sizes(split_ranges([part(1, 0, 40)], max_records=20, min_partitions=4)) == [10, 10, 10, 10]
    assert sizes(split_ranges([part(1, 0, 40)], max_records=10, min_partitions=2)) == [10, 10, 10, 10]


def test_shorter_parts_come_first():
    assert sizes(split_ranges([part(1, 0, 10)], min_partitions=4)) == [2, 2, 3, 3]


def test_a_range_of_few_records_has_no_empty_parts():
    assert sizes(split_ranges([part(1, 0, 2)], min_partitions=5)) == [1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(20_000, 10**6),
)
def test_the_parts_hold_the_same_records_in_the_same_order(shape, wish, limit):
    ranges = [part(number, start, start + length) for number, (start, length) in enumerate(shape)]

    parts = split_ranges(ranges, min_partitions=wish, max_records=limit)

    joined = []
    for one in parts:
        assert one.start < one.end
        if joined and joined[-1].partition == one.partition:
            assert joined[-1].end == one.start
            joined[-1] = OffsetRange(one.partition, joined[-1].start, one.end)
        else:
            joined.append(one)
    assert joined == [one for one in ranges if one.start < one.end]
    assert limit is None or max(sizes(parts), default=0) <= limit
