"""Periodic tasks such as heartbeats: one thread and one heap for a whole process.

The thread waits for no peer, or one that hangs would hold up the tasks of all others. A task that needs an
answer only begins, and returns what will tell when it has ended (``UnderWay``).
"""

import functools
import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tubemq_spark.net.deadline import Clock

logger = logging.getLogger(__name__)


class UnderWay(Protocol):
    """A run that has begun and not ended."""

    def when_done(self, listener: Callable[[], object]) -> object:
        """Call a function once when it has ended, in any thread."""


class Task:
    """A function that is called until it is cancelled; ``Scheduler.every`` and ``after`` make them."""

    def __init__(
        self,
        function: Callable[[], UnderWay | None],
        period_s: float,
        name: str,
        wake: Callable[[], None],
        hasten: "Callable[[Task], None]",
    ) -> None:
        """Keep the callbacks that tell the scheduler about changes."""
        self.function = function
        self.period_s = period_s
        self.name = name
        self.active = True
        self.entry = -1
        """Number of its entry in the scheduler's heap; older entries are void."""
        self.hastened = False
        """Whether the next run is wanted at once."""
        self.began_at = 0.0
        """When the function returned last, or the task was made."""
        self.once = False
        self._wake = wake
        self._hasten = hasten

    def hasten(self) -> None:
        """Run as soon as possible, then every period again; if it is running, another run follows."""
        self._hasten(self)

    def cancel(self) -> None:
        """Stop running it; a run that has begun ends by itself."""
        self.active = False
        self._wake()


class Scheduler:
    """Runs tasks in one thread, which exists only while there are tasks."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Task]] = []
        self._running: set[Task] = set()
        self._thread: threading.Thread | None = None

    def every(self, period_ms: float, function: Callable[[], UnderWay | None], name: str) -> Task:
        """Call ``function`` every ``period_ms``, first after one period; its exceptions are logged.

        The next call is a period after the function returned. While a run is under way that it has begun,
        there is no other: one that takes longer than a period is followed at once by the next.
        """
        return self._enter(Task(function, period_ms / 1000, name, self._wake, self._hasten))

    def after(self, seconds: float, function: Callable[[], None], name: str) -> Task:
        """Call ``function`` once."""
        task = Task(function, seconds, name, self._wake, self._hasten)
        task.once = True
        return self._enter(task)

    def _enter(self, task: Task) -> Task:
        task.began_at = self._clock()
        with self._changed:
            self._push(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tubemq-scheduler", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return task

    def close(self) -> None:
        """Cancel all tasks and wait until the thread is gone."""
        with self._changed:
            for task in (*(task for _, _, task in self._heap), *self._running):
                task.active = False
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _hasten(self, task: Task) -> None:
        with self._changed:
            if not task.active:
                return
            task.hastened = True
            if task not in self._running:
                self._push(task)
                self._changed.notify_all()

    def _push(self, task: Task) -> None:
        due = self._clock() if task.hastened else task.began_at + task.period_s
        task.hastened = False
        task.entry = next(self._numbers)
        heapq.heappush(self._heap, (due, task.entry, task))

    def _run(self) -> None:
        while (task := self._wait_for_next()) is not None:
            under_way = None
            try:
                under_way = task.function()
            except Exception:
                # A task that fails must not stop the others, nor itself.
                logger.warning("%s failed", task.name, exc_info=True)
            task.began_at = self._clock()
            if under_way is None:
                self._end_run(task)
            else:
                under_way.when_done(functools.partial(self._end_run, task))

    def _end_run(self, task: Task) -> None:
        with self._changed:
            self._running.discard(task)
            if task.active and not task.once:
                self._push(task)
            self._changed.notify_all()

    def _wait_for_next(self) -> Task | None:
        """Wait for a task that is due and remove it from the heap; None ends the thread."""
        with self._changed:
            while True:
                while self._heap and not self._counts(*self._heap[0]):
                    heapq.heappop(self._heap)
                if not self._heap and not any(task.active for task in self._running):
                    self._thread = None
                    return None
                wait_s = self._heap[0][0] - self._clock() if self._heap else None
                if wait_s is not None and wait_s <= 0:
                    task = heapq.heappop(self._heap)[2]
                    self._running.add(task)
                    return task
                self._changed.wait(wait_s)

    @staticmethod
    def _counts(_due: float, entry: int, task: Task) -> bool:
        return task.active and task.entry == entry


_process_scheduler = Scheduler()


def process_scheduler() -> Scheduler:
    """Return the scheduler that the whole process shares."""
    return _process_scheduler


def _after_fork_in_child() -> None:
    # The parent's thread does not exist here, and its lock may be held forever.
    global _process_scheduler
    _process_scheduler = Scheduler()


os.register_at_fork(after_in_child=_after_fork_in_child)
