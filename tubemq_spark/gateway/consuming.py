"""Consumers of sessions: partitions that a client names, or that the master gives to it as a member.

A session that attaches partitions, or subscribes, has a consumer, which registers at the master and at the
brokers under the session's client id. So another gateway, where the client opens its session again, takes its
partitions over. It is fetched and committed in the gateway's event loop, by the engine of consumers; what was
fetched for a client that has gone goes to the next fetch.

**States of a session's consumer.**

- *none*: until the session attaches or subscribes for the first time, or when that has failed;
- *opening*: in ``_consumers``; its ``opening`` is carried out to its end also when the call is cut. It waits
  for an older consumer of the same client id, since servers know both by one name;
- *open*: in ``_consumers``; its heartbeats go on without the client, as long as the session lives;
- *closing*: in ``_ending``, by its client id; the session has ended, or the gateway stops. One that opens
  does so first. Its partitions are given up at the brokers, which may take a while. That needs no place, so
  it is never refused;
- *closed*: the partitions are free, and the group's members are told so. What was not committed comes again,
  to the session that reads them next.

``Fetch`` (with a wait) and ``Consume`` (with credit, ``consume_stream``) are two faces of one engine. A fetch
is answered once: with messages, or empty after its wait, when nothing is attached, or when the gateway
drains.

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
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.values import Batch, ColumnBatch, Confirmed, ConsumeStatus, parse_context
from tubemq_spark.client.consumer_config import BoundStart, Node, Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, DataLossError, TubeMQError
from tubemq_spark.gateway.admission import busy
from tubemq_spark.gateway.calls import Calls, ServedCall, refusal
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.sessions import Events, Session, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Upstream
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
from tubemq_spark.protocol.gateway import batches, failures, gateway_pb2 as pb, values

Filter: TypeAlias = frozenset[str]


class Waiter(Protocol):
    """A consumer for which fetches wait."""

    filter: Filter
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
_SUBSCRIBED: Final = "the session has subscribed: the master gives it partitions"


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
        return self.core.state.life is Life.OPEN and not self._closing

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
            if not self.core.line.waiting:
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
        if not self.core.line.waiting or self._waiters.wait(self, partition):
            return self._poll_ms
        return max(self._poll_ms, UNWOKEN_MS)

    # Partitions.

    async def attach(self, partition: TopicPartition, offset: int | None) -> int:
        """Take a partition; return where it stands."""
        core = self.assigned()
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

    def assigned(self) -> AssignedCore:
        """Return the core of a client that attaches partitions, and is no member of its group."""
        if not isinstance(self.core, AssignedCore):
            raise refusal(_SUBSCRIBED)
        return self.core

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

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, and make streams look again, for a gateway that drains."""
        self.core.line.release()
        self.note()

    async def close(self) -> None:
        """Give everything up; for a session that has ended."""
        self._closing = True
        self.release()
        await self.core.close()
        await self._tasks.ended()


logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 20.0
_LONGEST_CLOSE_S: Final = 2.0
_RESERVE_S: Final = 0.3
"""How much earlier than its client's deadline a call that waits is answered."""
_SHORTLY_MS: Final = 500
"""When to try again after too many fetches waited."""
_REASONS: Final[Mapping[ConsumeStatus, pb.FetchResponse.Reason]] = {
    ConsumeStatus.READY: pb.FetchResponse.REASON_READY,
    ConsumeStatus.NOTHING_ASSIGNED: pb.FetchResponse.REASON_NOTHING_ATTACHED,
    ConsumeStatus.ALL_PAUSED: pb.FetchResponse.REASON_PAUSED,
    ConsumeStatus.ALL_RESTING: pb.FetchResponse.REASON_AT_ENDS,
    ConsumeStatus.ALL_IN_USE: pb.FetchResponse.REASON_UNCOMMITTED,
}


