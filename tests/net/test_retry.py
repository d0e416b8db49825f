import pytest

from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff, pause


class Time:
    """A clock that only waiting moves."""

    def __init__(self):
        self.now = 0.0
        self.waits = []

    def clock(self):
        return self.now

    def wait(self, seconds):
        self.waits.append(round(seconds * 1000))
        self.now += seconds


def longest():
    """The random number that shortens nothing."""
    return 0.0


def shortest():
    return 0.999_999_999


def test_pauses_double_up_to_the_longest():
    time = Time()
    backoff = Backoff(100, 500, random=longest, wait=time.wait)
    deadline = Deadline.after_ms(60_000, time.clock)

    assert all(backoff.wait(deadline) for _ in range(5))
    assert time.waits == [100, 200, 400, 500, 500]

    backoff.reset()
    assert backoff.wait(deadline)
    assert time.waits[-1] == 100


def test_chance_shortens_a_pause_by_a_half_at_most():
    time = Time()
    backoff = Backoff(100, 500, random=shortest, wait=time.wait)

    assert backoff.wait(Deadline.after_ms(60_000, time.clock))
    assert time.waits == [50]


def test_the_last_pause_ends_at_the_deadline_and_allows_one_more_attempt():
    time = Time()
    backoff = Backoff(100, 500, random=longest, wait=time.wait)
    deadline = Deadline.after_ms(250, time.clock)

    assert [backoff.wait(deadline) for _ in range(4)] == [True, True, False, False]
    assert time.waits == [100, 150]


@pytest.mark.parametrize(("left_ms", "waited"), [(0, []), (40, [40]), (50, [50]), (60, [50])])
def test_a_pause_is_no_longer_than_what_is_left(left_ms, waited):
    time = Time()

    assert pause(50, Deadline.after_ms(left_ms, time.clock), time.wait) is (left_ms > 0)
    assert time.waits == waited


def test_the_first_pause_may_be_longer_than_the_longest():
    time = Time()
    backoff = Backoff(900, 500, random=longest, wait=time.wait)

    assert backoff.wait(Deadline.after_ms(60_000, time.clock))
    assert time.waits == [500]
