"""Which partitions are fetched for the coroutines that wait for batches.

A partition's turn is carried out for all that wait, and for none in particular: what it brings goes to the
coroutine that has waited longest. So a coroutine may stop waiting at any time, and nothing is lost.

=========  ==================================================================================================
what       where
=========  ==================================================================================================
*waiting*  a coroutine that wants a batch: a future in ``_waiting``, in their order
*turn*     a partition that is being fetched: in ``_turns``, with the moment when it began
*outcome*  a batch, or the error of a partition that was given up, that no coroutine has taken: ``_outcomes``
=========  ==================================================================================================

Invariants:

- Nothing waits in ``_outcomes`` while a coroutine is waiting.
- A coroutine that waits has a turn of its own under way, if any partition can be fetched. A turn that takes
  longer than ``_PATIENCE_S`` does not count any more, so that a broker that is silent holds up no coroutine.
- Without a coroutine that waits no turn begins. So there is at most one batch of a partition that no
  coroutine waited for, and its partition is booked until one takes it.
- A batch is *handed out* (``Fetching.hand_out``) only when a coroutine really takes it: from then on its time
  to be confirmed runs.

All of it happens in the event loop. Other threads change what can be fetched, and tell with ``wake``.
"""

import asyncio
import collections
import time
from typing import Final

from tubemq_spark.client.aio.carrying_out import CarryingOut
from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.consumer.fetching import Booked, Fetching
from tubemq_spark.client.consumer.values import Batch
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.deadline import Clock

_PATIENCE_S: Final = 0.2
"""A sound broker answers within a few milliseconds, whether it has messages or not."""

Waiting = asyncio.Future[Booked | None]


class Turns:
    """The turns of one consumer's partitions."""

    def __init__(
        self, home: HomeLoop, rules: CarryingOut, fetching: Fetching, clock: Clock = time.monotonic
    ) -> None:
        self._home = home
        self._rules = rules
        self._fetching = fetching
        self._clock = clock
        self._waiting: dict[Waiting, None] = {}
        self._turns: dict[asyncio.Future[Booked | None], float] = {}
        self._outcomes: collections.deque[Booked | Exception] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Tell the event loop to see what can be fetched; any thread may call this."""
        if self._waiting:
            self._home.post(self._move_on)

    async def next(self, timeout_s: float | None) -> Batch | None:
        """Wait for a batch and hand it out; None: there was none in time.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        loop = self._home.enter()
        at = None if timeout_s is None else loop.time() + timeout_s
        while True:
            booked = await self._wait(loop, at)
            if booked is None:
                return None
            if (batch := self._fetching.hand_out(booked)) is not None:
                return batch

    async def _wait(self, loop: asyncio.AbstractEventLoop, at: float | None) -> Booked | None:
        waiting: Waiting = loop.create_future()
        self._waiting[waiting] = None
        self._move_on()
        timer = None if at is None else loop.call_at(at, _give_up, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._take_back(waiting)
            raise
        finally:
            self._waiting.pop(waiting, None)
            if timer is not None:
                timer.cancel()

    def _take_back(self, waiting: Waiting) -> None:
        """Keep for others what a coroutine was given in the moment in which it was cancelled."""
        if not waiting.done() or waiting.cancelled():
            return
        error = waiting.exception()
        outcome = waiting.result() if error is None else error
        if isinstance(outcome, Booked | Exception):
            self._outcomes.appendleft(outcome)
            self._home.post(self._move_on)

    def _move_on(self) -> None:
        """Give outcomes to those that wait, and begin turns for the others."""
        try:
            self._fetching.state.check_fetch()
            self._give()
            self._begin_turns()
        except TubeMQError as error:
            # It was closed, or the master refuses it: what was not handed out comes again, to others.
            self._outcomes.clear()
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(error)
        self._set_timer()

    def _give(self) -> None:
        for waiting in list(self._waiting):
            if not self._outcomes:
                return
            if not waiting.done():
                outcome = self._outcomes.popleft()
                if isinstance(outcome, Booked):
                    waiting.set_result(outcome)
                else:
                    waiting.set_exception(outcome)

    def _begin_turns(self) -> None:
        began = self._clock()
        missing = sum(not waiting.done() for waiting in self._waiting)
        missing -= sum(moment + _PATIENCE_S > began for moment in self._turns.values())
        for _ in range(missing):
            turn = self._fetching.select_now()
            if turn is None:
                return
            under_way = self._rules.start(self._fetching.take_turn(turn))
            self._turns[under_way] = began
            under_way.add_done_callback(self._end_turn)

    def _end_turn(self, turn: asyncio.Future[Booked | None]) -> None:
        del self._turns[turn]
        error = turn.exception()
        if isinstance(error, Exception):
            self._outcomes.append(error)
        elif (booked := turn.result()) is not None:
            self._outcomes.append(booked)
        self._move_on()

    def _set_timer(self) -> None:
        """Look again when a rest ends, or when patience with a broker is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not any(not waiting.done() for waiting in self._waiting):
            return
        now = self._clock()
        waits = [moment + _PATIENCE_S - now for moment in self._turns.values() if moment + _PATIENCE_S > now]
        if (rest := self._fetching.wait_s()) is not None:
            waits.append(rest)
        if waits:
            self._timer = self._home.enter().call_later(min(waits), self._move_on)


def _give_up(waiting: Waiting) -> None:
    if not waiting.done():
        waiting.set_result(None)
