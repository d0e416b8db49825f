"""The consumer of one session: fetched and committed in the gateway's event loop, by the engine of consumers.

Fetches that wait are seats of that engine (``client/consumer/turns.py``), which is at home in the event loop
here, as for coroutines. So no thread waits for messages, and none for a broker; and what was fetched for a
client that has gone goes to the next fetch.

**Invariants.**

- A batch is *out* from when a fetch returns it until it is committed, taken back, or its time is over. A
  fetch returns it without any wait after that, so one that is cancelled has none.
- What became of the last ``_RESULTS`` batches is kept: a commit that is repeated is answered as the first
  one. One that failed, so that it may be tried again, is not kept.
- A partition that waits at its end is asked for by the first of those that wait for it (``Arrivals``).
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeAlias

from tubemq_spark.client.aio.home import Changes, HomeLoop
from tubemq_spark.client.aio.turns import FetchingCoroutines
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.group.consumer import GroupConsumer
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumeStatus, parse_context
from tubemq_spark.errors import ConsumeError, DataLossError, TubeMQError
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

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
_LOOK_S: Final = 0.02


class SessionConsumer:
    """The consumer of a session, and what belongs to it; used in the event loop."""

    def __init__(
        self,
        session: Session,
        consumer: AssignedConsumer | GroupConsumer,
        arrivals: Arrivals,
        on_change: Callable[["SessionConsumer"], object],
    ) -> None:
        """Take over a consumer that is open.

        Args:
            session: whose consumer it is.
            consumer: the consumer; nothing else fetches with it.
            arrivals: the consumers that wait.
            on_change: called in the event loop after partitions have come or gone.
        """
        self.session = session
        self.consumer = consumer
        self.out: dict[TopicPartition, str] = {}
        """The batch of each partition that the client may still commit."""
        self.attached: set[TopicPartition] = set()
        """The partitions that the client has attached, without those that it was told to have lost."""
        self.filter: Filter = frozenset().union(*consumer.subscription.message_types.values())
        self._arrivals = arrivals
        self._on_change = on_change
        self._closed = False
        self._looks = False
        """Whether a look at the partitions is arranged."""
        self._connected: tuple[TopicPartition, ...] = ()
        self._results: collections.OrderedDict[tuple[str, bool], asyncio.Future[Confirmed]] = (
            collections.OrderedDict()
        )
        self._home = home = HomeLoop(
            lambda: ConsumeError("TUBEMQ_CONSUMER_LOOP", code=int(ErrCode.BAD_REQUEST), group=session.group)
        )
        home.enter()
        fetching, self._state = consumer.fetching, consumer.fetching.state
        self._poll_ms = self._state.config.consumer.not_found_wait_ms
        fetching.as_columns = True
        fetching.rest_at_end = self._rest_at_end
        self._coroutines = FetchingCoroutines(home, fetching, patient=True)
        self.changes = Changes(home)
        """Noted when a stream should look again what it may do."""
        self._state.changed.listener = self._note
        self._look()

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to wait for, until the client attaches a partition."""
        return isinstance(self.consumer, AssignedConsumer) and not self._state.connected

    @property
    def status(self) -> ConsumeStatus:
        """Whether messages can be had now."""
        return self.consumer.consume_status

    # Messages.

    async def fetch(self, wait_s: float) -> Batch | None:
        """Return the next batch; None: there was none in time, or there is nothing to wait for.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        if self._closed or (self.has_nothing and self._coroutines.turns.at_rest):
            return None
        try:
            batch = await self._coroutines.fetch(wait_s)
        except ConsumeError:
            if self.consumer.closed:
                return None
            raise
        finally:
            if not self._coroutines.waiting:
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
            ending = self._results[key] = asyncio.ensure_future(confirming)
            ending.add_done_callback(lambda ended: self._keep(key, ended))
        return await asyncio.shield(ending)

    async def _confirm(self, partition: TopicPartition, context: str, *, consumed: bool) -> Confirmed:
        try:
            return await self._coroutines.confirm(context, consumed=consumed)
        finally:
            if self.out.get(partition) == context:
                del self.out[partition]

    def _keep(self, key: tuple[str, bool], ended: "asyncio.Future[Confirmed]") -> None:
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
        if set(partitions) != self.consumer.paused:
            self.consumer.resume()
            self.consumer.pause(partitions)

    async def detach(self, partition: TopicPartition) -> bool:
        """Give a partition up, and take its batch back; return whether it was attached.

        Raises:
            TubeMQError: as ``AssignedConsumer.disconnect``.
        """
        if not isinstance(self.consumer, AssignedConsumer):
            return False
        self.attached.discard(partition)
        # First: what is taken back must not be handed out again.
        giving_up = asyncio.wrap_future(self.consumer.begin_to_disconnect(partition))
        if (context := self.out.get(partition)) is not None:
            await self.take_back([context])
        return await asyncio.shield(giving_up)

    def wake(self, partition: TopicPartition) -> None:
        """Ask for a partition at once, if it waits at its end."""
        self._home.post(lambda: self._hasten(partition))

    def _hasten(self, partition: TopicPartition) -> None:
        with self._state.changed:
            if self._state.cache.hasten(partition):
                self._state.changed.notify_all()

    def _rest_at_end(self, partition: TopicPartition) -> int:
        if not self._coroutines.waiting or self._arrivals.wait(self, partition):
            return self._poll_ms
        return max(self._poll_ms, UNWOKEN_MS)

    def _note(self) -> None:
        """Look again; any thread may call this, with the consumer's lock."""
        self._coroutines.turns.wake()
        self.changes.note()
        if not self._looks:
            self._looks = True
            self._home.post(self._look)

    def _look(self) -> None:
        """See which partitions have come or gone."""
        self._looks = False
        before, self._connected = self._connected, self._state.held()
        if self._connected != before:
            self._arrivals.leave(self, set(before).difference(self._connected))
            self._on_change(self)
        if self.has_nothing and self._coroutines.waiting:
            self._release_when_told()

    def _release_when_told(self) -> None:
        """Answer all that wait for nothing, once what was given up for an error has told that."""
        if not self.has_nothing:
            return
        if self._coroutines.turns.at_rest:
            self._coroutines.release()
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._release_when_told)

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, and make streams look again, for a gateway that drains."""
        self._coroutines.release()
        self.changes.note()

    async def close(self) -> None:
        """Give everything up; for a session that has ended."""
        self._closed = True
        ending = self.consumer.begin_to_close()
        self.release()
        await asyncio.shield(asyncio.wrap_future(ending))
