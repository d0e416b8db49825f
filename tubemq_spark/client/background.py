"""Carrying out rules (``Steps``) in the process's scheduler, whose thread waits for no peer.

A rule *runs* in that thread until it waits for something that has not come; what brings that, or the end of
its time, makes it go on there. Of those the first counts: what comes with another one comes too late.

What blocks has a thread of its own, which ends with it. Requests are written in the scheduler's thread: each
is small, and a connection whose peer does not answer two of them is given up, so the system takes them at
once.
"""

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tubemq_spark.client.steps import AtMost, Awaited, Blocking, Pause, Started, Steps, advance
from tubemq_spark.net.pool import StartedChannel
from tubemq_spark.net.scheduler import Task, process_scheduler

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class InBackground:
    """A rule that is carried out in the background, from ``start`` on; it has no result."""

    def __init__(self, steps: Steps[None], name: str) -> None:
        self._steps = steps
        self._name = name
        self._scheduler = process_scheduler()
        self._awaited: Awaited[Any] | None = None
        self._timer: Task | None = None
        self.ended: Future[None] = Future()
        """Done when the rule has ended."""

    def start(self) -> "InBackground":
        """Begin, in the scheduler's thread, and return at once."""
        self._soon(None)
        return self

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once when the rule has ended, in the scheduler's thread or in this."""
        self.ended.add_done_callback(lambda _: listener())

    def _soon(self, awaited: Awaited[Any] | None) -> None:
        self._scheduler.after(0, functools.partial(self._run, awaited), self._name)

    def _run(self, awaited: Awaited[Any] | None) -> None:
        if awaited is not self._awaited or self.ended.done():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._awaited = advance(self._steps, awaited)
        except StopIteration:
            self.ended.set_result(None)
        except BaseException:  # also sys.exit(): the thread is everyone's
            logger.warning("%s failed", self._name, exc_info=True)
            self.ended.set_result(None)
        else:
            self._arrange(self._awaited)

    def _arrange(self, awaited: Awaited[Any]) -> None:
        """Arrange a call of ``_run`` for when asking for the result does not block."""
        if isinstance(awaited, Blocking):
            awaited = self._awaited = _in_a_thread(awaited, self._name)
        elif isinstance(awaited, Pause):
            seconds, awaited = awaited.seconds, Future()
            self._awaited = awaited
            self._scheduler.after(seconds, functools.partial(awaited.set_result, None), self._name)
        go_on = functools.partial(self._soon, awaited)
        if isinstance(awaited, Future):
            awaited.add_done_callback(lambda _: go_on())
        elif isinstance(awaited, Started | StartedChannel | AtMost):
            self._timer = self._scheduler.after(
                awaited.remaining_s, functools.partial(self._run, awaited), self._name
            )
            awaited.when_done(go_on)
        else:
            raise TypeError(awaited)


def outcome_of(steps: Steps[Value], name: str) -> "Future[Value]":
    """Carry out a rule in the background, and return what will have its result or its error."""
    future: Future[Value] = Future()

    def rule() -> Steps[None]:
        try:
            future.set_result((yield from steps))
        except BaseException as error:  # noqa: BLE001 (its future tells it)
            future.set_exception(error)

    InBackground(rule(), name).start()
    return future


def _in_a_thread(call: Blocking[Any], name: str) -> "Future[Any]":
    future: Future[Any] = Future()

    def make() -> None:
        try:
            future.set_result(call.result())
        except BaseException as error:  # noqa: BLE001 (the rule decides)
            future.set_exception(error)

    try:
        threading.Thread(target=make, name=f"tubemq-background-{name}", daemon=True).start()
    except RuntimeError as error:  # no thread can be started: the rule decides, as with what the call raises
        future.set_exception(error)
    return future
