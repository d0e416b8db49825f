"""Periodic tasks of a server: when they run, what ends them, and how their failures are logged."""

import threading

import pytest

from tests.threads import refuse_threads
from tests.waiting import wait_until
from tubemq_spark.embedded.scheduler import FailureLog, Scheduler


@pytest.fixture
def scheduler():
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


class Counter:
    """Counts calls, and waits for the n-th."""

    def __init__(self):
        self.threads = []

    def __call__(self):
        self.threads.append(threading.current_thread())

    @property
    def count(self):
        return len(self.threads)

    def wait_for(self, count):
        wait_until(lambda: self.count >= count)


def test_a_task_runs_again_and_again_until_its_scheduler_is_closed(scheduler):
    counter = Counter()
    scheduler.every(1, counter, "counting")
    counter.wait_for(3)
    scheduler.close()
    count = counter.count
    assert not counter.threads[0].is_alive()
    assert counter.count == count


def test_tasks_with_other_periods_share_one_thread_and_first_run_after_a_period(scheduler):
    slow, fast = Counter(), Counter()
    scheduler.every(600_000, slow, "slow")
    scheduler.every(1, fast, "fast")
    fast.wait_for(5)
    assert slow.count == 0
    assert len(set(fast.threads)) == 1


def test_what_is_entered_runs_also_while_another_task_is_always_due(scheduler):
    counter = Counter()
    scheduler.every(0, lambda: None, "always due")
    scheduler.every(0, counter, "counting")
    counter.wait_for(3)


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_task_that_raises_is_logged_and_goes_on(scheduler, caplog, raised):
    counter = Counter()

    def fails():
        counter()
        raise raised("no luck")

    scheduler.every(1, fails, "the heartbeat")
    counter.wait_for(3)
    assert "the heartbeat failed" in caplog.text
    assert "no luck" in caplog.text


def test_a_thread_that_could_not_be_started_is_started_for_the_next_task(scheduler, monkeypatch):
    refused, later = Counter(), Counter()
    refuse_threads(monkeypatch, "tubemq-scheduler", times=1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        scheduler.every(1, refused, "is refused")
    scheduler.every(1, later, "comes later")
    later.wait_for(3)
    assert refused.count == 0


def test_closing_waits_for_a_run_under_way(scheduler):
    began, finish, ended = threading.Event(), threading.Event(), threading.Event()

    def slow():
        began.set()
        assert finish.wait(20)
        ended.set()

    scheduler.every(1, slow, "slow")
    assert began.wait(20)
    closing = threading.Thread(target=lambda: (scheduler.close(), closed.append(ended.is_set())))
    closed = []
    closing.start()
    wait_until(lambda: scheduler._closed)
    assert closed == []
    finish.set()
    closing.join(20)
    assert closed == [True]


def test_a_task_may_close_its_scheduler(scheduler):
    late, finished = Counter(), []

    def last():
        scheduler.every(0, late, "entered just before")
        scheduler.close()
        finished.append(threading.current_thread())

    scheduler.every(1, last, "last")
    wait_until(lambda: finished)
    finished[0].join(20)
    assert not finished[0].is_alive()
    assert late.count == 0


def test_closing_one_without_tasks_waits_for_nothing():
    Scheduler().close()


@pytest.fixture
def logged(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_failure_is_logged_once_until_it_is_over(logged):
    failures = FailureLog()
    for _ in range(3):
        failures.failed("Saving", "full")
    failures.succeeded("Saving")
    failures.succeeded("Saving")
    failures.failed("Saving", "full again")
    assert logged() == ["Saving failed: full", "Saving works again", "Saving failed: full again"]


def test_each_name_fails_by_itself(logged):
    failures = FailureLog()
    failures.failed("Saving", "full")
    failures.succeeded("Flushing")
    failures.failed("Flushing", "full")
    assert logged() == ["Saving failed: full", "Flushing failed: full"]


def test_any_other_error_is_raised(logged):
    with pytest.raises(ZeroDivisionError), FailureLog().logged("Counting"):
        raise ZeroDivisionError
    assert logged() == []
