import pytest
from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tests.source import fake_cluster
from tubemq_spark.errors import DataLossError, OffsetFormatError, OptionError
from tubemq_spark.model import INDEX_ENTRY_BYTES, Endpoint, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.ranges import (
    MOST_RANGES,
    MOST_ROWS,
    SMALL_RANGE_ROWS,
    batch_ranges,
    grouped,
    ranges_between,
    split_ranges,
)
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, ONE, OTHER = tp("demo/1:0"), tp("demo/1:10000"), tp("orders/2:0")


@given(own.offset_maps, own.offset_maps, st.data())
def test_the_ranges_are_the_difference(known, next_offsets, data):
    first = {partition: data.draw(own.offsets) for partition in next_offsets.keys() - known.keys()}
    start, end = SourceOffset(known), SourceOffset(next_offsets, first)
    recorder = LossRecorder()
    ranges = ranges_between(start, end, recorder)
    assert ranges == ranges_between(start, end, LossRecorder())
    assert [found.partition for found in ranges] == sorted({found.partition for found in ranges})

    taken = {found.partition: found for found in ranges}
    lost = {record.partition: record for record in recorder.records}
    for partition in known.keys() | next_offsets.keys():
        begin = known.get(partition, first.get(partition))
        stop = next_offsets.get(partition)
        if stop is None:
            assert lost[partition].loss in (Loss.PARTITION_REMOVED, Loss.TOPIC_REMOVED)
            assert (lost[partition].start, lost[partition].end) == (begin, begin)
        elif stop < begin:
            assert lost[partition] == LossRecord(Loss.MOVED_BACK, partition, stop, begin)
        elif stop == begin:
            assert partition not in taken.keys() | lost.keys()
        else:
            assert taken[partition] == OffsetRange(partition, begin, stop)


@given(own.source_offsets())
def test_no_range_lies_between_an_offset_and_itself(offset):
    assert ranges_between(offset, offset, fail_on_loss) == []