class ConsumeService:
    """Serves ``Subscribe``, ``Attach-`` and ``DetachPartitions``, ``Fetch``, ``Commit`` and ``Consume``."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        metrics: Metrics,
        calls: Calls,
        events: Events,
        waiters: EndOfLogWaiters,
        admit: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._gateway = settings.name
        self.places = FairQuota(settings.fetches)
        """Of fetches that wait for messages."""
        self._upstream = upstream
        self._metrics = metrics
        self._calls = calls
        self._events = events
        self._waiters = waiters
        self._admit = admit
        self._consumers: dict[Session, SessionConsumer] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        """The last one of each client id; it waits for those before it."""
        self._tasks = OwnedTasks()
        sessions.on_end.append(self._end)

    def __len__(self) -> int:
        """How many consumers are open."""
        return sum(consumer.is_open for consumer in self._consumers.values())

    @property
    def endings(self) -> int:
        """How many consumers are closing."""
        return len(self._ending)

    # Partitions.

    async def subscribe(self, request: pb.SubscribeRequest, call: ServedCall) -> pb.SubscribeResponse:
        """Make a session a member of its group."""
        session, subscribing = call.owner(), request.SerializeToString(deterministic=True)
        consumer = self._consumers.get(session) or self._begin(session, request.topics, request, subscribing)
        if consumer.subscribed != subscribing:
            raise refusal("the session has attached partitions, or subscribed otherwise")
        await asyncio.shield(consumer.opening)
        session.attached.update(consumer.topics)
        return pb.SubscribeResponse(partitions=consumer.positions)

    async def attach_partitions(
        self, request: pb.AttachPartitionsRequest, call: ServedCall
    ) -> pb.AttachPartitionsResponse:
        """Take partitions for a session; say of each where it stands or why it was not taken."""
        session, topics = call.owner(), {place.partition.topic for place in request.partitions}
        topics = set(request.topics) or topics
        consumer = self._consumers.get(session) or self._begin(session, sorted(topics), request, None)
        if consumer.subscribed is not None:
            raise refusal(_SUBSCRIBED)
        await asyncio.shield(consumer.opening)
        if missing := topics - consumer.topics:
            raise refusal(f"the session reads other topics than {', '.join(sorted(missing))}")
        response = pb.AttachPartitionsResponse()
        for place in request.partitions:
            answer = response.partitions.add()
            with error_in(answer.error):
                answer.offset = await attach_at(consumer, place)
        return response

    async def detach_partitions(
        self, request: pb.DetachPartitionsRequest, call: ServedCall
    ) -> pb.DetachPartitionsResponse:
        """Give partitions up."""
        detach = self.consumer_of(call.owner()).detach
        given_up = [each for each in request.partitions if await detach(values.partition_from_proto(each))]
        return pb.DetachPartitionsResponse(partitions=given_up)

    # Messages.

    async def fetch(self, request: pb.FetchRequest, call: ServedCall) -> pb.FetchResponse:
        """Return messages as soon as there are some."""
        consumer = self.consumer_of(call.owner())
        for context in request.commit:
            await consumer.commit(context, consumed=True)
        consumer.pause_only(list(map(values.partition_from_proto, request.paused)))
        with self.place(call.who):
            # A call may have come before the gateway began to drain, and its message only after that.
            wait_s = 0.0 if self._calls.draining else min(request.wait_ms / 1000, _LONGEST_WAIT_S)
            batch = await consumer.fetch(_in_time(wait_s, call))
        if batch is not None:
            return self.response(batch, call)
        return pb.FetchResponse(
            reason=_REASONS[consumer.core.consume_status()], draining=self._calls.draining
        )

    async def commit(self, request: pb.CommitRequest, call: ServedCall) -> pb.CommitResponse:
        """Confirm a batch, or take it back."""
        return await commit_batch(self.consumer_of(call.owner()), request)

    def consumer_of(self, session: Session) -> SessionConsumer:
        """Return the consumer of a session, which has to have one."""
        consumer = self._consumers.get(session)
        if consumer is None or not consumer.is_open:
            raise refusal("the session has attached no partition, and has not subscribed")
        return consumer

    @contextlib.contextmanager
    def place(self, who: Owner) -> Iterator[None]:
        """Take one of the places of fetches that wait."""
        if not self.places.take(who):
            raise busy(self._gateway, f"{self.places.used} fetches wait already", _SHORTLY_MS)
        try:
            yield
        finally:
            self.places.give(who)

    def response(self, batch: Batch, call: ServedCall) -> pb.FetchResponse:
        """Return a batch as a message, and count it."""
        fetched = pb.FetchResponse(
            reason=pb.FetchResponse.REASON_READY,
            partition=values.partition_to_proto(batch.partition),
            latest=batch.latest,
            batch=batch.context,
            draining=self._calls.draining,
            lag=batch.lag,
            slow=batch.slow,
        )
        data = b""
        if isinstance(batch, ColumnBatch):
            records, data = batches.to_proto(batch.columns)
            fetched.records.CopyFrom(records)
            fetched.records.data = data  # large: copied once
        if batch.bytes_behind is not None:
            self._metrics.behind(batch.bytes_behind)
        call.rows += len(batch)
        self._metrics.passed("read", len(batch), len(data))
        return fetched

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, for a gateway that drains."""
        for consumer in self._consumers.values():
            consumer.release()

    async def close(self) -> None:
        """Close all consumers, for the end of the gateway."""
        for session in list(self._consumers):
            self._end(session)
        await self._tasks.ended()

    async def closed(self, session: Session, call: ServedCall) -> None:
        """Wait until the partitions of a session that has ended are free.

        A broker that does not answer is waited for no longer than ``_LONGEST_CLOSE_S``.
        """
        if (ending := self._ending.get(session.client_id)) is not None:
            await asyncio.wait({ending}, timeout=_in_time(_LONGEST_CLOSE_S, call))

    def _begin(
        self,
        session: Session,
        topics: Iterable[str],
        request: pb.SubscribeRequest | pb.AttachPartitionsRequest,
        subscribed: bytes | None,
    ) -> SessionConsumer:
        """Return the new consumer of a session, which opens."""
        access, name, types = session.access, session.client_id, session.access.config.message_types
        by_topic = {topic: types for topic in topics if types}
        by_topic |= {item.topic: tuple(item.message_types) for item in request.filters}
        on_loss = self._loss_policy(session, accept=request.accept_losses)
        core: AssignedCore | GroupCore
        if isinstance(request, pb.SubscribeRequest):
            subscription = Subscription.of(topics, by_topic, _start_of(request))
            core = self._upstream.member(access, subscription, name, on_loss)
        else:
            subscription, node = Subscription.of(topics, by_topic), None
            if request.HasField("node"):
                node = Node(request.node.source_count, request.node.node_id).validate()
            core = self._upstream.consumer(access, subscription, name, on_loss, node)
        consumer = SessionConsumer(session, core, subscription, subscribed, self._waiters, self._events)
        consumer.opening = self._tasks.start(self._open(consumer, self._ending.get(name)), f"opening {name}")
        self._consumers[session] = consumer
        return consumer

    async def _open(self, consumer: SessionConsumer, older: "asyncio.Task[None] | None") -> None:
        session = consumer.session
        try:
            if older is not None:
                await asyncio.wait([older])
            await self._admit(session)
            if session.ended:
                raise refusal("its session has ended")
            await consumer.core.open()
        except BaseException:
            self._consumers.pop(session, None)
            raise
        consumer.tell_partitions()
        self._events.members_changed(session.group, session)

    def _loss_policy(self, session: Session, *, accept: bool) -> LossPolicy:
        def tell(loss: LossRecord) -> None:
            self._metrics.lost(loss.loss.value)
            logger.warning("%s of the session %s: %s", loss.partition, session.client_id, loss)
            self._events.offset_corrected(session, loss)
            if not accept:
                fail_on_loss(loss)

        return tell

    def _end(self, session: Session) -> None:
        """Close the consumer of a session that has ended, in the background."""
        consumer = self._consumers.pop(session, None)
        if consumer is not None:
            name = session.client_id
            self._ending[name] = ending = self._tasks.start(
                self._close(consumer), f"closing {name}", alone=True
            )
            ending.add_done_callback(lambda _: self._forget(name, ending))

    async def _close(self, consumer: SessionConsumer) -> None:
        await asyncio.wait([consumer.opening])
        if consumer.is_open:
            await consumer.close()
            # Only now: the members that are told may take the partitions.
            self._events.members_changed(consumer.session.group, consumer.session)

    def _forget(self, name: str, ending: "asyncio.Task[None]") -> None:
        if self._ending.get(name) is ending:
            del self._ending[name]


