"""The engine of consumers at brokers: what each partition is doing, who waits for batches, who fetches.

The partitions, and what each is doing, stand in ``state`` and its cache. ``FetchLine`` has those that wait
for batches and the fetches that are made for them, ``fetching`` has the rules of a fetch, a confirmation and
a move. How partitions come and go is a subclass's: the master gives them, or the user names them.

A fetch of a partition is made for all that wait, and for none in particular: what it brings goes to the one
that has waited longest. So each may stop waiting at any time, and nothing is lost.

=========  ==================================================================================================
what       where
=========  ==================================================================================================
*waiter*   a coroutine that waits for a batch: in ``_waiting``, in their order
*fetch*    a task that asks a broker for messages of a partition: in ``_fetches``, with the time when it began
*outcome*  a batch, or the error of a partition that was given up, that none has taken: ``_outcomes``
=========  ==================================================================================================

Invariants:

- Nothing waits in ``_outcomes`` while a waiter has no outcome.
- A waiter without outcome has a fetch of its own under way, if any partition can be fetched. A fetch that
  takes longer than ``PATIENCE_S`` does not count any more, nor does one that tries a broker that was away.
- Without a waiter no fetch begins. So there is at most one batch of a partition that none waited for, and its
  partition is booked until one takes it.
- A batch is *handed out* (``Fetching.hand_out``) only when it is really taken: from then on its time to be
  confirmed runs.
- A booking whose partition is being fetched belongs to a fetch, an outcome or a waiter.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.consumer.cache import PATIENCE_S
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.consumer.fetching import Fetching, FetchPlan, ReadyBatch
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, parse_context
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge

Outcome = ReadyBatch | BaseException
_NEVER: Final = float("inf")
_A_TRIAL: Final = -_NEVER
"""When a fetch has begun for which none waits."""


class _Waiter:
    """A coroutine that waits for a batch."""

    def __init__(self, fetches_before: int) -> None:
        self.outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self.fetches_before = fetches_before
        """How many fetches had ended when it came."""
        self.is_overdue = False
        """Whether its time is over, and it only waits for partitions that it has not seen."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the wait."""


