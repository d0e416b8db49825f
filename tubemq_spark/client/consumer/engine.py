"""The engine of consumers at brokers: what each partition is doing, and who fetches for those who wait.

The partitions, and what each is doing, stand in ``state`` and its cache. ``FetchLine`` has those that wait
for batches (``waiting``) and the fetches that are made for them, ``fetching`` has the rules of a fetch, a
confirmation and a move. How partitions come and go is a subclass's: the master gives them, or the user names
them.

=========  ==================================================================================================
what       where
=========  ==================================================================================================
*waiter*   a coroutine that waits for a batch: in ``_waiting``, in their order
*fetch*    a task that asks a broker for messages of a partition: in ``_fetches``, with the time when it began
*outcome*  a batch that none has taken, in ``_batches``; or the error of a partition that was given up
=========  ==================================================================================================

Invariants:

- A waiter for whom there is no outcome has a fetch of its own under way, if any partition can be fetched. A
  fetch that takes longer than ``PATIENCE_S`` does not count any more, nor does one that tries a broker that
  was away.
- Without a waiter no fetch begins. So there is at most one batch of a partition that none waited for, and its
  partition is booked until one takes it.
- A batch is *handed out* (``Fetching.hand_out``) only when it is really taken: from then on its time to be
  confirmed runs.
- A booking whose partition is being fetched belongs to a fetch or an outcome.
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
from tubemq_spark.client.consumer.waiting import WaitingLine
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge

_NEVER: Final = float("inf")
_A_TRIAL: Final = -_NEVER
"""When a fetch has begun for which none waits."""


class FetchLine(WaitingLine):
    """The waiters and the fetches of one consumer."""

    def __init__(self, fetching: Fetching, tasks: OwnedTasks) -> None:
        super().__init__(fetching.state)
        self._fetching = fetching
        self._state = fetching.state
        self._tasks = tasks
        self._fetches: dict[asyncio.Task[ReadyBatch | None], tuple[FetchPlan, float]] = {}
        self._batches: collections.deque[ReadyBatch] = collections.deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        """The loop of those that wait, known from the first one on."""
        self._looks_soon = False
        self.has_nothing: Callable[[], bool] = lambda: False
        """Returns whether there is nothing to wait for: then waits end as soon as no fetch is under way."""
        self._state.abandon = self.abandon
        self._state.changes.listener = self.look_soon

    def abandon(self, partition: TopicPartition) -> None:
        """Cancel a fetch of a partition that is under way; its messages come again, to others."""
        for task, (plan, _) in self._fetches.items():
            if plan.booking.partition == partition:
                task.cancel()

    def look_soon(self) -> None:
        """See soon what can be fetched, if anyone waits, and whether what was fetched may be handed out."""
        if (self._waiting or self._batches) and not self._looks_soon:
            self._looks_soon = True
            self._loop.call_soon(self._look)  # also between two runs of the loop

    def _look(self) -> None:
        """Begin the fetches that are due; when that is refused, put back the batches that wait."""
        self._looks_soon = False
        try:
            self._check_fetch()
            self._begin_fetches()
        except TubeMQError:
            # It was closed, or the master refuses it, for a while perhaps: who waits raises that. What was
            # not handed out comes again, then or to others.
            while self._batches:
                self._fetching.put_back(self._batches.popleft().booking)

    @property
    def _outcomes(self) -> int:
        return len(self._errors) + len(self._batches)

    def _hand_out(self) -> Batch | None:
        return self._fetching.hand_out(self._batches.popleft())

    def _comes_soon(self, ended: int) -> bool:
        has_seen_all = self._ended - ended >= len(self._state.connected)
        return not has_seen_all and bool(self._fresh(asyncio.get_running_loop().time()))

    def _begin_fetches(self) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        missing = len(self._waiting) - self._outcomes - len(self._fresh(now))
        while missing > 0 and (plan := self._fetching.select_now()) is not None:
            task = self._tasks.start(self._fetching.fetch(plan), f"fetch of {plan.booking.partition}")
            is_trial = self._state.cache.brokers.is_away(plan.booking.partition.broker_id)
            # Behind what ``BrokerHealth`` notes: a fetch that is not fresh is at a broker that is silent.
            self._fetches[task] = plan, _A_TRIAL if is_trial else asyncio.get_running_loop().time()
            task.add_done_callback(self._end_fetch)
            missing -= not is_trial
        if len(self._waiting) > self._outcomes and not self._fetches and self.has_nothing():
            self.release()
        self._set_timer()

    def _end_fetch(self, task: "asyncio.Task[ReadyBatch | None]") -> None:
        plan, _ = self._fetches.pop(task)
        self._ended += 1
        if task.cancelled():
            self._fetching.put_back(plan.booking)
        elif (error := task.exception()) is not None:
            self._errors.append(error)
        elif (batch := task.result()) is not None:
            self._batches.append(batch)
        self._changes.note()

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
        if len(self._waiting) > len(fresh) and (rest := self._state.cache.wait_s()) is not None:
            waits.append(rest)
        if waits:
            self._timer = loop.call_later(min(waits), self._changes.note)


class EngineCore(ConsumerCore):
    """A consumer that asks brokers itself."""

    state: ConsumerState
    line: FetchLine

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

    def is_out(self, batch: Batch) -> bool:
        """Return whether a batch that was handed out may still be confirmed."""
        return self.state.cache.is_current(parse_context(batch.context))

    def put_back(self, batch: Batch) -> None:
        """Take a batch back that did not reach its user; it comes again."""
        if self.is_out(batch):
            self.fetching.put_back(parse_context(batch.context))

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
