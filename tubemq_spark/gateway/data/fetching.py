"""The consumer of one session: fetched and committed in the gateway's event loop, by the engine of consumers.

Fetches wait in the line of that engine (``client/consumer/line.py``). So no thread waits for messages, and
none for a broker; and what was fetched for a client that has gone goes to the next fetch.

**Invariants.**

- A batch is *out* from when a fetch returns it until it is committed, taken back, or its time is over. A
  fetch returns it without any wait after that, so one that is cancelled has none.
- What became of the last ``_RESULTS`` batches is kept: a commit that is repeated is answered as the first
  one. One that failed, so that it may be tried again, is not kept.
- A partition that waits at its end is asked for by the first of those that wait for it (``Arrivals``).
- The tasks here commit, give partitions up, and see which have come or gone; ``close`` waits for all.
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeAlias

from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumeStatus, parse_context
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, DataLossError, TubeMQError
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.model import TopicPartition

Filter: TypeAlias = frozenset[str]


class Waiter(Protocol):
    """A consumer for which fetches wait."""

    @property
    def filter(self) -> Filter:
        """The message types that it reads; none: all."""

    def wake(self, partition: TopicPartition) -> None:
        """Ask for this partition at once, if it waits at its end."""


class Arrivals:
    """The consumers of a gateway that wait, by partition, so that one asks the broker for all.

    A broker answers at once that it has nothing, and never later that it has something. Of the consumers that
    wait at the end of one partition, of any group, only the *first* asks its broker again and again. When it,
    or a publisher of this gateway, has seen messages there, all of them are woken and ask once.

    A consumer that filters messages says nothing about those of others, so consumers wait beside those with
    equal filters. One that waits is not woken where the first one is held up by a rule of flow control, or
    reads another consumer's messages only; so each asks by itself too, seldom.

    Used in the event loop only.
    """

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, dict[Filter, dict[Waiter, None]]] = {}
        self._partitions: dict[Waiter, set[TopicPartition]] = {}

    def wait(self, waiter: Waiter, partition: TopicPartition) -> bool:
        """Note that a consumer waits for a partition; return whether it is the first."""
        line = self._waiting.setdefault(partition, {}).setdefault(waiter.filter, {})
        line[waiter] = None
        self._partitions.setdefault(waiter, set()).add(partition)
        return next(iter(line)) is waiter

    def leave(self, waiter: Waiter, partitions: Collection[TopicPartition] | None = None) -> None:
        """Forget that a consumer waits for partitions, by default for any.

        Where it was the first, the next one takes its place at once.
        """
        waits_for = self._partitions.get(waiter, set())
        for partition in sorted(waits_for if partitions is None else waits_for.intersection(partitions)):
            waits_for.discard(partition)
            self._remove(waiter, partition)
        if not waits_for:
            self._partitions.pop(waiter, None)

    def arrived(self, partitions: Iterable[TopicPartition], seen_by: Waiter | None = None) -> None:
        """Wake all that wait for partitions in which there are messages now."""
        for partition in partitions:
            for waiters in list(self._waiting.get(partition, {}).values()):
                for waiter in list(waiters):
                    if waiter is not seen_by:
                        waiter.wake(partition)

    def _remove(self, waiter: Waiter, partition: TopicPartition) -> None:
        by_filter = self._waiting[partition]
        waiters = by_filter[waiter.filter]
        was_first = next(iter(waiters)) is waiter
        del waiters[waiter]
        if waiters and was_first:
            next(iter(waiters)).wake(partition)
        if not waiters:
            del by_filter[waiter.filter]
        if not by_filter:
            del self._waiting[partition]


UNWOKEN_MS: Final = 2_000
"""How often a consumer asks that waits for another one to see messages first."""
_RESULTS: Final = 1_000


class SessionConsumer:
    """The consumer of a session, and what belongs to it; used in the event loop."""

    def __init__(
        self,
        session: Session,
        core: AssignedCore | GroupCore,
        arrivals: Arrivals,
        on_change: Callable[["SessionConsumer"], object],
    ) -> None:
        """Take over a consumer that is open.

        Args:
            session: whose consumer it is.
            core: the consumer; nothing else fetches with it.
            arrivals: the consumers that wait.
            on_change: called after partitions have come or gone.
        """
        self.session = session
        self.core = core
        self.out: dict[TopicPartition, str] = {}
        """The batch of each partition that the client may still commit."""
        self.attached: set[TopicPartition] = set()
        """The partitions that the client has attached, without those that it was told to have lost."""
        self.filter: Filter = frozenset().union(*core.state.subscription.message_types.values())
        self._arrivals = arrivals
        self._on_change = on_change
        self._closed = False
        self._tasks = OwnedTasks()
        self._results: collections.OrderedDict[tuple[str, bool], asyncio.Task[Confirmed]] = (
            collections.OrderedDict()
        )
        self._poll_ms = core.state.config.consumer.not_found_wait_ms
        core.fetching.as_columns = True
        core.fetching.rest_at_end = self._rest_at_end
        core.line.has_nothing = lambda: self.has_nothing
        self.changes = core.state.changes
        """Noted when a stream should look again what it may do."""
        self._tasks.start(self._watch(core.state.held()), f"partitions of {session.client_id}")

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to wait for, until the client attaches a partition."""
        return isinstance(self.core, AssignedCore) and not self.core.state.connected

    @property
    def closed(self) -> bool:
        """Whether the consumer has closed, or begun to."""
        return self._closed or self.core.state.life is not Life.OPEN

    @property
    def status(self) -> ConsumeStatus:
        """Whether messages can be had now."""
        return self.core.consume_status()

    # Messages.

    async def fetch(self, wait_s: float) -> Batch | None:
        """Return the next batch; None: there was none in time, or there is nothing to wait for.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        try:
            batch = await self.core.fetch(round(wait_s * 1000), patient=True)
        except ConsumeError:
            if self.closed:
                return None
            raise
        finally:
            if not self.core.line.waiting:
                self._arrivals.leave(self)
        if batch is not None:
            self.out[batch.partition] = batch.context
            self._arrivals.arrived([batch.partition], seen_by=self)
            self._arrivals.leave(self, [batch.partition])
        return batch

    async def commit(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch, or take it back; that is carried out also when its caller waits no more.

        Raises:
            TubeMQError: as ``Consumer.confirm``.
        """
        key = context, consumed
        ending = self._results.get(key)
        if ending is None:
            partition = parse_context(context).partition
            confirming = self._confirm(partition, context, consumed=consumed)
            ending = self._results[key] = self._tasks.start(confirming, f"commit of {context}")
            ending.add_done_callback(lambda ended: self._keep(key, ended))
        return await asyncio.shield(ending)

    async def _confirm(self, partition: TopicPartition, context: str, *, consumed: bool) -> Confirmed:
        try:
            return await self.core.confirm(context, consumed=consumed)
        finally:
            if self.out.get(partition) == context:
                del self.out[partition]

    def _keep(self, key: tuple[str, bool], ended: "asyncio.Task[Confirmed]") -> None:
        """Keep what became of a batch, unless it may be tried again."""
        failure = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or (failure is not None and not isinstance(failure, DataLossError)):
            self._results.pop(key, None)
        while len(self._results) > _RESULTS and next(iter(self._results.values())).done():
            self._results.popitem(last=False)

    async def take_back(self, contexts: list[str]) -> None:
        """Take batches back whose client does not go on; they come again."""
        for context in contexts:
            # Another call may have committed it, or its session may have ended.
            with contextlib.suppress(TubeMQError):
                await self.commit(context, consumed=False)

    # Partitions.

    def pause_only(self, partitions: list[TopicPartition]) -> None:
        """Pause these partitions, and no others.

        Raises:
            ConsumeError: the session has ended.
        """
        if set(partitions) != self.core.paused():
            self.core.resume()
            self.core.pause(partitions)

    async def detach(self, partition: TopicPartition) -> bool:
        """Give a partition up, and take its batch back; return whether it was attached.

        That is carried out also when its caller waits no more.

        Raises:
            TubeMQError: as ``AssignedConsumer.disconnect``.
        """
        if not isinstance(self.core, AssignedCore):
            return False
        self.attached.discard(partition)
        # First: what is taken back must not be handed out again.
        giving_up = self._tasks.start(self.core.disconnect(partition), f"giving {partition} up")
        if (context := self.out.get(partition)) is not None:
            await self.take_back([context])
        return await asyncio.shield(giving_up)

    def wake(self, partition: TopicPartition) -> None:
        """Ask for a partition at once, if it waits at its end."""
        if self.core.state.cache.hasten(partition):
            self.changes.note()

    def _rest_at_end(self, partition: TopicPartition) -> int:
        if not self.core.line.waiting or self._arrivals.wait(self, partition):
            return self._poll_ms
        return max(self._poll_ms, UNWOKEN_MS)

    async def _watch(self, before: tuple[TopicPartition, ...]) -> None:
        """Tell of partitions that have come or gone, until the consumer closes."""
        state = self.core.state
        while not self.closed:
            await self.changes.until(lambda: self.closed or state.held() != before)  # noqa: B023 (awaited here)
            gone, before = set(before).difference(state.held()), state.held()
            self._arrivals.leave(self, gone)
            self._on_change(self)

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, and make streams look again, for a gateway that drains."""
        self.core.line.release()
        self.changes.note()

    async def close(self) -> None:
        """Give everything up; for a session that has ended."""
        self._closed = True
        self.release()
        await self.core.close()
        await self._tasks.ended()
