"""Rules that wait for servers, written once: for threads, which block, and for event loops, which must not.

Such a rule is a generator. It yields what it waits for and is resumed with that, or with the error that came
instead; it returns its result. Who runs it decides how to wait: ``run`` blocks the calling thread, a ``Rule``
of a consumer (``client/consumer/rules.py``) blocks none, and ``client/background.py`` lets the process's
scheduler do other things until then. There are these kinds of waits:

- an answer to a request that is under way (``Started``);
- a new connection (``StartedChannel``) and a pause (``Pause``), in rules that run in the background;
- one's turn with a partition (a future, see ``PartitionLock``), or that for some time (``AtMost``);
- anything that is rare and blocks (``Blocking``): a lease, a question to a master.
"""

import collections
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent import futures
from concurrent.futures import Future
from typing import Any, Final, Generic, Protocol, TypeVar

from tubemq_spark.net import loop
from tubemq_spark.net.call import Call
from tubemq_spark.net.connection import PendingCall
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import SLEEP, Wait

Value = TypeVar("Value")
Result_co = TypeVar("Result_co", covariant=True)


class Awaited(Protocol[Result_co]):
    """What a rule waits for."""

    def result(self) -> Result_co:
        """Wait for it and return it, or raise what came instead."""


Steps = Generator[Awaited[Any], Any, Value]
"""A rule that waits, and returns such a value."""


class Blocking(Generic[Value]):
    """A call that blocks; made when its result is asked for."""

    def __init__(self, call: Callable[[], Value]) -> None:
        self.result = call

    def __await__(self) -> Steps[Value]:
        """Wait for it, in a coroutine that is carried out as a rule."""
        return (yield self)  # type: ignore[no-any-return]


class Started(Generic[Value]):
    """A request under way."""

    def __init__(self, pending: Call, finish: Callable[[Call], Value]) -> None:
        self._pending = pending
        self._finish = finish

    def __await__(self) -> Steps[Value]:
        """Wait for the answer and parse it, in a task of a loop or in a rule.

        Raises:
            TubeMQError: as documented where the request was started.
        """
        if isinstance(self._pending, PendingCall):
            yield from self._pending.__await__()
            return self.result()
        return (yield self)  # type: ignore[no-any-return]

    def result(self) -> Value:
        """Wait for the answer and parse it, in this thread.

        Raises:
            TubeMQError: as documented where the request was started.
        """
        return self._finish(self._pending)

    @property
    def done(self) -> bool:
        """Whether ``result`` does not wait."""
        return self._pending.done

    @property
    def remaining_s(self) -> float:
        """For how many seconds the answer may still come; then ``result`` raises an error at once."""
        return self._pending.remaining_s

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once when ``result`` will not wait any more; see ``Call.when_done``."""
        self._pending.when_done(listener)

    def forget(self) -> None:
        """Do not wait for the answer."""
        self._pending.forget()


class Pause:
    """Some time in which nothing happens."""

    def __init__(self, seconds: float, wait: Wait = SLEEP) -> None:
        self.seconds = seconds
        self._wait = wait

    def result(self) -> None:
        """Wait in this thread."""
        self._wait.pause(self.seconds)


class AtMost:
    """A future, for one who waits no longer than some time; ``result`` says whether it is done."""

    def __init__(self, future: Future[Any], seconds: float) -> None:
        self._future = future
        self._deadline = Deadline.after_ms(int(seconds * 1000))

    @property
    def remaining_s(self) -> float:
        """For how many seconds it is still waited for."""
        return self._deadline.remaining()

    def result(self) -> bool:
        """Wait, and return whether it is done, with a result or an error."""
        futures.wait([self._future], self.remaining_s)
        return self._future.done()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once it is done, in any thread."""
        self._future.add_done_callback(lambda _: listener())


def wait_for(awaited: Awaited[Value]) -> Steps[Value]:
    """Wait for one thing in a rule, with ``yield from``."""
    return (yield awaited)  # type: ignore[no-any-return]


def submit(coroutine: Coroutine[Any, Any, Value]) -> "Future[Value]":
    """Begin a coroutine in the process's loop, and return what a rule waits for."""
    submitted, outcome = loop.submit(coroutine), Future[Value]()

    def settle() -> None:
        try:
            outcome.set_result(submitted.result())
        except BaseException as error:  # noqa: BLE001 (the rule decides)
            outcome.set_exception(error)

    submitted.when_done(settle)
    return outcome


def advance(steps: Steps[Value], awaited: Awaited[Any] | None) -> Awaited[Any]:
    """Carry a rule on to its next wait, and return what it waits for.

    Args:
        steps: the rule.
        awaited: what it has waited for; None: it begins.

    Raises:
        StopIteration: it has ended; ``value`` is what it returns.
    """
    if awaited is None:
        return next(steps)
    try:
        value = awaited.result()
    except BaseException as error:  # noqa: BLE001 (the rule decides)
        return steps.throw(error)
    return steps.send(value)


def run(rule: Steps[Value] | Coroutine[Any, Any, Value]) -> Value:
    """Carry out a rule in this thread, which waits."""
    steps = rule.__await__() if isinstance(rule, Coroutine) else rule
    awaited: Awaited[Any] | None = None
    while True:
        try:
            awaited = advance(steps, awaited)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


_SOMEBODY: Final = object()


class PartitionLock:
    """Held by whichever thread or rule uses a partition.

    It is *free* or *held*; while it is held, others that want it stand in line with a ticket. ``release``
    hands it over to the first in line, so it is never free while another waits, and none is overtaken. It
    belongs to no thread: one may take it and another give it back. A holder that has named itself may give
    back at any moment, also what it has not got: an exception may have stopped it between any two lines.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holder: object = None
        self._line: collections.deque[tuple[object, Future[None]]] = collections.deque()

    def __enter__(self) -> None:
        run(self.take())

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_take(self) -> bool:
        """Take it if it is free; return whether it was."""
        with self._guard:
            if self._holder is not None:
                return False
            self._holder = _SOMEBODY
            return True

    def take(self, holder: object = _SOMEBODY) -> Steps[None]:
        """Take it when its turn has come."""
        ticket: Future[None] = Future()
        with self._guard:
            if self._holder is None:
                self._holder = holder
                return
            self._line.append((holder, ticket))
        try:
            yield from wait_for(ticket)
        except BaseException:
            if not ticket.cancel():  # too late: it is ours
                self.release(holder)
            raise

    def release(self, holder: object = _SOMEBODY) -> None:
        """Give it to the first in line, or make it free; does nothing if another one holds it."""
        with self._guard:
            if self._holder != holder:
                return
            self._holder, ticket = self._next()
        if ticket is not None:
            ticket.set_result(None)

    def _next(self) -> tuple[object, Future[None] | None]:
        """Return the first in line that still waits."""
        while self._line:
            holder, ticket = self._line.popleft()
            if ticket.set_running_or_notify_cancel():
                return holder, ticket
        return None, None
