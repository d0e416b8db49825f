import types

import pytest

from tubemq_spark.net.deadline import Deadline


def test_what_is_left_runs_down_to_zero():
    clock = types.SimpleNamespace(now=100.0)
    deadline = Deadline.after_ms(1500, lambda: clock.now)

    assert deadline.remaining() == pytest.approx(1.5)
    assert not deadline.expired

    clock.now += 1.0
    assert deadline.remaining() == pytest.approx(0.5)

    clock.now += 0.5
    assert deadline.remaining() == 0
    assert deadline.expired

    clock.now += 10
    assert deadline.remaining() == 0


def test_a_deadline_of_no_time_has_passed():
    assert Deadline.after_ms(0, lambda: 100.0).expired


def test_of_two_deadlines_the_earlier_and_the_later_one():
    soon, late = Deadline(1.0), Deadline(2.0)
    assert soon.earlier(late) is late.earlier(soon) is soon.earlier(None) is soon
    assert soon.later(late) is late.later(soon) is late
