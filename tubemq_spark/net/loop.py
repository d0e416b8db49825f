"""The event loop of this process, in a thread of its own, for callers that have none.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*absent*   no caller needed it, or this process was forked: the next one starts it
*running*  the daemon thread ``tubemq-loop`` runs it
*ended*    the process is about to exit: calls are refused
=========  ==================================================================================================

Invariants:

- A caller waits in its own thread, and only there a signal can interrupt it. Then its coroutine is cancelled,
  and waited for, but not for long.
- A call from inside the loop's thread would wait for itself, and is refused.
- The thread survives what a task or a callback raises, ``SystemExit`` too.
- A forked child has no loop. What belongs to the parent's loop is never used by it, nor waited for.
- ``iterate`` runs an asynchronous generator a few items ahead, and not further: its task waits for room. When
  the items are not wanted any more, the task is cancelled, and has ended before ``iterate`` has.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from typing import Any, Final, Generic, Self, TypeVar

from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.net.retry import CHECK_S, SLEEP, Wait

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Item = TypeVar("Item")

_CANCEL_S: Final = 1.0
"""How long an interrupted caller waits for the end of its coroutine."""
_EXIT_S: Final = 1.0
"""How long the tasks that are left at the exit are waited for."""
_ENDED: Final = "a call was made while the process exits"
_WAITS_FOR_ITSELF: Final = "a blocking call was made in the thread of the event loop"

_lock = threading.Lock()
_running: "_LoopThread | None" = None
_inherited: Final[list["_LoopThread"]] = []
"""The loops of this process's ancestors, which are never collected: their sockets are not ours to close."""
_has_ended = False


class _LoopThread:
    """An event loop that runs in a thread from the start."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._ending: asyncio.Task[None] | None = None
        self.thread = threading.Thread(target=self._run, name="tubemq-loop", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread is left
            self.loop.close()
            raise

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop."""
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError as error:
            raise _misuse(_ENDED) from error

    def stop(self) -> None:
        """Cancel the tasks that are left, and end the thread."""
        self.post(self._begin_to_end)
        self.thread.join(2 * _EXIT_S)

    def begin(self, coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """Return the task of a coroutine, in the loop's thread; the caller takes its outcome."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while self._ending is None or not self._ending.done():
            try:
                self.loop.run_forever()
            except BaseException:  # sys.exit() in a task: the thread is everyone's, and the caller is told
                logger.warning("a task of the event loop raised what ends others", exc_info=True)
        self.loop.close()

    def _begin_to_end(self) -> None:
        self._ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        """Cancel all tasks, wait for them, and stop the loop."""
        left = asyncio.all_tasks() - {self._ending}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_EXIT_S)
        self.loop.stop()


class Submitted(Generic[Result]):
    """A coroutine on its way to the process's loop or in it, and what it returns.

    An interrupt may hit a thread that waits in any line, so it shares no lock with the loop that it could be
    made to keep: ``_unsettled`` is held from the start, and released by the loop.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Result]) -> None:
        self._coroutine = coroutine
        self._owner: _LoopThread | None = None
        self._task: asyncio.Task[Result] | None = None
        self._error: BaseException | None = None
        self._value: Result
        self._unsettled = threading.Lock()
        self._unsettled.acquire()
        # At most one; the thread that pops it calls it, so it is called once.
        self._listeners: list[Callable[[], object]] = []

    def begin(self) -> Self:
        """Hand the coroutine to the loop, once, and return at once."""
        # What interrupts the next lines is followed by ``stop``, which needs the owner.
        self._owner = owner = _thread()
        owner.post(self._begin)
        return self

    def done(self) -> bool:
        """Return whether the coroutine has ended."""
        return not self._unsettled.locked()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the coroutine has ended; return whether it has in time."""
        if not self._unsettled.acquire(blocking=False):
            if in_loop():
                raise _misuse(_WAITS_FOR_ITSELF)
            if self._owner is not _running:
                raise _misuse(
                    "what was begun in the parent process, or before this one exits, was waited for"
                )
            if not self._unsettled.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
                return False
        self._unsettled.release()
        return True

    def result(self, timeout_s: float | None = None) -> Result:
        """Return what the coroutine returns, or raise what it raises."""
        if not self.wait(timeout_s):
            raise TimeoutError
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            # Its error holds this frame.
            del self

    @property
    def returned(self) -> Result | None:
        """What the coroutine has returned; None if it has not."""
        return self._value if self.done() and self._error is None else None

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once when the coroutine has ended, in the loop's thread or here.

        It must return at once and raise nothing. May be used once.
        """
        self._listeners.append(listener)
        if self.done():
            self._tell()

    def stop(self) -> None:
        """Cancel the coroutine, and return at once."""
        if self._owner is None:
            self._cancel()
        elif self._owner is _running:
            with contextlib.suppress(LocalProtocolError):
                self._owner.post(self._cancel)

    def end(self, seconds: float | None = None) -> None:
        """Cancel the coroutine if it has not ended, and wait for its end where that is possible.

        The garbage collector may call this in the loop's thread, or in a child of the process.
        """
        if self.done():
            return
        self.stop()
        if self._owner is _running and not in_loop():
            self.wait(seconds)

    def _begin(self) -> None:
        if self._owner is not None and not self.done():
            self._task = self._owner.begin(self._coroutine)
            self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self.done():
            self._coroutine.close()
            self._error = CancelledError()
            self._mark_done()

    def _settle(self, task: "asyncio.Task[Result]") -> None:
        self._task = None
        if task.cancelled():
            self._error = CancelledError()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._value = task.result()
        self._mark_done()

    def _mark_done(self) -> None:
        self._unsettled.release()
        self._tell()

    def _tell(self) -> None:
        if self._listeners:
            with contextlib.suppress(IndexError):  # the other one was first
                self._listeners.pop()()


