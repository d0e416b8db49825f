import re

import pytest

from testkit.git import ROOT
from tubemq_spark.errors import RpcError, TubeMQConnectionError
from tubemq_spark.net import retry
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff, Pace, pause, with_retries


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


def pauses_ms(backoff, deadline, most, time):
    """Make pauses until the deadline, or as many as that; return how long they were."""
    while len(time.waits) < most and (pause_s := backoff.next_s(deadline)) is not None:
        time.pause(pause_s)
    return time.waits


@pytest.mark.parametrize(
    ("pace", "chance", "left_ms", "waits"),
    [
        (Pace(100, 500), longest, 60_000, [100, 200, 400, 500, 500]),
        (Pace(900, 500), longest, 60_000, [500] * 5),
        (Pace(100, 500), shortest, 60_000, [50, 100, 200, 250, 250]),
        (Pace(100, 500), longest, 250, [100, 150]),
    ],
    ids=["doubled", "longest first", "shortened by a half at most", "until the deadline"],
)
def test_pauses_double_up_to_the_longest_and_end_with_the_deadline(pace, chance, left_ms, waits):
    time = Time()
    backoff = Backoff(pace, random=chance)
    deadline = Deadline.after_ms(left_ms, time.clock)

    assert pauses_ms(backoff, deadline, 5, time) == waits
    if left_ms == 60_000:
        backoff.reset()
        assert backoff.next_s(deadline) == pytest.approx(waits[0] / 1000)


@pytest.mark.parametrize(("left_ms", "waited"), [(0, []), (40, [40]), (50, [50]), (60, [50])])
def test_a_pause_is_no_longer_than_what_is_left(left_ms, waited):
    time = Time()

    assert pause(50, Deadline.after_ms(left_ms, time.clock), time) is (left_ms > 0)
    assert time.waits == waited


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


def attempts_of(time, call, attempts=3, left_ms=60_000, **more):
    return with_retries(call, 200, attempts, Deadline.after_ms(left_ms, time.clock), time.pause, **more)


def test_transient_errors_are_retried_until_there_is_an_answer():
    time, told = Time(), []
    answer = attempts_of(time, Calls(away(), away()), on_retry=lambda *what: told.append(what))
    assert answer == "answer"
    assert time.waits == [200, 200]
    assert [(type(error), attempt) for error, attempt in told] == [
        (TubeMQConnectionError, 1),
        (TubeMQConnectionError, 2),
    ]


def test_the_last_of_all_attempts_raises_its_error():
    time = Time()
    errors = [away() for _ in range(3)]
    with pytest.raises(TubeMQConnectionError) as raised:
        attempts_of(time, Calls(*errors))
    assert raised.value is errors[-1]
    assert time.waits == [200, 200]


def test_no_attempt_begins_after_the_deadline():
    call = Calls(*(away() for _ in range(9)))
    with pytest.raises(TubeMQConnectionError):
        attempts_of(Time(), call, attempts=9, left_ms=300)
    assert call.count == 3


def test_other_errors_are_not_retried():
    time, call = Time(), Calls(refused(431))
    with pytest.raises(RpcError):
        attempts_of(time, call)
    assert (call.count, time.waits) == (1, [])


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
