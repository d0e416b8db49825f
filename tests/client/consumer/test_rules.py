"""Rules that no thread waits for: who goes on with them, and what becomes of those that nobody ends."""

import threading
from concurrent.futures import Future

import pytest

from tests.client.consumer.virtual_home import VirtualHome
from tests.threads import refuse_threads
from tests.waiting import wait_until
from tubemq_spark.client.consumer.rules import Rule
from tubemq_spark.client.consumer.workers import BrokerWorkers
from tubemq_spark.client.steps import Blocking, PartitionLock, Started, wait_for
from tubemq_spark.errors import TubeMQTimeoutError


class Answer(Started):
    """An answer that comes when a test says so."""

    done = False

    def __init__(self, remaining_s=1_000.0):
        self.remaining = remaining_s
        self.asked = 0
        self.forgotten = False
        self.listener = None
        self.outcome = "in time"

    @property
    def remaining_s(self):
        return self.remaining

    def when_done(self, listener):
        self.listener = listener

    def forget(self):
        self.forgotten = True

    def result(self):
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def home():
    return VirtualHome()


def begin(home, steps):
    """Begin a rule; return it with the list of what it tells."""
    told = []
    rule = Rule(home, threading.Condition(), steps, "broker", lambda _, outcome: told.append(outcome))
    rule.begin()
    return rule, told


def holding(lock, awaited):
    yield from lock.take()
    try:
        return (yield from wait_for(awaited))
    finally:
        lock.release()


def test_a_rule_goes_on_with_what_it_waits_for_and_not_with_what_comes_too_late(home):
    first, second = Answer(remaining_s=1), Answer()

    def steps():
        return (yield from wait_for(first)), (yield from wait_for(second))

    _, told = begin(home, steps())
    home.pass_time(1)
    first.listener()
    home.settle()
    assert (first.asked, second.asked) == (1, 0), "its time was over, and it had gone on"
    second.listener()
    assert told == [], "whoever brings an answer does not go on with the rule"
    home.settle()
    assert told == [("in time", "in time")]


def test_a_rule_is_told_that_time_is_over(home):
    overdue = Answer(remaining_s=3)
    overdue.outcome = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="b", timeout_ms=1, during="fetching")

    def steps():
        yield from wait_for(overdue)

    _, told = begin(home, steps())
    home.pass_time(2.9)
    assert told == []
    home.pass_time(0.2)
    assert told == [overdue.outcome]


def test_a_rule_whose_thread_was_interrupted_goes_on_when_it_is_looked_at_again(home):
    """The answer came, and the thread that was told of it did no more."""
    answer, future = Answer(), Future()

    def steps():
        return (yield from wait_for(answer)), (yield from wait_for(future))

    rule, told = begin(home, steps())
    rule.look_again()
    assert not home.calls  # there is no answer
    answer.done = True
    rule.look_again()
    home.settle()
    future.set_result("too")
    home.calls.clear()
    rule.look_again()
    home.settle()
    assert told == [("in time", "too")]


def test_a_rule_hears_that_no_worker_can_be_started_and_the_next_one_is(home, monkeypatch):
    refuse_threads(monkeypatch, "tubemq-steps-broker", times=1)

    def steps():
        for _ in range(2):
            try:
                yield from wait_for(Blocking(lambda: outcomes.append("called")))
            except RuntimeError as error:
                outcomes.append(str(error))

    outcomes = []
    _, told = begin(home, steps())
    home.settle()
    wait_until(lambda: home.settle() or told)
    assert outcomes == ["can't start new thread", "called"]


def test_what_blocks_blocks_a_worker_of_the_broker(home):
    def steps():
        return (yield from wait_for(Blocking(lambda: threading.current_thread().name)))

    _, told = begin(home, steps())
    wait_until(lambda: home.calls)
    home.settle()
    assert told == ["tubemq-steps-broker"]


def test_what_blocks_for_one_broker_blocks_no_other():
    workers, door = BrokerWorkers(), threading.Event()
    blocked = [workers.start("dead", door.wait) for _ in range(10)]
    assert workers.start("alive", lambda: 1).result(10) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("tubemq-steps-dead") == 2, "of ten calls two are made at a time"
    door.set()
    assert all(call.result(10) for call in blocked)


def test_rules_and_threads_take_turns_with_a_lock(home):
    lock, order, future = PartitionLock(), [], Future()

    def steps(number):
        yield from lock.take()
        try:
            order.append(number)
            yield from wait_for(future)
        finally:
            lock.release()

    begin(home, steps(1))
    begin(home, steps(2))

    def use():
        with lock:
            order.append(3)

    thread = threading.Thread(target=use)
    thread.start()
    wait_until(lambda: len(lock._line) == 2)
    assert order == [1]
    future.set_result(None)
    home.settle()
    thread.join()
    assert order == [1, 2, 3]


def test_a_rule_that_is_abandoned_gives_back_what_it_holds(home):
    lock, answer = PartitionLock(), Answer()
    rule, told = begin(home, holding(lock, answer))
    assert not lock.try_take()
    thread = threading.Thread(target=rule.abandon)
    thread.start()
    thread.join()
    assert lock.try_take()
    assert (told, answer.forgotten) == ([None], True)
    answer.listener()
    home.settle()
    assert (told, answer.asked) == ([None], 0), "what comes later is too late"


def test_a_rule_is_abandoned_when_its_worker_is_done(home):
    """Otherwise what the worker does for it would go on without the lock."""
    lock, door = PartitionLock(), threading.Event()
    rule, told = begin(home, holding(lock, Blocking(door.wait)))
    rule.abandon()
    assert not lock.try_take()
    door.set()
    wait_until(lambda: told == [None])
    assert lock.try_take()


def test_a_rule_that_runs_is_abandoned_at_its_next_wait(home):
    lock, answer = PartitionLock(), Answer()

    def steps():
        rule.append(one.abandon())
        yield from holding(lock, answer)

    rule, told = [], []
    one = Rule(home, threading.Condition(), steps(), "broker", lambda _, outcome: told.append(outcome))
    one.begin()
    assert (told, answer.forgotten) == ([None], True)
    assert lock.try_take()
