"""Coroutines that wait for batches; their event loop is the home of the consumer's rules.

All of it happens in the event loop. Other threads change what can be fetched, and tell with ``Turns.wake``.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.consumer.fetching import Booked, Fetching
from tubemq_spark.client.consumer.turns import Seat, Turns
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, parse_context
from tubemq_spark.client.steps import Steps
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge

Value = TypeVar("Value")

_LOOK_S: Final = 0.01
"""How often one whose time is over looks whether the partitions that it waits for on have answered."""


class FetchingCoroutines:
    """The coroutines that fetch and confirm with one consumer."""

    def __init__(self, home: HomeLoop, fetching: Fetching, *, patient: bool = False) -> None:
        """Serve those that use one consumer.

        Args:
            home: its event loop.
            fetching: its rules.
            patient: whether one whose time is over waits on, as threads do, while a partition is fetched that
                it has not seen, for ``PATIENCE_S`` at most.
        """
        self._home = home
        self._fetching = fetching
        self._patient = patient
        self._told: dict[Seat, asyncio.Future[None]] = {}
        """Those that wait."""
        self.turns = Turns(fetching, home)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._told)

    def release(self) -> None:
        """End the wait of all for whom there is nothing."""
        for seat, told in list(self._told.items()):
            self._let_go(seat, told)

    async def fetch(self, timeout_s: float | None) -> Batch | None:
        """Wait for a batch and hand it out; None: there was none in time.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        loop = self._home.enter()
        at = None if timeout_s is None else loop.time() + timeout_s
        while True:
            outcome = await self._wait(loop, at)
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None or (batch := self._fetching.hand_out(outcome)) is not None:
                return None if outcome is None else batch

    async def confirm(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; that is carried out also when its caller waits no more.

        Raises:
            TubeMQError: as ``Consumer.confirm``.
        """
        steps = self._fetching.end_batch(context, consumed=consumed)
        return await self._carry_out(steps, parse_context(context).partition)

    async def seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition; that is carried out also when its caller waits no more.

        Raises:
            TubeMQError: as ``Consumer.seek``.
        """
        return await self._carry_out(self._fetching.seeking(partition, target), partition)

    async def _carry_out(self, steps: Steps[Value], partition: TopicPartition) -> Value:
        ended: asyncio.Future[Value] = self._home.enter().create_future()

        def tell(outcome: Value | BaseException | None) -> None:
            if ended.cancelled() or outcome is None:  # abandoned: the loop has ended
                return
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
            else:
                ended.set_result(outcome)

        self.turns.carry_out(steps, partition, tell)
        return await ended

    async def _wait(self, loop: asyncio.AbstractEventLoop, at: float | None) -> Booked | BaseException | None:
        told: asyncio.Future[None] = loop.create_future()
        seat = Seat(lambda: _tell(told))
        timer = None if at is None else _Timer(loop, at, lambda: self._end_in_time(seat, told))
        self._told[seat] = told
        try:
            self.turns.join(seat)
            await told
        except asyncio.CancelledError:
            self.turns.take_back(self.turns.leave(seat))
            raise
        finally:
            self._told.pop(seat, None)
            outcome = self.turns.leave(seat)
            if timer is not None:
                timer.cancel()
        return outcome

    def _end_in_time(self, seat: Seat, told: "asyncio.Future[None]") -> bool:
        """End the wait of one whose time is over; return False if it is to go on for a moment."""
        if self._patient and seat.outcome is None and self.turns.expects_more(seat):
            return False
        self._let_go(seat, told)
        return True

    def _let_go(self, seat: Seat, told: "asyncio.Future[None]") -> None:
        if seat.outcome is None:
            self.turns.leave(seat)
            _tell(told)


class _Timer:
    """Calls a function at some moment, and again shortly after as long as that returns False."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at: float, call: Callable[[], bool]) -> None:
        self._loop = loop
        self._call = call
        self._handle = loop.call_at(at, self._run)

    def cancel(self) -> None:
        """Do not call it any more."""
        self._handle.cancel()

    def _run(self) -> None:
        if not self._call():
            self._handle = self._loop.call_later(_LOOK_S, self._run)


def _tell(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)
