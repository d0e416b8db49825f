"""Rules that the process's scheduler carries out."""

import threading
from concurrent.futures import Future

import pytest

from tests.threads import refuse_threads
from tests.waiting import wait_until
from tubemq_spark.client.background import InBackground, outcome_of
from tubemq_spark.client.steps import Blocking, Pause, Started, wait_for
from tubemq_spark.errors import TubeMQTimeoutError


class Answer(Started):
    """An answer that comes when a test says so."""

    remaining_s = 1_000.0

    def __init__(self, remaining_s=1_000.0, outcome="in time"):
        self.remaining_s = remaining_s
        self.asked = 0
        self.listener = None
        self.outcome = outcome

    def when_done(self, listener):
        self.listener = listener

    def result(self):
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def carry_out(steps):
    """Carry a rule out and return its result, or the error that it raised."""
    outcome, ended = [], threading.Event()

    def rule():
        try:
            outcome.append((yield from steps))
        except Exception as error:  # noqa: BLE001 (a test looks at it)
            outcome.append(error)

    InBackground(rule(), "a rule").start().when_done(ended.set)
    assert ended.wait(5)
    return outcome[0]


def waiting_for(*awaited):
    got = []
    for one in awaited:
        got.append((yield from wait_for(one)))
    return got


def test_a_rule_goes_on_with_what_it_waits_for_and_not_with_what_comes_too_late():
    first, second = Answer(remaining_s=0), Answer()
    ended = threading.Event()
    InBackground(yield_all(first, second), "a rule").start().when_done(ended.set)
    wait_until(lambda: second.listener)
    first.listener()
    carry_out(waiting_for())  # runs behind it
    assert (first.asked, second.asked) == (1, 0), "its time was over, and it had gone on"
    second.listener()
    assert ended.wait(5)


def yield_all(*awaited):
    for one in awaited:
        yield from wait_for(one)


def test_a_rule_is_told_that_time_is_over():
    late = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="b", timeout_ms=1, during="fetching")
    assert carry_out(waiting_for(Answer(0, late))) is late


def test_a_rule_that_fails_has_ended_and_the_log_says_why(caplog):
    ended = threading.Event()
    failing = waiting_for(Answer(0, KeyError("of the rule")))
    InBackground(failing, "a rule").start().when_done(ended.set)
    assert ended.wait(5)
    assert "a rule failed" in caplog.text
    assert "of the rule" in caplog.text


def test_a_rule_that_exits_has_ended_and_others_go_on(caplog):
    ended = threading.Event()
    InBackground(waiting_for(Blocking(leave)), "a rule").start().when_done(ended.set)
    assert ended.wait(5)
    assert "a rule failed" in caplog.text
    assert carry_out(waiting_for()) == []


def leave():
    raise SystemExit("of the rule")


def test_a_rule_is_carried_out_by_the_scheduler_of_the_process():
    def rule():
        yield from ()
        return threading.current_thread().name

    assert outcome_of(rule(), "a rule").result(5) == "tubemq-scheduler"


def test_the_outcome_of_a_rule_is_its_result_or_its_error():
    assert outcome_of(waiting_for(Answer(0)), "a rule").result(5) == ["in time"]
    with pytest.raises(KeyError, match="of the rule"):
        outcome_of(waiting_for(Answer(0, KeyError("of the rule"))), "a rule").result(5)
    with pytest.raises(SystemExit, match="of the rule"):
        outcome_of(waiting_for(Blocking(leave)), "a rule").result(5)


def test_what_blocks_has_a_thread_of_its_own_and_others_go_on():
    go_on, began, names = threading.Event(), threading.Event(), []

    def block():
        names.append(threading.current_thread().name)
        began.set()
        assert go_on.wait(5)

    ended = threading.Event()
    InBackground(yield_all(Blocking(block)), "what blocks").start().when_done(ended.set)
    assert began.wait(5)
    assert carry_out(waiting_for()) == []
    go_on.set()
    assert ended.wait(5)
    assert names == ["tubemq-background-what blocks"]


def test_what_blocks_and_raises_is_the_rules():
    error = KeyError("for the rule")

    def fail():
        raise error

    assert carry_out(waiting_for(Blocking(fail))) is error


def test_a_rule_hears_that_no_thread_can_be_started(monkeypatch):
    refuse_threads(monkeypatch, "tubemq-background-a rule", times=1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        raise carry_out(waiting_for(Blocking(leave)))


def test_a_pause_makes_no_thread_wait():
    assert carry_out(waiting_for(Pause(0.001, wait=None))) == [None]


def test_a_future_is_waited_for():
    future = Future()
    threading.Timer(0.01, future.set_result, [7]).start()
    assert carry_out(waiting_for(future)) == [7]
