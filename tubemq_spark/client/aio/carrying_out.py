"""Carrying out rules (``Steps``) in an event loop.

A rule that has begun cannot be cancelled: its callers wait for a future, and may stop that. So a
partition is never left in the middle of a request. Only when the event loop has ended are rules abandoned.

A rule *runs*, in the event loop, until it waits for something that has not come; what brings that makes it
go on: the reader of a connection, a timer when an answer is overdue, a worker, or the one that gives a
partition back. Of those that may bring the same thing, the first counts: ``_awaited`` is what the rule waits
for, and what comes with something else comes too late.

Requests are written to their connections in the event loop: each is a few hundred bytes, and a connection
whose peer does not answer two of them is given up, so the system takes them at once.
"""

import asyncio
import functools
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.aio.workers import Workers, look_at
from tubemq_spark.client.steps import Awaited, Blocking, Started, Steps, advance

Value = TypeVar("Value")


class CarryingOut:
    """Carries out the rules of one consumer."""

    def __init__(self, home: HomeLoop, workers: Workers) -> None:
        """Use an event loop, and ``workers`` for calls that block."""
        self._home = home
        self._workers = workers
        self._begun: set[_Rule[Any]] = set()
        """The rules that have not ended."""

    def start(self, steps: Steps[Value]) -> "asyncio.Future[Value]":
        """Begin a rule, and return the future of its result; to be shielded when it is awaited."""
        rule = _Rule(self._home, self._workers, steps)
        self._begun.add(rule)
        rule.future.add_done_callback(lambda _: self._begun.discard(rule))
        rule.run(None)
        return rule.future

    async def run(self, steps: Steps[Value]) -> Value:
        """Carry out a rule; it is carried out also when its caller waits no more."""
        return await asyncio.shield(self.start(steps))

    def abandon(self) -> None:
        """End all rules where they are, and so give back what they hold; the event loop does not run."""
        begun, self._begun = self._begun, set()
        for rule in begun:
            rule.abandon()


class _Rule(Generic[Value]):
    """One rule that has begun."""

    def __init__(self, home: HomeLoop, workers: Workers, steps: Steps[Value]) -> None:
        self._home = home
        self._workers = workers
        self._steps = steps
        self._loop = home.enter()
        self._awaited: Awaited[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Value] = self._loop.create_future()
        self.future.add_done_callback(look_at)

    def run(self, awaited: Awaited[Any] | None) -> None:
        """Go on with what was waited for; in the event loop."""
        if awaited is not self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._awaited = advance(self._steps, awaited)
        except StopIteration as end:
            self.future.set_result(end.value)
        except Exception as error:  # noqa: BLE001 (its caller gets it)
            self.future.set_exception(error)
        else:
            self._arrange(self._awaited)

    def abandon(self) -> None:
        """End in the middle."""
        self._steps.close()

    def _arrange(self, awaited: Awaited[Any]) -> None:
        """Arrange a call of ``run`` for when asking for the result does not block."""
        if isinstance(awaited, Blocking):
            awaited = self._awaited = self._workers.start_step(awaited.result)
        go_on = functools.partial(self.run, awaited)
        if isinstance(awaited, Future):
            awaited.add_done_callback(lambda _: self._home.post(go_on))
        elif isinstance(awaited, Started):
            self._timer = self._loop.call_later(awaited.remaining_s, go_on)
            awaited.when_done(functools.partial(self._home.post, go_on))
        else:
            raise TypeError(awaited)
