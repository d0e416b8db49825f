"""The server's clocks, its periodic tasks, and a log of failures that repeat.

A scheduler is one thread and a few tasks. The thread begins with the first task and ends with ``close``. The
lock guards the list of tasks, and is not held while one runs. Nothing that a task raises ends the thread,
``SystemExit`` neither: the other tasks are there.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator


def wall_ms() -> int:
    """Return the time of day in ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the time of a clock in ms that never goes back; only differences have a meaning."""
    return time.monotonic_ns() // 1_000_000


logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Task:
    """A function that is called until its scheduler is closed."""

    due_s: float
    """When it is called next, on the monotonic clock."""
    function: Callable[[], None]
    period_s: float
    name: str


class Scheduler:
    """Runs tasks in one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: list[_Task] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def every(self, period_ms: float, function: Callable[[], None], name: str) -> None:
        """Call ``function`` every ``period_ms``, first after one period; its exceptions are logged.

        The next call is a period after the function returned.
        """
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tubemq-scheduler", daemon=True)
                thread.start()
                self._thread = thread
            period_s = period_ms / 1000
            self._tasks.append(_Task(time.monotonic() + period_s, function, period_s, name))
            self._changed.notify()

    def close(self) -> None:
        """Call no more tasks, and wait until the thread is gone; a task may call this, too."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
            self._changed.notify()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _run(self) -> None:
        while (task := self._wait_for_next()) is not None:
            try:
                task.function()
            except BaseException:
                # A task that fails must not stop the others, nor itself; also with sys.exit().
                logger.warning("%s failed", task.name, exc_info=True)
            task.due_s = time.monotonic() + task.period_s

    def _wait_for_next(self) -> _Task | None:
        """Wait for a task that is due; None ends the thread, which begins with the first task."""
        with self._changed:
            while not self._closed:
                task = min(self._tasks, key=lambda task: task.due_s)
                wait_s = task.due_s - time.monotonic()
                if wait_s <= 0:
                    return task
                self._changed.wait(wait_s)
            return None


class FailureLog:
    """Remembers, by name, what is failing at present; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def failed(self, name: str, cause: object) -> None:
        """Log that something failed, unless it has been failing since that was last logged."""
        with self._lock:
            failing = name in self._failing
            self._failing.add(name)
        if not failing:
            logger.error("%s failed: %s", name, cause)

    def succeeded(self, name: str) -> None:
        """Log that something works again, if it was failing."""
        if name not in self._failing:
            return
        with self._lock:
            failing = name in self._failing
            self._failing.discard(name)
        if failing:
            logger.warning("%s works again", name)

    @contextlib.contextmanager
    def logged(self, name: str) -> Iterator[None]:
        """Do something; an OSError is logged and suppressed."""
        try:
            yield
        except OSError as error:
            self.failed(name, error)
        else:
            self.succeeded(name)

    def wrap(self, name: str, function: Callable[[], object]) -> Callable[[], None]:
        """Return a function that calls another one within ``logged``."""

        def call() -> None:
            with self.logged(name):
                function()

        return call
