"""Periodic tasks such as heartbeats: one thread and one heap for a whole process."""

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable

from tubemq_spark.net.deadline import Clock

logger = logging.getLogger(__name__)


class Task:
    """A function that is called periodically until it is cancelled; ``Scheduler.every`` makes them."""

    def __init__(
        self,
        function: Callable[[], object],
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
        self._running: Task | None = None
        self._thread: threading.Thread | None = None

    def every(self, period_ms: float, function: Callable[[], object], name: str) -> Task:
        """Call ``function`` every ``period_ms``, first after one period; its exceptions are logged.

        The next run is a period after the last one ended, so slow runs do not pile up.
        """
        task = Task(function, period_ms / 1000, name, self._wake, self._hasten)
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
            tasks = [task for _, _, task in self._heap]
            if self._running is not None:
                tasks.append(self._running)
            for task in tasks:
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
            if task is not self._running:
                self._push(task)
                self._changed.notify_all()

    def _push(self, task: Task) -> None:
        due = self._clock() if task.hastened else self._clock() + task.period_s
        task.hastened = False
        task.entry = next(self._numbers)
        heapq.heappush(self._heap, (due, task.entry, task))

    def _run(self) -> None:
        while (task := self._wait_for_next()) is not None:
            try:
                task.function()
            except Exception:
                # A task that fails must not stop the others, nor itself.
                logger.warning(
                    "%s failed; the next attempt is in %.1f s", task.name, task.period_s, exc_info=True
                )
            with self._changed:
                self._running = None
                self._push(task)

    def _wait_for_next(self) -> Task | None:
        """Wait for a task that is due and remove it from the heap; None ends the thread."""
        with self._changed:
            while True:
                self._heap = [item for item in self._heap if item[2].active and item[2].entry == item[1]]
                heapq.heapify(self._heap)
                if not self._heap:
                    self._thread = None
                    return None
                wait_s = self._heap[0][0] - self._clock()
                if wait_s <= 0:
                    self._running = heapq.heappop(self._heap)[2]
                    return self._running
                self._changed.wait(wait_s)


_process_scheduler = Scheduler()


def process_scheduler() -> Scheduler:
    """Return the scheduler that the whole process shares."""
    return _process_scheduler


def _after_fork_in_child() -> None:
    # The parent's thread does not exist here, and its lock may be held forever.
    global _process_scheduler
    _process_scheduler = Scheduler()


os.register_at_fork(after_in_child=_after_fork_in_child)
