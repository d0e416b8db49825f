"""Who is the first to wait for a partition, and who is woken when messages have come."""

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.gateway.consuming import EndOfLogWaiters
from tubemq_spark.model import TopicPartition

A, B = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)


class Waiter:
    def __init__(self, types=()):
        self.filter = frozenset(types)
        self.woken = []

    def wake(self, partition):
        self.woken.append(partition)


@pytest.fixture
def waiting():
    return EndOfLogWaiters()


def test_the_first_of_each_partition_asks(waiting):
    first, second = Waiter(), Waiter()
    assert waiting.wait(first, A)
    assert not waiting.wait(second, A)
    assert waiting.wait(second, B)
    assert waiting.wait(first, A), "it keeps its place"


def test_all_waiting_fetches_are_woken_but_the_one_that_saw_the_messages(waiting):
    waiters = [Waiter(), Waiter(), Waiter(["type"]), Waiter()]
    for waiter in waiters[:3]:
        waiting.wait(waiter, A)
    waiting.wait(waiters[3], B)
    waiting.arrived([A], seen_by=waiters[0])
    assert [waiter.woken for waiter in waiters] == [[], [A], [A], []]


def test_the_next_waiting_fetch_is_woken_when_the_first_leaves(waiting):
    first, second = Waiter(), Waiter()
    for waiter in (first, second):
        waiting.wait(waiter, A)
        waiting.wait(waiter, B)
    waiting.leave(first, [A])
    assert second.woken == [A]
    waiting.leave(first)
    assert second.woken == [A, B]
    assert waiting.wait(second, A)


def test_fetches_with_a_filter_ask_for_themselves(waiting):
    plain, filtered = Waiter(), Waiter(["type"])
    assert waiting.wait(plain, A)
    assert waiting.wait(filtered, A)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([A, B]), st.booleans())))
def test_each_partition_that_is_waited_for_has_one_first_who_came_first(steps):
    waiting, waiters = EndOfLogWaiters(), [Waiter() for _ in range(4)]
    queues = {A: [], B: []}
    for number, partition, comes in steps:
        queue = queues[partition]
        if comes:
            queue += [] if number in queue else [number]
            assert waiting.wait(waiters[number], partition) is (queue[0] == number)
        else:
            waiting.leave(waiters[number], [partition])
            queue[:] = [other for other in queue if other != number]
    for waiter in waiters:
        waiting.leave(waiter)
    assert not waiting._waiting
    assert not waiting._partitions
