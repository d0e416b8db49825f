"""Small ranges of one broker share a task; every range is read by one."""

import pytest
from hypothesis import given, strategies as st

from tests.source.fake_cluster import partition
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route
from tubemq_spark.offsets.grouping import MOST_RANGES, MOST_ROWS, SMALL_RANGE_ROWS, grouped


def request(number, rows, broker=1):
    wanted = OffsetRange(partition(number, broker_id=broker), 28, 28 + 28 * rows)
    return RangeRequest(wanted, Route(Endpoint("broker", broker), 7))


def sizes(requests):
    return [len(task) for task in grouped(list(requests))]


def test_one_new_record_of_many_partitions_is_one_task():
    """It used to be a task for each partition of a shared store."""
    assert sizes(request(number, 1) for number in range(32)) == [32]
    assert sizes(request(number, 1) for number in range(33)) == [32, 1]


def test_a_large_range_is_a_task_of_its_own():
    assert sizes([request(0, 5), request(1, 1_001), request(2, 5)]) == [2, 1]
    assert sizes([request(0, 5), request(1, 1_000), request(2, 5)]) == [3]


def test_ranges_of_a_task_have_eight_thousand_rows_at_most():
    assert sizes(request(number, 1_000) for number in range(8)) == [8]
    assert sizes(request(number, 1_000 if number < 8 else 1) for number in range(9)) == [8, 1]


def test_brokers_do_not_share_tasks():
    """One that is away must not hold up ranges of others."""
    tasks = grouped([request(0, 1, broker=1), request(1, 1, broker=2), request(2, 1, broker=1)])
    assert [{one.range.partition.broker_id for one in task} for task in tasks] == [{1}, {2}]


def test_the_user_says_how_many_ranges_share_a_task():
    ranges = [request(number, 1) for number in range(5)]
    assert [len(task) for task in grouped(ranges, most_ranges=2)] == [2, 2, 1]
    assert [len(task) for task in grouped(ranges, most_ranges=1)] == [1] * 5


def test_ranges_of_a_task_have_no_more_rows_than_the_user_allows():
    ranges = [request(number, 40) for number in range(5)]
    assert [len(task) for task in grouped(ranges, most_rows=100)] == [2, 2, 1]


def test_fewer_ranges_share_a_task_when_the_user_wants_more_tasks():
    ranges = [request(number, 1) for number in range(5)]
    assert [len(task) for task in grouped(ranges, fewest_tasks=2)] == [2, 2, 1]
    assert [len(task) for task in grouped(ranges, fewest_tasks=3)] == [1] * 5
    assert [len(task) for task in grouped(ranges, fewest_tasks=9)] == [1] * 5
    assert [len(task) for task in grouped(ranges, fewest_tasks=1)] == [5]


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
        rows = [(one.range.end - one.range.start) // 28 for one in task]
        assert len(task) == 1 or (
            max(rows) <= SMALL_RANGE_ROWS and sum(rows) <= MOST_ROWS and len(task) <= MOST_RANGES
        )
