import contextlib
import os
import threading
import time

import pytest

from tests.threads import refuse_threads
from tubemq_spark.net.scheduler import Scheduler, process_scheduler


@pytest.fixture
def scheduler(scheduler_threads):
    made = Scheduler()
    yield made
    made.close()


class Counter:
    """Counts calls and lets a test wait for the n-th."""

    def __init__(self):
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self):
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, 5)


def all_scheduler_threads():
    return [thread for thread in threading.enumerate() if thread.name == "tubemq-scheduler"]


@pytest.fixture
def scheduler_threads():
    """What runs more than before the test: a server of other tests may have a scheduler of its own."""
    before = all_scheduler_threads()
    return lambda: [thread for thread in all_scheduler_threads() if thread not in before]


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def let_tasks_run(scheduler):
    """Return when what is due, or nearly so, has run."""
    last = Counter()
    task = scheduler.every(10, last, "looked at last")
    assert last.wait_for(2)
    task.cancel()


def test_a_task_is_done_again_and_again_until_it_is_cancelled(scheduler, scheduler_threads):
    counter = Counter()
    task = scheduler.every(2, counter, "counting")
    assert counter.wait_for(3)

    task.cancel()
    wait_until(lambda: not scheduler_threads())
    count = counter.count
    let_tasks_run(scheduler)
    assert counter.count == count


def test_the_first_run_comes_after_a_period(scheduler):
    counter = Counter()
    scheduler.every(60_000, counter, "counting")
    let_tasks_run(scheduler)

    assert counter.count == 0


def test_a_hastened_task_is_done_at_once_and_not_more_often_later(scheduler):
    counter = Counter()
    task = scheduler.every(60_000, counter, "counting")
    task.hasten()
    assert counter.wait_for(1)
    task.hasten()
    assert counter.wait_for(2)
    wait_until(lambda: not scheduler._running)
    assert len([entry for entry in scheduler._heap if entry[1] == task.entry]) == 1
    assert counter.count == 2


def test_hastening_during_a_run_means_another_one(scheduler):
    counter = Counter()
    began, go_on = threading.Event(), threading.Event()

    def slow():
        began.set()
        go_on.wait(5)
        counter()

    task = scheduler.every(60_000, slow, "slow")
    task.hasten()
    assert began.wait(5)
    task.hasten()
    go_on.set()
    assert counter.wait_for(2)


def test_a_cancelled_task_is_not_hastened(scheduler):
    counter = Counter()
    scheduler.every(60_000, lambda: None, "other")
    task = scheduler.every(60_000, counter, "counting")
    task.cancel()
    task.hasten()
    let_tasks_run(scheduler)
    assert counter.count == 0


def test_tasks_with_other_periods_share_one_thread(scheduler, scheduler_threads):
    slow, fast = Counter(), Counter()
    scheduler.every(60_000, slow, "slow")
    scheduler.every(1, fast, "fast")

    assert fast.wait_for(5)
    assert slow.count == 0
    assert len(scheduler_threads()) == 1


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_task_that_raises_is_logged_and_goes_on(scheduler, caplog, raised):
    counter = Counter()

    def fails():
        counter()
        raise raised("no luck")

    scheduler.every(1, fails, "the heartbeat")

    assert counter.wait_for(3)
    assert "the heartbeat failed" in caplog.text
    assert "no luck" in caplog.text


def test_the_thread_ends_with_the_last_task_and_comes_back_with_the_next(scheduler, scheduler_threads):
    for _ in range(3):
        counter = Counter()
        task = scheduler.every(1, counter, "counting")
        assert counter.wait_for(1)
        task.cancel()
        wait_until(lambda: not scheduler_threads())


