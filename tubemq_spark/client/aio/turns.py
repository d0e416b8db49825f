"""Coroutines that wait for batches; their event loop is the home of the consumer's rules.

All of it happens in the event loop. Other threads change what can be fetched, and tell with ``Turns.wake``.
"""

import asyncio

from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.consumer.fetching import Booked, Fetching
from tubemq_spark.client.consumer.turns import Seat, Turns
from tubemq_spark.client.consumer.values import Batch, Confirmed, parse_context


class FetchingCoroutines:
    """The coroutines that fetch and confirm with one consumer."""

    def __init__(self, home: HomeLoop, fetching: Fetching) -> None:
        self._home = home
        self._fetching = fetching
        self.turns = Turns(fetching, home)

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
        ended: asyncio.Future[Confirmed] = self._home.enter().create_future()

        def tell(outcome: Confirmed | BaseException | None) -> None:
            if ended.cancelled() or outcome is None:  # abandoned: the loop has ended
                return
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
            else:
                ended.set_result(outcome)

        steps = self._fetching.end_batch(context, consumed=consumed)
        self.turns.carry_out(steps, parse_context(context).partition, tell)
        return await ended

    async def _wait(self, loop: asyncio.AbstractEventLoop, at: float | None) -> Booked | BaseException | None:
        told: asyncio.Future[None] = loop.create_future()
        seat = Seat(lambda: _tell(told))
        timer = None if at is None else loop.call_at(at, self._give_up, seat, told)
        try:
            self.turns.join(seat)
            await told
        except asyncio.CancelledError:
            self.turns.take_back(self.turns.leave(seat))
            raise
        finally:
            outcome = self.turns.leave(seat)
            if timer is not None:
                timer.cancel()
        return outcome

    def _give_up(self, seat: Seat, told: "asyncio.Future[None]") -> None:
        if seat.outcome is None:
            self.turns.leave(seat)
            _tell(told)


def _tell(told: "asyncio.Future[None]") -> None:
    if not told.done():
        told.set_result(None)
