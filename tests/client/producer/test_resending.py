"""Messages wait as long as they were told to, and come back in the order in which they failed."""

import itertools
import types

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.client.producer.resending import RetryQueue, judge
from tubemq_spark.protocol.rpc import Failure, Status
from tubemq_spark.protocol.send_connection import Refusal

FULL = "[Errno 28] No space left on device"


@in_one_test(
    "answer",
    [
        Refusal(503, f"Write StoreService temporary unavailable! {FULL}"),
        Refusal(500, f"Put message failed {FULL}"),
        Failure(1, Status.ERROR, "java.io.IOException", FULL),
    ],
)
def test_a_broker_without_space_is_to_get_some(answer):
    for has_time in True, False:
        assert judge(answer, has_time=has_time).hint == "free space on the server's disk"


def test_a_broker_that_its_disk_has_stopped_is_to_be_looked_at():
    stopped = Refusal(503, "Write StoreService temporary unavailable!")
    assert judge(stopped, has_time=True).hint.startswith("check the server's disk")


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 5))
def test_what_is_due_comes_in_order_and_the_rest_stays(dues, now):
    retries = RetryQueue()
    for number, due in enumerate(dues):
        retries.add(number, float(due))
    assert retries.next_due == min(dues, default=None)
    expected = [number for due, number in sorted((due, n) for n, due in enumerate(dues)) if due <= now]
    assert list(retries.take_due(now)) == expected
    assert sorted(retries.take_due(5)) == [number for number, due in enumerate(dues) if due > now]
    retries.add(0, 1.0)
    retries.clear()
    assert list(retries.take_due(100.0)) == []


def test_a_message_may_be_added_again_while_what_is_due_is_taken():
    retries = RetryQueue()
    retries.add("a", 1.0)
    retries.add("b", 1.0)
    taken = []
    for message in retries.take_due(1.0):
        taken.append(message)
        retries.add(message, 2.0)
    assert taken == ["a", "b"]
    assert list(retries.take_due(2.0)) == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20), st.integers(0, 5))
def test_those_whose_time_is_over_are_taken_out(times, now):
    retries = RetryQueue()
    messages = [types.SimpleNamespace(due=due, give_up_at=end) for due, end in times]
    for message in messages:
        retries.add(message, message.due)
    in_order = sorted(messages, key=lambda message: message.due)
    assert retries.take_late(now) == [message for message in in_order if message.give_up_at <= now]
    assert list(retries.take_due(5)) == [message for message in in_order if message.give_up_at > now]


@pytest.mark.parametrize("of", [RetryQueue.pause_s, RetryQueue.pause_after_server_error_s])
def test_pauses_double_up_to_a_limit(of):
    retries = RetryQueue()
    pauses = [of(retries, failures) for failures in range(1, 30)]
    for earlier, later in itertools.pairwise(pauses):
        assert later in (earlier, 2 * earlier, pauses[-1])
    assert pauses[0] < pauses[-1] == of(retries, 1_000)
    assert pauses[-1] <= 8.0


def test_producers_pause_differently():
    assert len({RetryQueue().pause_s(1) for _ in range(20)}) > 1