class FetchLine:
    """The waiters and the fetches of one consumer."""

    def __init__(self, fetching: Fetching, tasks: OwnedTasks) -> None:
        self._fetching = fetching
        self._state = fetching.state
        self._tasks = tasks
        self._waiting: dict[_Waiter, None] = {}
        self._fetches: dict[asyncio.Task[ReadyBatch | None], tuple[FetchPlan, float]] = {}
        self._outcomes: collections.deque[Outcome] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_soon = False
        self._ended = 0
        """How many fetches have ended."""
        self.has_nothing: Callable[[], bool] = lambda: False
        """Returns whether there is nothing to wait for: then waits end as soon as the line is at rest."""
        self._state.abandon = self.abandon
        self._state.tell = self._take_back
        self._state.changes.listener = self.look_soon

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def at_rest(self) -> bool:
        """Whether no partition is being fetched, and no outcome waits to be taken."""
        return not self._fetches and not self._outcomes

    async def fetch(self, timeout_s: float | None, *, patient: bool) -> Batch | None:
        """Wait for a batch and hand it out; None: there was none in time."""
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while True:
            outcome = await self._wait(until, patient=patient)
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None or (batch := self._fetching.hand_out(outcome)) is not None:
                return None if outcome is None else batch

    def release(self) -> None:
        """End the wait of all for whom there is nothing."""
        for waiter in list(self._waiting):
            self._settle(waiter, None)

    def abandon(self, partition: TopicPartition) -> None:
        """Cancel a fetch of a partition that is under way; its messages come again, to others."""
        for task, (plan, _) in self._fetches.items():
            if plan.booking.partition == partition:
                task.cancel()

    def look_soon(self) -> None:
        """See soon what can be fetched, if anyone waits."""
        if self._waiting and not self._looks_soon:
            self._looks_soon = True
            asyncio.get_running_loop().call_soon(self._look)

    async def _wait(self, until: float | None, *, patient: bool) -> Outcome | None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(self._ended)
        self._waiting[waiter] = None
        if until is not None:
            if patient:
                waiter.timer = loop.call_at(until, self._end_in_time, waiter, until + PATIENCE_S)
            else:
                waiter.timer = loop.call_at(until, self._settle_without, waiter)
        try:
            self._look()
            return await waiter.outcome
        except asyncio.CancelledError:
            outcome = waiter.outcome
            if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
                self._take_back(outcome.result())
            raise
        finally:
            self._waiting.pop(waiter, None)
            if waiter.timer is not None:
                waiter.timer.cancel()

    def _end_in_time(self, waiter: _Waiter, latest: float) -> None:
        """End the wait of one whose time is over, as soon as it has seen all partitions."""
        waiter.is_overdue = True
        waiter.timer = asyncio.get_running_loop().call_at(latest, self._settle_without, waiter)
        self._look()

    def _expects_more(self, waiter: _Waiter) -> bool:
        """Whether a fetch may soon bring something, and not each partition had one since the waiter came."""
        has_seen_all = self._ended - waiter.fetches_before >= len(self._state.connected)
        return not has_seen_all and bool(self._fresh(asyncio.get_running_loop().time()))

    def _take_back(self, outcome: Outcome | None) -> None:
        """Keep for others what is for no waiter, or was for one that waits no more."""
        if isinstance(outcome, ReadyBatch | TubeMQError):
            self._outcomes.appendleft(outcome)
            self.look_soon()

    def _look(self) -> None:
        """Give outcomes to those that wait, and begin fetches for the others."""
        self._looks_soon = False
        try:
            self._state.check_fetch()
            self._give()
            self._begin_fetches()
        except TubeMQError as error:
            # It was closed, or the master refuses it, for a while perhaps: what was not handed out comes
            # again, then or to others.
            while self._outcomes:
                if isinstance(outcome := self._outcomes.popleft(), ReadyBatch):
                    self._fetching.put_back(outcome.booking)
            for waiter in list(self._waiting):
                self._refuse(waiter, error)
        for waiter in list(self._waiting):
            if waiter.is_overdue and not self._expects_more(waiter):
                self._settle(waiter, None)
        if self._waiting and self.at_rest and self.has_nothing():
            self.release()
        self._set_timer()

    def _give(self) -> None:
        for waiter in list(self._waiting):
            if not self._outcomes:
                return
            self._settle(waiter, self._outcomes.popleft())

    def _settle(self, waiter: _Waiter, outcome: Outcome | None) -> None:
        self._waiting.pop(waiter, None)
        if not waiter.outcome.done():
            waiter.outcome.set_result(outcome)
        else:
            self._take_back(outcome)

    def _refuse(self, waiter: _Waiter, error: TubeMQError) -> None:
        """Make a waiter raise an error that is nothing to keep for others."""
        self._waiting.pop(waiter, None)
        if not waiter.outcome.done():
            waiter.outcome.set_exception(error)

    def _settle_without(self, waiter: _Waiter) -> None:
        self._settle(waiter, None)

    def _begin_fetches(self) -> None:
        now = asyncio.get_running_loop().time()
        missing = len(self._waiting) - len(self._fresh(now))
        while missing > 0 and (plan := self._fetching.select_now()) is not None:
            task = self._tasks.start(self._fetching.fetch(plan), f"fetch of {plan.booking.partition}")
            is_trial = self._state.cache.is_trial(plan.booking)
            # Behind what ``BrokerHealth`` notes: a fetch that is not fresh is at a broker that is silent.
            self._fetches[task] = plan, _A_TRIAL if is_trial else asyncio.get_running_loop().time()
            task.add_done_callback(self._end_fetch)
            missing -= not is_trial

    def _end_fetch(self, task: "asyncio.Task[ReadyBatch | None]") -> None:
        plan, _ = self._fetches.pop(task)
        self._ended += 1
        if task.cancelled():
            self._fetching.put_back(plan.booking)
        else:
            outcome = task.exception() or task.result()
            if outcome is not None:
                self._outcomes.append(outcome)
        self._look()

    def _fresh(self, now: float) -> list[float]:
        """Return until when each of the fetches counts that do so now."""
        moments = [began + PATIENCE_S for _, began in self._fetches.values()]
        return [until for until in moments if until > now]

    def _set_timer(self) -> None:
        """Look again when a rest ends, or when patience with a broker is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        fresh = self._fresh(now)
        waits = [until - now for until in fresh if until < _NEVER]
        # A rest may be over that only a waiter without a fetch of its own ends.
        if len(self._waiting) > len(fresh) and (rest := self._fetching.wait_s()) is not None:
            waits.append(rest)
        if waits:
            self._timer = loop.call_later(min(waits), self._look)


class EngineCore(ConsumerCore):
    """A consumer that asks brokers itself."""

    state: ConsumerState

    def __init__(self, setup: ConsumerSetup, questions: Questions) -> None:
        """Reach no server; may be called in any thread."""
        self.control = FlowControl()
        state = ConsumerState(setup.config, setup.subscription, self.control)
        super().__init__(setup, questions, state, state.cache)
        self.fetching = Fetching(self.state)
        self.line = FetchLine(self.fetching, self.tasks)

    async def _leave(self) -> None:
        await self.tasks.cancel()
        await self.state.releases.ended()
        await super()._leave()

    async def _fetch(self, timeout_s: float | None, *, patient: bool) -> Batch | None:
        return await self.line.fetch(timeout_s, patient=patient)

    def is_out(self, batch: Batch) -> bool:
        """Return whether a batch that was handed out may still be confirmed."""
        return self.state.cache.is_current(parse_context(batch.context))

    def put_back(self, batch: Batch) -> None:
        """Take a batch back that did not reach its user; it comes again."""
        self.fetching.take_back(batch)

    async def _confirm(self, context: str, *, consumed: bool) -> Confirmed:
        return await self.fetching.end_batch(context, consumed=consumed)

    async def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        return await self.fetching.seek(partition, target)

    # For gateways, which pass on what they fetch, and use nothing else of an engine.

    def relay(
        self, rest_at_end: Callable[[TopicPartition], int], on_partitions: Callable[[], object]
    ) -> None:
        """Fetch for others from now on: batches have columns, and fetches end when there is nothing to fetch.

        ``rest_at_end`` returns how many ms a partition rests in which nothing was found. ``on_partitions`` is
        called when a partition has come or gone, and must return at once.
        """
        self.fetching.as_columns, self.fetching.rest_at_end = True, rest_at_end
        self.line.has_nothing = lambda: self.has_nothing
        self.state.on_partitions = on_partitions

    def begin_to_confirm(self, context: str, *, consumed: bool) -> "asyncio.Task[Confirmed]":
        """Confirm a batch or roll it back in a task of the consumer, which is cancelled when that closes."""
        self.state.check_open()
        confirming = self.fetching.end_batch(context, consumed=consumed)
        return self.tasks.start(confirming, f"confirming {context}")

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to fetch until the user connects a partition."""
        return False

    def look_soon(self, partition: TopicPartition) -> None:
        """Fetch a partition soon, if it rests at its end."""
        if self.state.cache.hasten(partition):
            self.state.changes.note()
