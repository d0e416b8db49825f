import re

import pytest

from testkit.git import ROOT
from tubemq_spark.errors import RpcError, TubeMQConnectionError
from tubemq_spark.net import retry
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff, FixedPauses, Pace, pause, with_retries


class Time:
    """A clock that only waiting moves."""

    def __init__(self):
        self.now = 0.0
        self.waits = []

    def clock(self):
        return self.now

    def pause(self, seconds):
        self.waits.append(round(seconds * 1000))
        self.now += seconds


def longest():
    """The random number that shortens nothing."""
    return 0.0


def shortest():
    return 0.999_999_999


def test_pauses_double_up_to_the_longest():
    time = Time()
    backoff = Backoff(Pace(100, 500), random=longest, wait=time)
    deadline = Deadline.after_ms(60_000, time.clock)

    assert all(backoff.wait(deadline) for _ in range(5))
    assert time.waits == [100, 200, 400, 500, 500]

    backoff.reset()
    assert backoff.wait(deadline)
    assert time.waits[-1] == 100


def test_chance_shortens_a_pause_by_a_half_at_most():
    time = Time()
    backoff = Backoff(Pace(100, 500), random=shortest, wait=time)

    assert backoff.wait(Deadline.after_ms(60_000, time.clock))
    assert time.waits == [50]


def test_the_last_pause_ends_at_the_deadline_and_allows_one_more_attempt():
    time = Time()
    backoff = Backoff(Pace(100, 500), random=longest, wait=time)
    deadline = Deadline.after_ms(250, time.clock)

    assert [backoff.wait(deadline) for _ in range(4)] == [True, True, False, False]
    assert time.waits == [100, 150]


@pytest.mark.parametrize(("left_ms", "waited"), [(0, []), (40, [40]), (50, [50]), (60, [50])])
def test_a_pause_is_no_longer_than_what_is_left(left_ms, waited):
    time = Time()

    assert pause(50, Deadline.after_ms(left_ms, time.clock), time) is (left_ms > 0)
    assert time.waits == waited


def test_the_first_pause_may_be_longer_than_the_longest():
    time = Time()
    backoff = Backoff(Pace(900, 500), random=longest, wait=time)

    assert backoff.wait(Deadline.after_ms(60_000, time.clock))
    assert time.waits == [500]


def away():
    return TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="none")


def refused(code):
    return RpcError("TUBEMQ_RPC", peer="a peer", code=code, name="", during="a test", text="", hint="")


class Calls:
    """Raises the given errors, one per call, then answers."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.count = 0

    def __call__(self):
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_transient_errors_are_retried_until_there_is_an_answer():
    time, told = Time(), []
    call = Calls(away(), away())
    deadline = Deadline.after_ms(60_000, time.clock)
    pauses = FixedPauses(200, 3, time)

    assert with_retries(call, pauses, deadline, on_retry=lambda *what: told.append(what)) == "answer"
    assert time.waits == [200, 200]
    assert [(type(error), attempt) for error, attempt in told] == [
        (TubeMQConnectionError, 1),
        (TubeMQConnectionError, 2),
    ]


def test_the_last_of_all_attempts_raises_its_error():
    time = Time()
    errors = [away() for _ in range(3)]
    call = Calls(*errors)
    with pytest.raises(TubeMQConnectionError) as raised:
        with_retries(call, FixedPauses(200, 3, time), Deadline.after_ms(60_000, time.clock))

    assert raised.value is errors[-1]
    assert time.waits == [200, 200]


def test_no_attempt_begins_after_the_deadline():
    time = Time()
    call = Calls(*(away() for _ in range(9)))
    with pytest.raises(TubeMQConnectionError):
        with_retries(call, FixedPauses(200, 9, time), Deadline.after_ms(300, time.clock))

    assert call.count == 3


def test_other_errors_are_not_retried():
    time = Time()
    call = Calls(refused(431))
    with pytest.raises(RpcError):
        with_retries(call, FixedPauses(200, 3, time), Deadline.after_ms(60_000, time.clock))

    assert (call.count, time.waits) == (1, [])


def test_the_caller_says_which_errors_are_transient():
    time = Time()
    call = Calls(refused(425), refused(431))
    with pytest.raises(RpcError) as raised:
        with_retries(
            call,
            Backoff(Pace(100, 500), random=longest, wait=time),
            Deadline.after_ms(60_000, time.clock),
            is_transient=lambda error: error.code == 425,
        )

    assert raised.value.code == 431
    assert time.waits == [100]


def documented_seconds():
    """Return the names of this module in DESIGN.md's table of waits, with the seconds that it gives them."""
    seconds = {}
    for row in (ROOT / "DESIGN.md").read_text().splitlines():
        if len(cells := row.split("|")) == 5:
            numbers = map(float, re.findall(r"\d+(?:\.\d+)?", cells[3]))
            names = [name for name in re.findall(r"`([A-Z_]+)`", cells[1]) if hasattr(retry, name)]
            seconds.update({name: tuple(next(numbers) for _ in of(name)) for name in names})
    return seconds


def of(name):
    """Return the milliseconds of a pause by its name: one number, or the first and the longest."""
    value = getattr(retry, name)
    return (value.first_ms, value.longest_ms) if isinstance(value, Pace) else (value,)


def test_pauses_are_as_long_as_documented():
    names = [name for name, value in vars(retry).items() if name.isupper() and isinstance(value, int | Pace)]
    assert documented_seconds() == {name: tuple(ms / 1000 for ms in of(name)) for name in names}