@contextlib.contextmanager
def error_in(answer: pb.TubeError) -> Iterator[None]:
    """Write an error into an answer."""
    try:
        yield
    except TubeMQError as error:
        answer.CopyFrom(failures.to_proto(error))


async def attach_at(
    consumer: SessionConsumer, place: pb.AttachPartitionsRequest.Wanted | pb.ConsumeRequest.Seek
) -> int:
    """Take a partition at an offset, if one is given; return where it stands."""
    offset = place.offset if place.HasField("offset") else None
    return await consumer.attach(values.partition_from_proto(place.partition), offset)


async def commit_batch(consumer: SessionConsumer, request: pb.CommitRequest) -> pb.CommitResponse:
    """Confirm a batch of a consumer, or take it back."""
    confirmed = await consumer.commit(request.batch, consumed=not request.roll_back)
    return pb.CommitResponse(offset=confirmed.offset, latest=confirmed.latest)


def _start_of(request: pb.SubscribeRequest) -> BoundStart | None:
    """Return where a bound group starts."""
    if not request.HasField("start"):
        return None
    start, offsets = request.start, values.offsets_from_proto(request.start.offsets)
    return BoundStart(start.session_key, start.source_count, offsets, select_big=not start.smallest)


def _in_time(wait_s: float, call: ServedCall) -> float:
    """Return how long a call may wait and still be answered before its client's deadline."""
    remaining: float | None = call.context.time_remaining()
    return wait_s if remaining is None else max(0.0, min(wait_s, remaining - _RESERVE_S))
