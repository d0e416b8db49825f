"""Where coroutines and functions of users run: tasks with an owner, the loop of a user, and a thread."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, TypeVar

from tubemq_spark.errors import TubeMQConnectionError, TubeMQError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class OwnedTasks:
    """Tasks of one event loop; errors of those that nothing awaits are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, coroutine: Coroutine[Any, Any, Value], name: str, *, alone: bool = False
    ) -> "asyncio.Task[Value]":
        """Begin a coroutine in a task of its own; ``alone``: none awaits it, so its error is a warning."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._forget, logging.WARNING if alone else logging.DEBUG))
        return task

    async def carry_out(self, coroutine: Coroutine[Any, Any, Value], name: str) -> Value:
        """Run a coroutine to its end, also if its caller is cancelled, and return its result."""
        return await asyncio.shield(self.start(coroutine, name))

    async def ended(self) -> None:
        """Wait until no task is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        await self.ended()

    def _forget(self, level: int, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Who awaits it raises it; otherwise it is seen only here.
            logger.log(level, "%s failed", task.get_name(), exc_info=error)


class UsersLoop:
    """The event loop that a producer or a consumer belongs to: the first that uses it."""

    def __init__(self, refusal: Callable[[], TubeMQError]) -> None:
        """Wait for the first loop; ``refusal`` returns the error for all others."""
        self._refusal = refusal
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_known(self) -> bool:
        """Whether the loop is known: one has entered."""
        return self._loop is not None

    def enter(self) -> None:
        """Bind the user to the running loop; refuse another one than the first."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise self._refusal()

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, soon; only from inside the loop."""
        if self._loop is not None:
            self._loop.call_soon(function, *arguments)

    def call_soon_threadsafe(self, function: Callable[..., object]) -> None:
        """Call a function in the loop, soon; from anywhere. A loop that has ended calls nothing."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)


class Changes:
    """Wakes the coroutines that wait for something to change."""

    def __init__(self) -> None:
        self.listener: Callable[[], object] = lambda: None
        """Called with every change; it must return at once."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    def note(self) -> None:
        """Make those who wait look again, in the order in which they came; in the loop."""
        self.listener()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, or raise what it raises."""
        while not holds():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                self._waiting.pop(waiter, None)


def is_cancelled() -> bool:
    """Return whether the task that runs is cancelled, and not only what it has waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class CallbackThread:
    """A daemon thread that is started when it is first needed; any thread may use it.

    Nothing is lost: what was handed over before ``end`` is called before the thread ends.
    """

    def __init__(self) -> None:
        """Start no thread."""
        self.name = "tubemq-callbacks"
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_ended = False

    def start(self) -> None:
        """Start the thread unless it has been started."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError as error:
                        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error
                    self._thread = thread

    def is_current(self) -> bool:
        """Whether this is the thread."""
        return self._thread is threading.current_thread()

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call a function in the thread, soon; if it cannot be started, after a later call that starts it."""
        self._calls.put(call)
        try:
            self.start()
        except TubeMQConnectionError as error:  # the loop calls this, and has other messages
            logger.warning("functions of the user are called later: %s", error)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all callbacks handed over before have returned; return False if that takes too long."""
        if self._thread is None:
            return True
        called = threading.Event()
        with self._lock:
            has_ended = self._has_ended
            if not has_ended:
                self._calls.put(called.set)
        if not has_ended:
            return called.wait(timeout)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the thread after what it was handed; return at once."""
        with self._lock:
            self._has_ended = True
            self._calls.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, unless this is it."""
        if self._thread is not None and not self.is_current():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:
                logger.warning("%r raised an error, which ends nothing", call, exc_info=True)
            del call