def test_a_thread_that_could_not_be_started_is_started_for_the_next_task(scheduler, monkeypatch):
    refused, later = Counter(), Counter()
    refuse_threads(monkeypatch, "tubemq-scheduler", times=1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        scheduler.after(0, refused, "is refused")
    scheduler.after(0, later, "comes later")
    assert later.wait_for(1)
    assert refused.count == 0


def test_closing_waits_for_a_run_under_way(scheduler_threads):
    scheduler = Scheduler()
    began, finish, ended = threading.Event(), threading.Event(), threading.Event()

    def slow():
        began.set()
        finish.wait(5)
        ended.set()

    scheduler.every(1, slow, "slow")
    assert began.wait(5)
    threading.Timer(0.02, finish.set).start()
    scheduler.close()

    assert ended.is_set()
    assert not scheduler_threads()


def test_a_task_may_cancel_itself_and_close_its_scheduler(scheduler_threads):
    scheduler = Scheduler()
    done, late = threading.Event(), Counter()

    def last():
        scheduler.every(0, late, "entered just before")
        scheduler.close()
        done.set()

    scheduler.every(1, last, "last")

    assert done.wait(5)
    wait_until(lambda: not scheduler_threads())
    assert late.count == 0


def test_the_process_has_one_scheduler():
    assert isinstance(process_scheduler(), Scheduler)
    assert process_scheduler() is process_scheduler()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_scheduler_of_its_own(scheduler):
    parents = process_scheduler()
    child = os.fork()
    if child == 0:
        counter = Counter()
        mine = process_scheduler()
        mine.every(1, counter, "counting in the child")
        os._exit(0 if counter.wait_for(2) and mine is not parents else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


class Run:
    """A run that has begun; a test ends it."""

    def __init__(self):
        self.end = None

    def when_done(self, listener):
        self.end = listener


def test_a_run_under_way_holds_up_no_other_task_and_is_not_begun_twice(scheduler):
    begun, other = [], Counter()

    def begin():
        begun.append(Run())
        return begun[-1]

    task = scheduler.every(1, begin, "answers later")
    scheduler.every(1, other, "other")
    assert other.wait_for(10)
    assert len(begun) == 1
    task.hasten()
    begun[0].end()
    wait_until(lambda: len(begun) == 2)
    begun[1].end()
    wait_until(lambda: len(begun) == 3)
    task.cancel()
    begun[2].end()


def test_a_task_that_runs_once(scheduler, scheduler_threads):
    counter = Counter()
    scheduler.after(0, counter, "once")
    assert counter.wait_for(1)
    wait_until(lambda: not scheduler_threads())
    assert counter.count == 1


def test_what_is_entered_is_done_also_while_another_task_is_always_due(scheduler):
    scheduler.every(0, lambda: None, "always due")
    counter = Counter()
    scheduler.after(0, counter, "once")
    assert counter.wait_for(1)


def test_a_task_that_is_entered_while_the_thread_is_about_to_end_is_done(scheduler, monkeypatch):
    first, late, drop_void = Counter(), Counter(), scheduler._drop_void

    def enter_another():
        drop_void()
        if first.count:
            monkeypatch.undo()
            scheduler.after(0, late, "late")

    monkeypatch.setattr(scheduler, "_drop_void", enter_another)
    scheduler.after(0, first, "first")
    assert late.wait_for(1)


def test_the_thread_lives_as_long_as_a_run_under_way(scheduler, scheduler_threads):
    run = Run()
    task = scheduler.every(1, lambda: run, "answers later")
    wait_until(lambda: run.end)
    assert len(scheduler_threads()) == 1
    task.cancel()
    wait_until(lambda: not scheduler_threads())
    run.end()
    assert not scheduler_threads()


def test_hastening_and_cancelling_wait_for_no_lock(scheduler):
    """Signal handlers and the garbage collector do both, in any line of any thread."""
    counter = Counter()
    task = scheduler.every(60_000, counter, "counting")
    wait_until(lambda: task.entry >= 0)
    locks = [lock for lock in vars(scheduler).values() if hasattr(lock, "__enter__")]

    def hasten_and_cancel():
        task.hasten()
        assert counter.wait_for(1)
        task.cancel()

    other = threading.Thread(target=hasten_and_cancel)
    with contextlib.ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        other.start()
        other.join(5)
        assert not other.is_alive()


def test_what_does_not_count_any_more_does_not_fill_the_heap(scheduler):
    tasks = [scheduler.every(60_000, lambda: None, "kept") for _ in range(10)]
    for _ in range(1_000):
        scheduler.after(60, lambda: None, "forgotten").cancel()
        tasks[0].hasten()
    last = Counter()
    scheduler.after(0, last, "last")
    assert last.wait_for(1)

    assert len(scheduler._heap) <= 100
    assert scheduler._void == sum(entry != task.entry for _, entry, task in scheduler._heap)
    assert sum(entry == task.entry for _, entry, task in scheduler._heap) == 10
