"""Who is the first to wait for messages of a partition, and asks its broker for all."""

from hypothesis import given, strategies as st

from tubemq_spark.gateway.consuming import EndOfLogWaiters
from tubemq_spark.model import TopicPartition

A, B = TopicPartition("demo", 1, 0), TopicPartition("demo", 2, 0)


class Waiter:
    def __init__(self, types=()):
        self.filter = frozenset(types)

    def wake(self, partition):
        pass


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([A, B]), st.booleans())))
def test_each_partition_that_is_waited_for_has_one_first_of_each_filter_who_came_first(steps):
    waiting, waiters = EndOfLogWaiters(), [Waiter(["type"] if number > 3 else ()) for number in range(6)]
    queues = {(partition, waiter.filter): [] for partition in (A, B) for waiter in waiters}
    for number, partition, comes in steps:
        queue = queues[partition, waiters[number].filter]
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
