"""The fetches of one session, which wait for the messages of its consumer.

All of them are served by one task, in the order in which they came, so a hundred fetches of one session ask
brokers no more often than one. The task uses a thread only while brokers are asked.

**States of a fetch.**

- *parked*: in ``_parked``;
- *answered*: with a batch, with None when its time is over or there is nothing to wait for, or with an error;
- *left*: its client has gone. A batch that it was given at that moment is rolled back, and so comes again.

**Invariants.** The task runs as long as a fetch is parked. Each fetch was there for at least one look at the
partitions before it is answered with None, unless the gateway drains. A batch is given to one fetch or rolled
back.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.values import Batch, ConsumeStatus
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.admission import Turns
from tubemq_spark.gateway.handlers.arrivals import Arrivals, Filter
from tubemq_spark.model import TopicPartition

_SHORTEST_PAUSE_S: Final = 0.01
UNWOKEN_S: Final = 2.0
"""How often a consumer asks that waits for another one to see messages first."""


class _Fetch:
    """One fetch that is parked."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Batch | None] = asyncio.get_running_loop().create_future()
        self.looked = False
        """Whether there was a look at the partitions since it came."""
        self.over = False
        """Whether its time is over."""


class Parking:
    """The fetches of one session; used in the event loop."""

    def __init__(self, consumer: AssignedConsumer, workers: Turns, arrivals: Arrivals) -> None:
        self.consumer = consumer
        self._workers = workers
        self._arrivals = arrivals
        self._parked: dict[_Fetch, None] = {}
        self._serving: asyncio.Task[None] | None = None
        self._rolling_back: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._arrived: set[TopicPartition] = set()
        """Where there may be messages that were not looked for yet."""
        self._closed = False
        types = consumer.subscription.message_types.values()
        self.filter: Filter = frozenset().union(*types)

    def __len__(self) -> int:
        """How many fetches are parked."""
        return len(self._parked)

    async def fetch(self, wait_s: float) -> Batch | None:
        """Return the next batch; None: there was none in time.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        if self._closed:
            return None
        fetch = _Fetch()
        self._parked[fetch] = None
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        else:
            # A look that is under way does not count for it.
            self._news.set()
        timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._end_wait, fetch)
        try:
            return await fetch.answer
        except asyncio.CancelledError:
            if fetch.answer.done() and not fetch.answer.cancelled() and not fetch.answer.exception():
                self._put_back(fetch.answer.result())
            raise
        finally:
            timer.cancel()
            self._parked.pop(fetch, None)

    def wake(self, partition: TopicPartition | None = None) -> None:
        """Look again, at this partition too if it waits at its end."""
        if partition is not None:
            self._arrived.add(partition)
        self._news.set()

    def release(self) -> None:
        """Answer all that are parked with None, now."""
        for fetch in list(self._parked):
            self._answer(fetch, None)

    async def close(self) -> None:
        """Answer all, and end; for a session that has ended."""
        self._closed = True
        self.release()
        self._news.set()
        if self._serving is not None:
            await asyncio.wait({self._serving})
        if self._rolling_back:
            await asyncio.wait(self._rolling_back)

    async def _serve(self) -> None:
        try:
            while self._parked:
                present = list(self._parked)
                self._news.clear()
                if await self._look(present):
                    continue
                if self._parked:
                    self._arrivals.wait(self, self.consumer.at_rest)
                    await self._pause()
        finally:
            self._arrivals.leave(self)

    async def _look(self, present: list[_Fetch]) -> bool:
        """Look once whether there are messages; return whether another look makes sense at once."""
        for partition in self._arrived:
            self.consumer.hasten(partition)
        self._arrived.clear()
        try:
            batch = await self._workers.run(lambda: self.consumer.fetch(0))
        except TubeMQError as error:
            # Of one partition, as a rule: who has waited longest is told.
            for fetch in present[:1]:
                self._fail(fetch, error)
            return True
        except Exception as error:  # noqa: BLE001 (a mistake of ours: the call says so)
            for fetch in present:
                self._fail(fetch, error)
            return True
        if batch is not None:
            self._arrivals.arrived([batch.partition], seen_by=self)
            self._hand_out(batch)
            return True
        nothing = self.consumer.consume_status is ConsumeStatus.NOTHING_ASSIGNED
        for fetch in present:
            fetch.looked = True
            if fetch.over or nothing:
                self._answer(fetch, None)
        return False

    async def _pause(self) -> None:
        """Wait for news; who is the first at a partition, no longer than until it may be asked again."""
        pause = UNWOKEN_S
        if self._arrivals.is_first(self) and (rest := self.consumer.wait_s()) is not None:
            pause = min(pause, max(rest, _SHORTEST_PAUSE_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._news.wait()

    def _hand_out(self, batch: Batch) -> None:
        for fetch in self._parked:
            self._answer(fetch, batch)
            return
        self._put_back(batch)

    def _answer(self, fetch: _Fetch, batch: Batch | None) -> None:
        self._parked.pop(fetch, None)
        if not fetch.answer.done():
            fetch.answer.set_result(batch)

    def _fail(self, fetch: _Fetch, error: Exception) -> None:
        self._parked.pop(fetch, None)
        if not fetch.answer.done():
            fetch.answer.set_exception(error)

    def _end_wait(self, fetch: _Fetch) -> None:
        fetch.over = True
        if fetch.looked:
            self._answer(fetch, None)

    def _put_back(self, batch: Batch | None) -> None:
        if batch is not None:
            self._begin(self._roll_back(batch))

    async def _roll_back(self, batch: Batch) -> None:
        # It comes again after a while too, when its time to be confirmed is over.
        with contextlib.suppress(TubeMQError):
            await self._workers.run(lambda: self.consumer.confirm(batch, consumed=False))
        self.wake()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._rolling_back.add(task)
        task.add_done_callback(self._rolling_back.discard)
