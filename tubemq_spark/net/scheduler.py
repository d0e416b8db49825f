"""Periodic tasks such as heartbeats: one thread and one heap for a whole process.

The thread waits for no peer, or one that hangs would hold up the tasks of all others. A task that needs an
answer only begins, and returns what will tell when it has ended (``UnderWay``).

Invariants:

- The heap and what runs belong to the scheduler's thread alone. Others leave it *notes*, which it carries out
  between two runs. So ``hasten`` and ``cancel`` take no lock: signal handlers and the garbage collector may
  call them in any line of any thread.
- ``Task.entry`` is the number of a task's only entry in the heap that counts; others are *void*. They are
  dropped when they come up, or when they are most of the heap. So a change costs no more with many tasks.
- A thread exists while a task is active. It ends under ``_life`` when there is none and no note; who enters a
  task leaves the note first, and then looks under ``_life`` whether there is a thread that is alive.
- Nothing that a task raises ends the thread, ``SystemExit`` neither: the tasks of all others are there.
"""

import functools
import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from tubemq_spark.net.deadline import Clock

logger = logging.getLogger(__name__)

_NO_ENTRY: Final = -1
_FEW: Final = 64
"""So many void entries are never worth a new heap."""


def _nothing() -> None:
    pass


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
        scheduler: "Scheduler",
    ) -> None:
        """Create a task that is not entered."""
        self.function = function
        self.period_s = period_s
        self.name = name
        self.active = True
        self.entry = _NO_ENTRY
        """Number of its entry in the scheduler's heap; older entries are void."""
        self.hastened = False
        """Whether the next run is wanted at once."""
        self.began_at: float
        """When the function returned last, or the task was made."""
        self.once = False
        self._scheduler = scheduler

    def hasten(self) -> None:
        """Run as soon as possible, then every period again; if it is running, another run follows."""
        self._scheduler.leave(functools.partial(self._scheduler.hasten, self))

    def cancel(self) -> None:
        """Stop running it; a run that has begun ends by itself."""
        self.active = False
        self._scheduler.leave(functools.partial(self._scheduler.forget, self))


class Scheduler:
    """Runs tasks in one thread, which exists only while there are tasks."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._life = threading.RLock()
        self._notes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Task]] = []
        self._void = 0
        """How many entries of the heap are void."""
        self._running: set[Task] = set()
        self._thread: threading.Thread | None = None

    def every(self, period_ms: float, function: Callable[[], UnderWay | None], name: str) -> Task:
        """Call ``function`` every ``period_ms``, first after one period; its exceptions are logged.

        The next call is a period after the function returned. While a run is under way that it has begun,
        there is no other: one that takes longer than a period is followed at once by the next.
        """
        return self._enter(Task(function, period_ms / 1000, name, self))

    def after(self, seconds: float, function: Callable[[], None], name: str) -> Task:
        """Call ``function`` once."""
        task = Task(function, seconds, name, self)
        task.once = True
        return self._enter(task)

    def _enter(self, task: Task) -> Task:
        task.began_at = self._clock()
        self._notes.put(functools.partial(self._push, task))
        with self._life:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tubemq-scheduler", daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    task.active = False  # its caller takes it as not entered
                    raise
        return task

    def close(self) -> None:
        """Cancel all tasks and wait until the thread is gone."""
        with self._life:
            thread = self._thread
        if thread is threading.current_thread():
            self._read_notes()
            self._cancel_all()
        elif thread is not None:
            self._notes.put(self._cancel_all)
            thread.join()

    def leave(self, note: Callable[[], None]) -> None:
        """Leave a note that the thread carries out, if there is one; takes no lock."""
        self._notes.put(note)

    # In the scheduler's thread.

    def hasten(self, task: Task) -> None:
        """Run a task next."""
        task.hastened = True
        if task not in self._running:
            self._push(task)

    def forget(self, task: Task) -> None:
        """Forget a task, and what its function keeps alive."""
        task.function = _nothing
        self._running.discard(task)
        self._leave_heap(task)

    def _cancel_all(self) -> None:
        for task in (*(task for _, _, task in self._heap), *self._running):
            task.active = False
            self.forget(task)

    def _push(self, task: Task) -> None:
        if not task.active:
            return
        self._leave_heap(task)
        due = self._clock() if task.hastened else task.began_at + task.period_s
        task.hastened = False
        task.entry = next(self._numbers)
        heapq.heappush(self._heap, (due, task.entry, task))

    def _leave_heap(self, task: Task) -> None:
        """Make a task's entry void, if it has one."""
        if task.entry == _NO_ENTRY:
            return
        task.entry = _NO_ENTRY
        self._void += 1
        if self._void > max(_FEW, len(self._heap) // 2):
            self._heap = [item for item in self._heap if item[1] == item[2].entry]
            heapq.heapify(self._heap)
            self._void = 0

    def _run(self) -> None:
        while (task := self._wait_for_next()) is not None:
            under_way = None
            try:
                under_way = task.function()
            except BaseException:
                # A task that fails must not stop the others, nor itself; also with sys.exit().
                logger.warning("%s failed", task.name, exc_info=True)
            task.began_at = self._clock()
            end = functools.partial(self._end_run, task)
            if under_way is None:
                end()
            else:
                under_way.when_done(functools.partial(self._notes.put, end))
            del task, under_way, end

    def _end_run(self, task: Task) -> None:
        self._running.discard(task)
        if not task.once:
            self._push(task)

    def _wait_for_next(self) -> Task | None:
        """Wait for a task that is due and remove it from the heap; None ends the thread."""
        while True:
            self._read_notes()
            self._drop_void()
            wait_s = self._heap[0][0] - self._clock() if self._heap else None
            if wait_s is not None and wait_s <= 0:
                task = heapq.heappop(self._heap)[2]
                task.entry = _NO_ENTRY
                self._running.add(task)
                return task
            if wait_s is None and not self._running and self._may_end():
                return None
            try:
                note = self._notes.get(timeout=wait_s)
            except queue.Empty:
                continue
            note()
            del note

    def _read_notes(self) -> None:
        while not self._notes.empty():
            self._notes.get()()

    def _drop_void(self) -> None:
        while self._heap and self._heap[0][1] != self._heap[0][2].entry:
            heapq.heappop(self._heap)
            self._void -= 1

    def _may_end(self) -> bool:
        with self._life:
            if not self._notes.empty():
                return False
            self._thread = None
            return True


_process_scheduler = Scheduler()


def process_scheduler() -> Scheduler:
    """Return the scheduler that the whole process shares."""
    return _process_scheduler


def _after_fork_in_child() -> None:
    # The parent's thread does not exist here, and its lock may be held forever.
    global _process_scheduler
    _process_scheduler = Scheduler()


os.register_at_fork(after_in_child=_after_fork_in_child)
