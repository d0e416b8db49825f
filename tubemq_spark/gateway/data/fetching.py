"""The consumer of one session: fetched and committed in the gateway's event loop, by the engine of consumers.

A session that attaches partitions, or subscribes, has a consumer, which registers at the master and at the
brokers under the session's client id. So another gateway, where the client opens its session again, takes its
partitions over. Fetches wait in the line of the engine (``client/consumer/engine.py``): what was fetched for
a client that has gone goes to the next fetch.

**Invariants.**

- A batch is *uncommitted* from when a fetch returns it until it is committed or taken back. A fetch returns
  it without any wait after that, so one that is cancelled has none.
- What became of the last ``_RESULTS`` batches is kept: a commit that is repeated is answered as the first
  one. One that failed, so that it may be tried again, is not kept.
- A partition that waits at its end is asked for by the first of those that wait for it
  (``EndOfLogWaiters``).
- Commits are tasks of the engine, and end with it; those here take back and give partitions up. ``close``
  waits for all.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from typing import Final, Protocol, TypeAlias

from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumeStatus, parse_context
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, DataLossError, GatewayError, TubeMQError
from tubemq_spark.gateway.session.events import Events
from tubemq_spark.gateway.session.sessions import Session
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values

Filter: TypeAlias = frozenset[str]


class Waiter(Protocol):
    """A consumer for which fetches wait."""

    @property
    def filter(self) -> Filter:
        """The message types that it reads; none: all."""

    def wake(self, partition: TopicPartition) -> None:
        """Ask for this partition at once, if it waits at its end."""


class EndOfLogWaiters:
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
        waiters = self._waiting.setdefault(partition, {}).setdefault(waiter.filter, {})
        waiters[waiter] = None
        self._partitions.setdefault(waiter, set()).add(partition)
        return next(iter(waiters)) is waiter

    def leave(self, waiter: Waiter, partitions: Collection[TopicPartition] | None = None) -> None:
        """Forget that a consumer waits for partitions, by default for any.

        Where it was the first, the next one takes its place at once.
        """
        waits_for = self._partitions.get(waiter)
        if waits_for is None:
            return
        for partition in sorted(waits_for if partitions is None else waits_for.intersection(partitions)):
            waits_for.discard(partition)
            self._remove(waiter, partition)
        if not waits_for:
            del self._partitions[waiter]

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
    """The consumer of a session, and what its client has of it; used in the event loop."""

    opening: "asyncio.Task[None]"
    """Opens it; set by ``ConsumeService``."""

    def __init__(
        self,
        session: Session,
        core: AssignedCore | GroupCore,
        subscription: Subscription,
        subscribed: bytes | None,
        waiters: EndOfLogWaiters,
        events: Events,
    ) -> None:
        self.session = session
        self.core = core
        self.topics = frozenset(subscription.topics)
        self.filter: Filter = frozenset().union(*subscription.message_types.values())
        self.subscribed = subscribed
        """What a member of its group has asked for; None: the client attaches partitions."""
        self.uncommitted: dict[TopicPartition, str] = {}
        """The batch of each partition that the client may still commit."""
        self.changed = asyncio.Event()
        """Wakes the streams, which look again what they may do; never set for long (``note``)."""
        self._attached: set[TopicPartition] = set()
        """The partitions that the client has attached, without those that it was told to have lost."""
        self._waiters = waiters
        self._events = events
        self._partitions: frozenset[TopicPartition] = frozenset()
        """What it held when the client was told last."""
        self._tells_soon = self._closing = False
        self._tasks = OwnedTasks()
        self._results: dict[tuple[str, bool], asyncio.Task[Confirmed]] = {}
        self._poll_ms = session.access.config.consumer.not_found_wait_ms
        core.relay(self._rest_at_end, self._tell_soon)

    @property
    def is_open(self) -> bool:
        """Whether the consumer has opened, and not begun to close."""
        return self.core.is_open and not self._closing

    @property
    def status(self) -> ConsumeStatus:
        """Whether messages can be had now."""
        return self.core.consume_status()

    @property
    def positions(self) -> list[pb.PartitionOffset]:
        """The partitions that it holds, each with where it stands."""
        return [
            pb.PartitionOffset(partition=values.partition_to_proto(partition), offset=position.offset)
            for partition, position in sorted(self.core.positions().items())
        ]

    def note(self) -> None:
        """Make streams look again what they may do."""
        self.changed.set()
        self.changed.clear()

    # Messages.

    async def fetch(self, wait_s: float) -> Batch | None:
        """Return the next batch; None: there was none in time, or there is nothing to wait for."""
        try:
            batch = await self.core.fetch(round(wait_s * 1000), patient=True)
        except ConsumeError:
            if self.is_open:
                raise
            return None
        finally:
            if not self.core.waiting_fetches:
                self._waiters.leave(self)
        if batch is not None:
            self.uncommitted[batch.partition] = batch.context
            self._waiters.arrived([batch.partition], seen_by=self)
            self._waiters.leave(self, [batch.partition])
        return batch

    async def commit(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch, or take it back; that is carried out also when its caller waits no more."""
        key = context, consumed
        ending = self._results.get(key)
        if ending is None:
            partition = parse_context(context).partition
            ending = self._results[key] = self.core.begin_to_confirm(context, consumed=consumed)
            ending.add_done_callback(lambda ended: self._note_end(partition, key, ended))
        return await asyncio.shield(ending)

    def _note_end(
        self, partition: TopicPartition, key: tuple[str, bool], ended: "asyncio.Task[Confirmed]"
    ) -> None:
        """Keep what became of a batch, unless it may be tried again."""
        if self.uncommitted.get(partition) == key[0]:
            del self.uncommitted[partition]
        failure = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or (failure is not None and not isinstance(failure, DataLossError)):
            self._results.pop(key, None)
        while len(self._results) > _RESULTS and self._results[oldest := next(iter(self._results))].done():
            del self._results[oldest]

    def take_back(self, contexts: Iterable[str]) -> None:
        """Take batches back whose client does not go on; they come again. Returns at once."""
        if self.is_open:  # otherwise all of them are
            self._tasks.start(self._take_back(list(contexts)), f"taking back of {self.session.client_id}")

    async def _take_back(self, contexts: list[str]) -> None:
        for context in contexts:
            # Another call may have committed it, or its session may have ended.
            with contextlib.suppress(TubeMQError):
                await self.commit(context, consumed=False)

    def wake(self, partition: TopicPartition) -> None:
        """Ask for a partition at once, if it waits at its end."""
        self.core.look_soon(partition)

    def _rest_at_end(self, partition: TopicPartition) -> int:
        if not self.core.waiting_fetches or self._waiters.wait(self, partition):
            return self._poll_ms
        return max(self._poll_ms, UNWOKEN_MS)

    # Partitions.

    async def attach(self, partition: TopicPartition, offset: int | None) -> int:
        """Take a partition; return where it stands."""
        core = self._assigned()
        position = await core.carry_out(core.connect(partition, offset), f"attaching {partition}")
        self._attached.add(partition)
        self.session.attached.add(partition.topic)
        self.tell_partitions()  # it may be lost already
        return position.offset

    async def detach(self, partition: TopicPartition) -> bool:
        """Give a partition up, and take its batch back; return whether it was held.

        That is carried out also when its caller waits no more. The master plans a member's partition again.
        """
        core = self.core
        self._attached.discard(partition)
        # First: what is taken back must not be handed out again.
        ends = core.give_up(partition) if isinstance(core, GroupCore) else core.disconnect(partition)
        giving_up = self._tasks.start(ends, f"giving {partition} up")
        if (context := self.uncommitted.get(partition)) is not None:
            await self._take_back([context])
        given_up = await asyncio.shield(giving_up)
        if isinstance(core, AssignedCore) and all(other.topic != partition.topic for other in self._attached):
            self.session.attached.discard(partition.topic)
        return given_up

    def pause_only(self, partitions: Collection[TopicPartition]) -> None:
        """Pause these partitions, and no others."""
        if set(partitions) != self.core.paused():
            self.core.resume()
            self.core.pause(partitions)

    def tell_partitions(self) -> None:
        """Tell the client of partitions that have come or gone by themselves, and wake its streams."""
        self._tells_soon = False
        before, self._partitions = self._partitions, frozenset(self.core.positions())
        self._waiters.leave(self, before - self._partitions)
        self.note()
        if not self.is_open or self.session.ended:
            return
        if isinstance(self.core, GroupCore):
            self._events.partitions_changed(self.session, self.positions)
        elif lost := self._attached - self._partitions:
            self._attached -= lost
            status = self.core.status()
            for partition in sorted(lost):
                trouble = status[partition].trouble if partition in status else None
                self._events.partition_lost(self.session, partition, trouble)

    def _tell_soon(self) -> None:
        if not self._tells_soon:
            self._tells_soon = True
            asyncio.get_running_loop().call_soon(self.tell_partitions)

    def _assigned(self) -> AssignedCore:
        if not isinstance(self.core, AssignedCore):
            raise refusal("the session has subscribed: the master gives it partitions")
        return self.core

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, and make streams look again, for a gateway that drains."""
        self.core.release_fetches()
        self.note()

    async def close(self) -> None:
        """Give everything up; for a session that has ended."""
        self._closing = True
        self.release()
        await self.core.close()
        await self._tasks.ended()


def refusal(what: str) -> GatewayError:
    """Return the error of a call that does not fit what its session is."""
    return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)
