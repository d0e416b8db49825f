"""The bytes that wait: never more than the limits, but for one that is larger than they are."""

import collections
import threading

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.gateway.session.budget import ByteBudget


def at_once():
    return True


def test_an_owner_has_a_limit_and_all_together_have_one():
    budget = ByteBudget(per_owner=10, total=15)
    assert budget.take("a", 6, at_once)
    assert not budget.take("a", 5, at_once)
    assert budget.take("b", 9, at_once)
    assert not budget.take("c", 1, at_once)
    budget.give("a", 6)
    assert budget.take("c", 6, at_once)
    assert budget.used == 15


def test_a_call_larger_than_a_limit_is_let_in_alone():
    budget = ByteBudget(per_owner=10, total=15)
    assert budget.take("a", 100, at_once)
    assert not budget.take("b", 1, at_once)
    budget.give("a", 100)
    assert budget.take("b", 1, at_once)


def test_a_waiting_call_gets_what_is_given_back():
    budget = ByteBudget(10, 10)
    budget.take("a", 10, at_once)
    taken = []
    waiting = threading.Thread(target=lambda: taken.append(budget.take("b", 4, lambda: False)))
    waiting.start()
    budget.give("a", 10)
    waiting.join(5)
    assert taken == [True]


def test_a_waiting_call_gives_up_after_its_time():
    budget = ByteBudget(10, 10)
    budget.take("a", 10, at_once)
    assert not budget.take("b", 1, lambda: False, timeout_s=0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), max_size=30), st.data())
def test_the_limits_hold_whatever_comes_and_goes(wanted, data):
    budget = ByteBudget(per_owner=10, total=15)
    held = []
    for owner, size in wanted:
        if budget.take(owner, size, at_once):
            held.append((owner, size))
        by_owner = collections.Counter()
        for name, taken in held:
            by_owner[name] += taken
        assert budget.used == sum(by_owner.values())
        for name, taken in by_owner.items():
            alone = [one for who, one in held if who == name and one]
            assert taken <= 10 or len(alone) == 1
        if held and data.draw(st.booleans()):
            budget.give(*held.pop(data.draw(st.integers(0, len(held) - 1))))
    for one in held:
        budget.give(*one)
    assert budget.used == 0


def test_giving_back_bytes_that_were_not_taken_is_a_mistake():
    with pytest.raises(KeyError):
        ByteBudget(1, 1).give("a", 1)
