"""Carrying out rules (``Steps``) that wait for brokers, while no thread waits for any of them.

A rule is carried out at its *home*: an event loop, or the threads that fetch (``home``). It is in one of
three states:

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*waiting*  for what ``_awaited`` is. What brings that has the home go on with the rule: the reader of a
           connection, a timer when an answer is overdue, a worker, or the one that gives a partition back
*running*  in one thread; ``_awaited`` is None, and ``runner`` names the thread
*ended*    its result, or its error, was told
=========  ==================================================================================================

Invariants:

- Who sets ``_awaited`` to None, under the guard, is the only one that goes on. So of those that may bring the
  same thing the first counts, and what comes with something else comes too late.
- A rule ends once. ``abandon``, in any thread, ends it where it waits, and so gives back what it holds; a
  rule that runs, or for which a worker is busy, ends at its next wait.
- Nothing blocks in the thread that goes on with a rule, and no code of users runs there: both are
  ``Blocking``, and workers do it, of which each broker has its own.

Requests are written to their connections in the thread that goes on: each is a few hundred bytes, and a
connection whose peer does not answer two of them is given up, so the system takes them at once.
"""

import functools
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

from tubemq_spark.client.consumer.workers import process_workers
from tubemq_spark.client.steps import Awaited, Blocking, Started, Steps, advance

Value = TypeVar("Value")

_BEGINNING: Final = Blocking(lambda: None)
"""What a rule waits for that has not begun."""


class Timer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> object:
        """Do not make it."""


class Home(Protocol):
    """Where rules are carried out: what makes calls."""

    def post(self, call: Callable[[], object]) -> None:
        """Leave a call that is made soon; any thread may, also in a signal handler. Takes no lock."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Arrange a call after some seconds; only where the calls are made."""

    @property
    def idle(self) -> bool:
        """Whether nothing makes calls any more, and rules have to be abandoned."""


class Rule(Generic[Value]):
    """One rule; see the module."""

    def __init__(
        self,
        home: Home,
        guard: AbstractContextManager[object],
        steps: Steps[Value],
        key: Hashable,
        tell: "Callable[[Rule[Value], Value | BaseException | None], object]",
    ) -> None:
        """Create a rule that has not begun.

        Args:
            home: where it is carried out.
            guard: guards the state of all rules of a consumer; held for a moment.
            steps: the rule.
            key: names the broker whose workers block for it.
            tell: is given what it returned or raised; None when it was abandoned. In the thread that ran it.
        """
        self.runner = threading.get_ident()
        """The thread that runs it, or makes it wait; 0: it waits."""
        self.ended = False
        self.abandoned = False
        self._home = home
        self._guard = guard
        self._steps = steps
        self._key = key
        self._tell = tell
        self._awaited: Awaited[Any] | None = _BEGINNING
        self._blocks: Future[Any] | None = None
        self._is_unwanted = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Run until the first wait."""
        self._go_on(_BEGINNING)

    def look_again(self) -> None:
        """Go on if what was waited for has come, and the thread that was to go on was interrupted."""
        awaited = self._awaited
        is_done = (
            awaited.done if isinstance(awaited, Started) else isinstance(awaited, Future) and awaited.done()
        )
        if awaited is not None and is_done:
            self._home.post(functools.partial(self._go_on, awaited))

    def abandon(self) -> None:
        """End it where it waits, or at its next wait; any thread may."""
        with self._guard:
            awaited = self._awaited
            if awaited is None:
                self._is_unwanted = True
                return
            busy = self._blocks if awaited is self._blocks else None
            if busy is None or busy.done():
                busy = self._awaited = None
        if busy is not None:
            busy.add_done_callback(lambda _: self.abandon())
            return
        if isinstance(awaited, Started):
            awaited.forget()
        self.end_at_once()

    def end_at_once(self) -> None:
        """End it, which runs no more; in any thread."""
        self.abandoned = True
        if self._timer is not None:
            self._home.post(self._timer.cancel)
        self._steps.close()
        self._end(None)

    def _go_on(self, awaited: Awaited[Any]) -> None:
        """Go on with what was waited for, if it still is."""
        with self._guard:
            if self._awaited is not awaited:
                return
            self.runner = threading.get_ident()
            self._awaited = None
        if self._timer is not None:
            self._timer.cancel()
        try:
            following = advance(self._steps, None if awaited is _BEGINNING else awaited)
        except StopIteration as end:
            self._end(end.value)
        except BaseException as error:
            # Its caller gets it, also sys.exit() of a worker's call. What a signal raises is this thread's.
            if not (isinstance(error, Exception) or _has_brought(awaited, error)):
                raise
            self._end(error)
        else:
            self._wait_for(following)

    def _wait_for(self, awaited: Awaited[Any]) -> None:
        """Arrange that the rule goes on when asking for the result does not block."""
        if isinstance(awaited, Blocking):
            awaited = self._blocks = process_workers().start(self._key, awaited.result)
        with self._guard:
            self._awaited = awaited
        go_on = functools.partial(self._go_on, awaited)
        if isinstance(awaited, Future):
            awaited.add_done_callback(lambda _: self._home.post(go_on))
        elif isinstance(awaited, Started):
            self._timer = self._home.call_later(awaited.remaining_s, go_on)
            awaited.when_done(functools.partial(self._home.post, go_on))
        else:
            raise TypeError(awaited)
        self.runner = 0
        if self._is_unwanted:
            self.abandon()

    def _end(self, outcome: Value | BaseException | None) -> None:
        with self._guard:
            if self.ended:
                return
            self.ended = True
        self._tell(self, outcome)


def _has_brought(awaited: Awaited[Any], error: BaseException) -> bool:
    if not isinstance(awaited, Future) or not awaited.done() or awaited.cancelled():
        return False
    return awaited.exception() is error