@given(own.offset_maps)
def test_the_first_batch_begins_where_its_end_says(first):
    end = SourceOffset(
        {partition: offset // 56 * 28 for partition, offset in first.items()}, dict.fromkeys(first, 0)
    )
    ranges = ranges_between(StartToken(Edge.EARLIEST), end, fail_on_loss)
    assert {found.partition: (found.start, found.end) for found in ranges} == {
        partition: (0, offset) for partition, offset in end.next_offsets.items() if offset
    }


def test_removed_partitions_and_topics_are_told_apart():
    recorder = LossRecorder()
    start = SourceOffset({ZERO: 280, ONE: 28, OTHER: 0})
    assert ranges_between(start, SourceOffset({ZERO: 560}), recorder) == [OffsetRange(ZERO, 280, 560)]
    assert recorder.records == [
        LossRecord(Loss.PARTITION_REMOVED, ONE, 28, 28),
        LossRecord(Loss.TOPIC_REMOVED, OTHER, 0, 0),
    ]


@pytest.mark.parametrize("end", [SourceOffset({ZERO: 252}), SourceOffset({})])
def test_a_loss_in_a_replayed_batch_fails_it(end):
    with pytest.raises(DataLossError):
        ranges_between(SourceOffset({ZERO: 280}), end, fail_on_loss)


def test_a_new_partition_needs_a_begin():
    with pytest.raises(OffsetFormatError):
        ranges_between(SourceOffset({}), SourceOffset({ZERO: 28}), fail_on_loss)


def test_batch_ranges():
    assert batch_ranges({ONE: 28, ZERO: 0, OTHER: 56}, {ZERO: 280, OTHER: 56, ONE: 84}) == [
        OffsetRange(ZERO, 0, 280),
        OffsetRange(ONE, 28, 84),
    ]
    assert batch_ranges({}, {}) == []


def test_a_batch_that_ends_before_it_starts_is_refused():
    with pytest.raises(OptionError) as caught:
        batch_ranges({ZERO: 0, ONE: 280}, {ZERO: 28, ONE: 252})
    assert caught.value.condition == "TUBEMQ_START_AFTER_END"
    assert "demo/1:10000 would start at offset 280 and end before it, at 252" in str(caught.value)


def request(number, rows, broker=1):
    wanted = OffsetRange(fake_cluster.partition(number, broker_id=broker), 28, 28 + 28 * rows)
    return RangeRequest(wanted, Route(Endpoint("broker", broker), 7))


def ranges_of_tasks(requests, **wishes):
    return [len(task) for task in grouped(list(requests), **wishes)]


def test_one_new_record_of_many_partitions_is_one_task():
    """It used to be a task for each partition of a shared store."""
    assert ranges_of_tasks(request(number, 1) for number in range(32)) == [32]
    assert ranges_of_tasks(request(number, 1) for number in range(33)) == [32, 1]


def test_a_large_range_is_a_task_of_its_own():
    assert ranges_of_tasks([request(0, 5), request(1, 1_001), request(2, 5)]) == [2, 1]
    assert ranges_of_tasks([request(0, 5), request(1, 1_000), request(2, 5)]) == [3]


def test_ranges_of_a_task_have_eight_thousand_rows_at_most():
    assert ranges_of_tasks(request(number, 1_000) for number in range(8)) == [8]
    assert ranges_of_tasks(request(number, 1_000 if number < 8 else 1) for number in range(9)) == [8, 1]


def test_brokers_do_not_share_tasks():
    """One that is away must not hold up ranges of others."""
    tasks = grouped([request(0, 1, broker=1), request(1, 1, broker=2), request(2, 1, broker=1)])
    assert [{one.range.partition.broker_id for one in task} for task in tasks] == [{1}, {2}]


def test_the_user_says_how_many_ranges_share_a_task():
    ranges = [request(number, 1) for number in range(5)]
    assert ranges_of_tasks(ranges, most_ranges=2) == [2, 2, 1]
    assert ranges_of_tasks(ranges, most_ranges=1) == [1] * 5


def test_ranges_of_a_task_have_no_more_rows_than_the_user_allows():
    ranges = [request(number, 40) for number in range(5)]
    assert ranges_of_tasks(ranges, most_rows=100) == [2, 2, 1]


def test_fewer_ranges_share_a_task_when_the_user_wants_more_tasks():
    ranges = [request(number, 1) for number in range(5)]
    assert ranges_of_tasks(ranges, fewest_tasks=2) == [2, 2, 1]
    assert ranges_of_tasks(ranges, fewest_tasks=3) == [1] * 5
    assert ranges_of_tasks(ranges, fewest_tasks=9) == [1] * 5
    assert ranges_of_tasks(ranges, fewest_tasks=1) == [5]


@pytest.mark.parametrize(
    ("wanted", "tasks"), [(300, 320), (320, 320), (330, 334), (1_000, 1_000), (20_000, 10_000)]
)
def test_about_as_many_tasks_as_wanted_read_thousands_of_short_ranges(wanted, tasks):
    ranges = [request(number, 5, broker=number % 10) for number in range(10_000)]
    assert len(grouped(ranges, fewest_tasks=wanted)) == pytest.approx(tasks, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 2 * SMALL_RANGE_ROWS), st.integers(1, 3)), max_size=100))
def test_every_range_is_in_one_task(shape):
    requests = [request(number, rows, broker) for number, (rows, broker) in enumerate(shape)]

    tasks = grouped(requests)

    assert (
        sorted((one for task in tasks for one in task), key=lambda one: one.range.partition.partition_id)
        == requests
    )
    for task in tasks:
        assert len({one.range.partition.broker_id for one in task}) == 1
        rows = [one.range.rows for one in task]
        assert len(task) == 1 or (
            max(rows) <= SMALL_RANGE_ROWS and sum(rows) <= MOST_ROWS and len(task) <= MOST_RANGES
        )


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