def submit(coroutine: Coroutine[Any, Any, Result]) -> Submitted[Result]:
    """Begin a coroutine in the process's loop, and return at once."""
    submitted = Submitted(coroutine)
    try:
        return submitted.begin()
    except BaseException:
        submitted.stop()
        raise


def run(coroutine: Coroutine[Any, Any, Result], wait: Wait = SLEEP) -> Result:
    """Run a coroutine in the process's loop, and return its result.

    ``wait.check`` is called several times per second; what it raises cancels the coroutine.
    """
    return finish(Submitted(coroutine), wait)


def finish(submitted: Submitted[Result], wait: Wait = SLEEP) -> Result:
    """Begin a coroutine, and return what it returns, as ``run``.

    A caller that is interrupted still has ``submitted``, and ``returned`` says what did not reach it.
    """
    try:
        if in_loop():
            raise _misuse(_WAITS_FOR_ITSELF)
        submitted.begin()
        while not submitted.wait(None if wait is SLEEP else CHECK_S):
            wait.check()
        return submitted.result()
    except BaseException:
        submitted.end(_CANCEL_S)
        raise
    finally:
        # Its error holds this frame.
        del submitted


def call_soon(callback: Callable[..., object], *arguments: object) -> None:
    """Call a function in the process's loop, from any thread; it must return at once."""
    _thread().post(callback, *arguments)


def has_begun() -> bool:
    """Return whether this process has its loop already, which the first caller that needs it starts."""
    return _running is not None


def in_loop() -> bool:
    """Return whether this is the thread of the process's loop."""
    return _running is not None and _running.thread is threading.current_thread()


def task_count() -> int:
    """Return how many tasks of the process's loop have not ended."""
    return 0 if _running is None else len(asyncio.all_tasks(_running.loop))


def iterate(
    items: AsyncGenerator[Item, None], *, ahead: int = 2, wait: Wait = SLEEP, idle: Item | None = None
) -> Generator[Item, None, None]:
    """Yield the items of an asynchronous generator, which runs ahead in the process's loop.

    To close it cancels what the generator waits for, and returns when that has ended.

    ``wait.check`` is called several times per second while no item is there. With ``idle``, that is yielded
    each time when no item has come for a tenth of a second.
    """
    handover: _Handover[Item] = _Handover(ahead)
    filling = Submitted(handover.fill(items))
    try:
        if in_loop():
            raise _misuse(_WAITS_FOR_ITSELF)
        filling.begin()
        while True:
            handover.ask()
            while (item := handover.get(CHECK_S)) is None:
                filling.wait(0)
                wait.check()
                if idle is not None:
                    yield idle
            if isinstance(item, _End):
                filling.result()
                return
            yield item
    finally:
        filling.end()
        del filling


class _End:
    """Stands behind the last item."""


class _Handover(Generic[Item]):
    """Items on their way from the loop to the thread that takes them.

    The loop adds items until there are as many as were asked for, and those it may be ahead. Then it sets
    ``_waits``, looks again, and waits; who asks for another one looks at that, and wakes it.
    """

    def __init__(self, ahead: int) -> None:
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._wanted = ahead
        self._waits = False
        self._more = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop

    async def fill(self, items: AsyncGenerator[Item, None]) -> None:
        """Hand over all items, and then the end."""
        self._loop = asyncio.get_running_loop()
        added = 0
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    self._items.put(item)
                    added += 1
                    while added >= self._wanted:
                        self._more.clear()
                        self._waits = True
                        if added >= self._wanted:
                            await self._more.wait()
                        self._waits = False
        finally:
            self._items.put(_End())

    def ask(self) -> None:
        """Ask for one more item."""
        self._wanted += 1
        if self._waits:
            with contextlib.suppress(RuntimeError):  # the process is about to exit
                self._loop.call_soon_threadsafe(self._more.set)

    def get(self, timeout_s: float) -> Item | _End | None:
        """Return the next item, or the end; None if it has not come in time."""
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None


async def in_thread(call: Callable[[], Result], name: str) -> Result:
    """Run a function that may block for any time in a daemon thread of its own, and return its result.

    A pool would hold up the exit of the process, and its other users. When the caller is cancelled, the
    thread goes on, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def make() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 (the caller gets it)
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return await outcome


def _thread() -> _LoopThread:
    global _running
    running = _running
    if running is not None:
        return running
    with _lock:
        if _has_ended:
            raise _misuse(_ENDED)
        if _running is None:
            _running = _LoopThread()
        return _running


def _misuse(what: str) -> LocalProtocolError:
    return LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)


def _after_fork_in_child() -> None:
    global _lock, _running
    _lock = threading.Lock()
    if _running is not None:
        _inherited.append(_running)
        _running = None


def _at_exit() -> None:
    global _has_ended, _running
    with _lock:
        _has_ended, running, _running = True, _running, None
    if running is not None:
        running.stop()


os.register_at_fork(after_in_child=_after_fork_in_child)
# Before that of any other module here: functions that are registered later are called first.
atexit.register(_at_exit)
