"""Who is the first to wait for a partition, and who is woken when messages have come."""

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.gateway.data.fetching import Arrivals
from tubemq_spark.model import TopicPartition

A, B = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)


class Waiter:
    def __init__(self, types=()):
        self.filter = frozenset(types)
        self.woken = []

    def wake(self, partition):
        self.woken.append(partition)


@pytest.fixture
def arrivals():
    return Arrivals()


def test_the_first_of_each_partition_asks(arrivals):
    first, second = Waiter(), Waiter()
    assert arrivals.wait(first, A)
    assert not arrivals.wait(second, A)
    assert arrivals.wait(second, B)
    assert arrivals.wait(first, A), "it keeps its place"


def test_all_waiting_fetches_are_woken_but_the_one_that_saw_the_messages(arrivals):
    waiters = [Waiter(), Waiter(), Waiter(["type"]), Waiter()]
    for waiter in waiters[:3]:
        arrivals.wait(waiter, A)
    arrivals.wait(waiters[3], B)
    arrivals.arrived([A], seen_by=waiters[0])
    assert [waiter.woken for waiter in waiters] == [[], [A], [A], []]


def test_the_next_waiting_fetch_is_woken_when_the_first_leaves(arrivals):
    first, second = Waiter(), Waiter()
    for waiter in (first, second):
        arrivals.wait(waiter, A)
        arrivals.wait(waiter, B)
    arrivals.leave(first, [A])
    assert second.woken == [A]
    arrivals.leave(first)
    assert second.woken == [A, B]
    assert arrivals.wait(second, A)


def test_fetches_with_a_filter_ask_for_themselves(arrivals):
    plain, filtered = Waiter(), Waiter(["type"])
    assert arrivals.wait(plain, A)
    assert arrivals.wait(filtered, A)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([A, B]), st.booleans())))
def test_each_partition_that_is_waited_for_has_one_first_who_came_first(steps):
    arrivals, waiters = Arrivals(), [Waiter() for _ in range(4)]
    queues = {A: [], B: []}
    for number, partition, comes in steps:
        queue = queues[partition]
        if comes:
            queue += [] if number in queue else [number]
            assert arrivals.wait(waiters[number], partition) is (queue[0] == number)
        else:
            arrivals.leave(waiters[number], [partition])
            queue[:] = [other for other in queue if other != number]
    for waiter in waiters:
        arrivals.leave(waiter)
    assert not arrivals._waiting
    assert not arrivals._partitions
