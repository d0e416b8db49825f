"""Consumers of sessions: partitions that a client names, or that the master gives to it as a member.

A session that attaches partitions, or subscribes, has a consumer, which registers at the master and at the
brokers under the session's client id. So another gateway, where the client opens its session again, takes its
partitions over.

**States of a session's consumer.**

- *none*: until the session attaches or subscribes for the first time;
- *opening*: in ``_opening``, carried out to its end also when the call is cut; if the session has ended by
  then, it is closed;
- *open*: in ``_consumers``; its heartbeats go on without the client, as long as the session lives;
- *closing*: in ``_ending``, by its client id; the session has ended, or the gateway stops. Its partitions
  are given up at the brokers, which may take a while. That needs no thread and no place, so it is never
  refused. A new consumer of the same client id waits for it: servers know both by one name;
- *closed*: the partitions are free, and the group's members are told so. What was not committed comes again,
  to the session that reads them next.

``Fetch`` (with a wait) and ``Consume`` (with credit) are two faces of one engine (``fetching``). A fetch is
answered once: with messages, or empty after its wait, when nothing is attached, or when the gateway drains.

**States of a stream.**

- *flowing*: there is credit, so the stream waits for messages as a fetch does, and sends them;
- *without credit*, or *without partitions*: nothing is fetched, so a client that does not read makes no
  gateway keep messages for it;
- *over*: the client ended its side or has gone, its session has ended, or the gateway drains. What was sent
  and not committed by then is taken back, and comes again.

Two tasks serve a stream: one reads and carries out commands, one sends batches. What either writes, it writes
under ``_writing``. The end of one is the end of both. What is fetched of a partition after a command about it
is written after the answer; what a seek has taken back is not written at all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.values import Batch, ConsumeStatus, parse_context
from tubemq_spark.client.subscription import BoundStart, Node, Subscription
from tubemq_spark.errors import GatewayError, TubeMQError
from tubemq_spark.gateway.admission import Owner, Room, busy
from tubemq_spark.gateway.data.fetching import Arrivals, SessionConsumer
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.events import Events
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import batches, failures, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 20.0
_LONGEST_CLOSE_S: Final = 2.0
_RESERVE_S: Final = 0.3
"""How much earlier than its client's deadline a call that waits is answered."""
_SHORTLY_MS: Final = 500
"""When to try again after too many fetches waited."""
_SIGN_S: Final = 1.0
"""After how long the client of a stream is told that there is nothing yet."""
_REASONS: Final[Mapping[ConsumeStatus, pb.FetchResponse.Reason]] = {
    ConsumeStatus.READY: pb.FetchResponse.REASON_READY,
    ConsumeStatus.NOTHING_ASSIGNED: pb.FetchResponse.REASON_NOTHING_ATTACHED,
    ConsumeStatus.ALL_PAUSED: pb.FetchResponse.REASON_PAUSED,
    ConsumeStatus.ALL_RESTING: pb.FetchResponse.REASON_AT_ENDS,
    ConsumeStatus.ALL_IN_USE: pb.FetchResponse.REASON_UNCOMMITTED,
}
_NOTHING_NAMED: Final = pb.ConsumeRequest()

AnyCore = AssignedCore | GroupCore


class Consuming:
    """Serves ``Subscribe``, ``Attach-`` and ``DetachPartitions``, ``Fetch``, ``Commit`` and ``Consume``."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        metrics: Metrics,
        calls: Calls,
        events: Events,
        arrivals: Arrivals,
        admit: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._gateway = settings.name
        self._places = Room(settings.fetches)
        """Of fetches that wait for messages."""
        self._upstream = upstream
        self._metrics = metrics
        self._calls = calls
        self._events = events
        self._arrivals = arrivals
        self._admit = admit
        self._consumers: dict[Session, SessionConsumer] = {}
        self._subscribed: dict[Session, bytes] = {}
        """What the sessions that are members of their group have asked for."""
        self._opening: dict[Session, asyncio.Task[SessionConsumer]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._taking_back: set[asyncio.Task[None]] = set()
        self._closing = False
        sessions.on_end.append(self._end)

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    @property
    def endings(self) -> int:
        """How many consumers are closing."""
        return len(self._ending)

    # Partitions.

    async def subscribe(self, request: pb.SubscribeRequest, call: Call) -> pb.SubscribeResponse:
        """Make a session a member of its group."""
        session, subscribing = call.owner(), request.SerializeToString(deterministic=True)
        is_known = session in self._consumers or session in self._opening
        if is_known and self._subscribed.get(session) != subscribing:
            raise _refusal("the session has attached partitions, or subscribed otherwise")
        start = None
        if request.HasField("start"):
            bound = request.start
            offsets = values.offsets_from_proto(bound.offsets)
            start = BoundStart(
                bound.session_key,
                bound.source_count,
                offsets,
                select_big=not bound.smallest,
            )
        on_loss = self._loss_policy(session, accept=request.accept_losses)
        subscription = self._subscription(session, request.topics, request.filters, start)
        if not is_known:
            self._subscribed[session] = subscribing
        member = await self._opened(
            session, lambda: self._upstream.member(session.access, subscription, session.client_id, on_loss)
        )
        session.attached.update(subscription.topics)
        return pb.SubscribeResponse(partitions=_positions(member.core))

    async def attach_partitions(
        self, request: pb.AttachPartitionsRequest, call: Call
    ) -> pb.AttachPartitionsResponse:
        """Take partitions for a session; say of each where it stands or why it was not taken."""
        attached = await self._attaching(call.owner(), request)
        response = pb.AttachPartitionsResponse()
        for place in request.partitions:
            partition = values.partition_from_proto(place.partition)
            try:
                offset = await self.attach(
                    attached, partition, place.offset if place.HasField("offset") else None
                )
            except TubeMQError as error:
                response.partitions.add(error=failures.to_proto(error))
            else:
                response.partitions.add(offset=offset)
        return response

    async def detach_partitions(
        self, request: pb.DetachPartitionsRequest, call: Call
    ) -> pb.DetachPartitionsResponse:
        """Give partitions up."""
        attached = self.consumer_of(call.owner())
        partitions = [values.partition_from_proto(place) for place in request.partitions]
        given_up = [partition for partition in partitions if await self.detach(attached, partition)]
        return pb.DetachPartitionsResponse(partitions=map(values.partition_to_proto, given_up))

    async def attach(self, attached: SessionConsumer, partition: TopicPartition, offset: int | None) -> int:
        """Take a partition; return where it stands.

        Raises:
            TubeMQError: as ``AssignedConsumer.connect``.
        """
        consumer = _assigned(attached)
        stands = await consumer.carry_out(consumer.connect(partition, offset), f"attaching {partition}")
        attached.attached.add(partition)
        attached.session.attached.add(partition.topic)
        self._changed(attached)
        return stands.offset

    async def detach(self, attached: SessionConsumer, partition: TopicPartition) -> bool:
        """Give a partition up; return whether it was attached.

        Raises:
            TubeMQError: as ``AssignedConsumer.disconnect``.
        """
        _assigned(attached)
        given_up = await attached.detach(partition)
        if all(place.topic != partition.topic for place in attached.attached):
            attached.session.attached.discard(partition.topic)
        return given_up

    # Messages.

    async def fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        """Return messages as soon as there are some."""
        attached = self.consumer_of(call.owner())
        for context in request.commit:
            await attached.commit(context, consumed=True)
        attached.pause_only(list(map(values.partition_from_proto, request.paused)))
        with self.place(call.who):
            # A call may have come before the gateway began to drain, and its message only after that.
            wait_s = 0.0 if self._calls.draining else min(request.wait_ms / 1000, _LONGEST_WAIT_S)
            batch = await attached.fetch(_in_time(wait_s, call))
        if batch is not None:
            return self.response(batch, call)
        return pb.FetchResponse(reason=_REASONS[attached.status], draining=self._calls.draining)

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:
        """Confirm a batch, or take it back."""
        return await _commit(self.consumer_of(call.owner()), request)

    async def consume(self, _: object, call: Call) -> None:
        """Send batches of what a session has, and carry out its commands."""
        command = await call.read()
        if not isinstance(command, pb.ConsumeRequest):
            return
        if not command.HasField("begin"):
            raise MalformedMessageError("the first command of a consume stream is not begin")
        call.judge(command)
        with self.place(call.who):
            await _Stream(self.consumer_of(call.owner()), self, self._calls, call).run()

    def consumer_of(self, session: Session) -> SessionConsumer:
        """Return the consumer of a session.

        Raises:
            GatewayError: it has none.
        """
        attached = self._consumers.get(session)
        if attached is None:
            raise _refusal("the session has attached no partition, and has not subscribed")
        return attached

    def take_back(self, attached: SessionConsumer, contexts: list[str]) -> None:
        """Take batches back whose client does not go on; they come again."""
        task = asyncio.ensure_future(attached.take_back(contexts))
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)

    @property
    def waiting(self) -> int:
        """How many fetches wait for messages."""
        return self._places.used

    @contextlib.contextmanager
    def place(self, who: Owner) -> Iterator[None]:
        """Take one of the places of fetches that wait.

        Raises:
            GatewayError: there is none left for this client.
        """
        if not self._places.take(who):
            raise busy(self._gateway, f"{self.waiting} fetches wait already", _SHORTLY_MS)
        try:
            yield
        finally:
            self._places.give(who)

    def response(self, batch: Batch, call: Call) -> pb.FetchResponse:
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
        size = _add_records(fetched.records, batch)
        if batch.bytes_behind is not None:
            self._metrics.behind(batch.bytes_behind)
        call.rows += len(batch)
        self._metrics.passed("read", len(batch), size)
        return fetched

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, for a gateway that drains."""
        for attached in self._consumers.values():
            attached.release()

    async def close(self) -> None:
        """Close all consumers, for the end of the gateway."""
        self._closing = True
        for session in list(self._consumers):
            self._end(session)
        while under_way := self._taking_back.union(self._ending.values(), self._opening.values()):
            await asyncio.wait(under_way)

    async def closed(self, session: Session, call: Call) -> None:
        """Return when the partitions of a session that has ended are free.

        A broker that does not answer is waited for no longer than ``_LONGEST_CLOSE_S``.
        """
        if (ending := self._ending.get(session.client_id)) is not None:
            await asyncio.wait({ending}, timeout=_in_time(_LONGEST_CLOSE_S, call))

    async def _attaching(self, session: Session, request: pb.AttachPartitionsRequest) -> SessionConsumer:
        """Return the consumer of a session that attaches partitions.

        Raises:
            TubeMQError: it does not fit what the session has done before, or cannot be opened.
        """
        topics = set(request.topics) or {place.partition.topic for place in request.partitions}
        if session in self._subscribed:
            raise _refusal("the session has subscribed: the master gives it partitions")
        attached = self._consumers.get(session)
        if attached is None:
            subscription = self._subscription(session, sorted(topics), request.filters)
            node = None
            if request.HasField("node"):
                node = Node(request.node.source_count, request.node.node_id).validate()
            on_loss = self._loss_policy(session, accept=request.accept_losses)
            attached = await self._opened(
                session,
                lambda: self._upstream.consumer(
                    session.access, subscription, session.client_id, on_loss, node
                ),
            )
        if missing := topics - set(attached.core.state.subscription.topics):
            raise _refusal(f"the session reads other topics than {', '.join(sorted(missing))}")
        return attached

    def _subscription(
        self,
        session: Session,
        topics: Iterable[str],
        filters: Iterable[pb.TopicFilter],
        start: BoundStart | None = None,
    ) -> Subscription:
        topics, usual = list(topics), session.access.config.message_types
        types = {topic: usual for topic in topics if usual}
        types |= {item.topic: tuple(item.message_types) for item in filters}
        return Subscription.of(topics, types, start)

    async def _opened(self, session: Session, make: Callable[[], AnyCore]) -> SessionConsumer:
        """Return the consumer of a session, which is opened once, and to its end."""
        if (known := self._consumers.get(session)) is not None:
            return known
        opening = self._opening.get(session)
        if opening is None:
            opening = self._opening[session] = asyncio.ensure_future(self._open(session, make))
            opening.add_done_callback(lambda ended: self._note_opening(session, ended))
        return await asyncio.shield(opening)

    def _note_opening(self, session: Session, ended: "asyncio.Future[SessionConsumer]") -> None:
        del self._opening[session]
        if (ended.cancelled() or ended.exception() is not None) and session not in self._consumers:
            self._subscribed.pop(session, None)

    async def _open(self, session: Session, make: Callable[[], AnyCore]) -> SessionConsumer:
        await self._admit(session)
        await self._await_older(session)
        core = make()
        await core.open()
        attached = SessionConsumer(session, core, self._arrivals, self._changed)
        if session.ended or self._closing:
            self._begin_to_end(attached)
            raise _refusal("its session has ended")
        self._consumers[session] = attached
        self._changed(attached)
        self._events.members_changed(session.group, session)
        return attached

    async def _await_older(self, session: Session) -> None:
        """Wait until no older consumer has the name of a session's client."""
        name = session.client_id
        while older := [task for other, task in self._opening.items() if _is_older(other, session)] + [
            task for task in (self._ending.get(name),) if task is not None
        ]:
            await asyncio.wait(older)

    def _loss_policy(self, session: Session, *, accept: bool) -> LossPolicy:
        def tell(loss: LossRecord) -> None:
            self._metrics.lost(loss.loss.value)
            logger.warning("%s of the session %s: %s", loss.partition, session.client_id, loss)
            self._events.offset_corrected(session, loss)
            if not accept:
                fail_on_loss(loss)

        return tell

    def _changed(self, attached: SessionConsumer) -> None:
        """Tell the client of partitions that have come or gone, and not by it."""
        session, core = attached.session, attached.core
        if self._consumers.get(session) is not attached or attached.closed:
            return
        if isinstance(core, GroupCore):
            self._events.partitions_changed(session, _positions(core))
        elif lost := attached.attached.difference(core.state.connected):
            status = core.status()
            for partition in sorted(lost):
                attached.attached.discard(partition)
                trouble = status[partition].trouble if partition in status else None
                self._events.partition_lost(session, partition, trouble)

    def _end(self, session: Session) -> None:
        self._subscribed.pop(session, None)
        attached = self._consumers.pop(session, None)
        if attached is not None:
            self._begin_to_end(attached)

    def _begin_to_end(self, attached: SessionConsumer) -> None:
        name = attached.session.client_id
        task = self._ending[name] = asyncio.ensure_future(self._close(attached))
        task.add_done_callback(lambda _: self._ending.pop(name))

    async def _close(self, attached: SessionConsumer) -> None:
        await attached.close()
        # Only now: the members that are told may take the partitions.
        self._events.members_changed(attached.session.group, attached.session)


class _Stream:
    """One stream."""

    def __init__(self, attached: SessionConsumer, consuming: Consuming, calls: Calls, call: Call) -> None:
        self._attached = attached
        self._consuming = consuming
        self._calls = calls
        self._call = call
        self._credit = 0
        self._writing = asyncio.Lock()
        self._uncommitted: set[str] = set()
        """The batches that were sent, and neither committed nor taken back."""
        self._commanded: TopicPartition | None = None
        """What the command is about that is carried out."""
        self._answered = asyncio.Event()
        """Set when that is answered."""

    async def run(self) -> None:
        """Serve until one side ends it."""
        tasks = {asyncio.create_task(self._obey()), asyncio.create_task(self._send())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._consuming.take_back(self._attached, list(self._uncommitted))
        for result in ended:
            if isinstance(result, Exception):
                raise result

    # Sending.

    async def _send(self) -> None:
        attached = self._attached
        while not attached.session.ended:
            self._calls.refuse_when_draining()
            if self._flows():
                await self._send_next()
            else:
                await attached.changes.until(
                    lambda: attached.session.ended or self._calls.draining or self._flows()
                )

    async def _send_next(self) -> None:
        """Send the next batch, an error instead, or a sign that there is nothing."""
        self._call.judge(_NOTHING_NAMED)
        try:
            batch = await self._attached.fetch(_SIGN_S)
        except TubeMQError as error:
            await self._write(pb.ConsumeResponse(error=failures.to_proto(error)))
        else:
            if batch is not None:
                await self._send_batch(batch)
            elif self._flows():
                await self._write(pb.ConsumeResponse(waiting=pb.Waiting()))

    async def _send_batch(self, batch: Batch) -> None:
        """Send a batch, unless a command takes it back."""
        self._uncommitted.add(batch.context)
        while self._commanded == batch.partition:
            await self._answered.wait()
        if self._attached.out.get(batch.partition) == batch.context:
            answer = self._consuming.response(batch, self._call)
            self._credit -= answer.ByteSize()
            await self._write(pb.ConsumeResponse(batch=answer))
        else:
            self._uncommitted.discard(batch.context)

    def _flows(self) -> bool:
        return self._credit > 0 and not self._attached.has_nothing

    async def _write(self, event: pb.ConsumeResponse) -> None:
        async with self._writing:
            await self._call.context.write(event)

    # Commands.

    async def _obey(self) -> None:
        # What read returns at the end of a stream is no command.
        while isinstance(command := await self._call.read(), pb.ConsumeRequest):
            self._call.judge(command)
            which = command.WhichOneof("command")
            if which == "credit":
                self._credit += command.credit
                self._attached.changes.note()
            elif which == "commit":
                with self._about(lambda: parse_context(command.commit.batch).partition):
                    await self._write(pb.ConsumeResponse(committed=await self._commit(command.commit)))
            elif which == "seek":
                with self._about(lambda: values.partition_from_proto(command.seek.partition)):
                    await self._write(pb.ConsumeResponse(sought=await self._seek(command.seek)))
            elif which in ("pause", "resume"):
                await self._write(pb.ConsumeResponse(paused=self._pause(command)))
            else:
                raise MalformedMessageError("a command of a consume stream is none of those that there are")

    @contextlib.contextmanager
    def _about(self, partition: Callable[[], TopicPartition]) -> Iterator[None]:
        """Write nothing of a partition until a command about it is answered."""
        with contextlib.suppress(TubeMQError):  # which the answer tells
            self._commanded = partition()
        self._answered.clear()
        try:
            yield
        finally:
            self._commanded = None
            self._answered.set()

    async def _commit(self, request: pb.CommitRequest) -> pb.ConsumeResponse.Committed:
        answer = pb.ConsumeResponse.Committed(batch=request.batch)
        with _error_in(answer.error):
            # Not before: a stream that ends here takes back what was not committed.
            answer.position.CopyFrom(await _commit(self._attached, request))
        self._uncommitted.discard(request.batch)
        return answer

    async def _seek(self, command: pb.ConsumeRequest.Seek) -> pb.ConsumeResponse.Sought:
        answer = pb.ConsumeResponse.Sought(partition=command.partition)
        partition = values.partition_from_proto(command.partition)
        with _error_in(answer.error):
            await self._consuming.detach(self._attached, partition)
            offset = command.offset if command.HasField("offset") else None
            answer.offset = await self._consuming.attach(self._attached, partition, offset)
        return answer

    def _pause(self, command: pb.ConsumeRequest) -> pb.ConsumeResponse.Paused:
        core = self._attached.core
        if command.HasField("pause"):
            core.pause(list(map(values.partition_from_proto, command.pause.partitions)))
        else:
            core.resume(list(map(values.partition_from_proto, command.resume.partitions)))
        paused = sorted(core.paused())
        return pb.ConsumeResponse.Paused(partitions=map(values.partition_to_proto, paused))


@contextlib.contextmanager
def _error_in(place: pb.TubeError) -> Iterator[None]:
    """Write an error into an answer."""
    try:
        yield
    except TubeMQError as error:
        place.CopyFrom(failures.to_proto(error))


async def _commit(attached: SessionConsumer, request: pb.CommitRequest) -> pb.CommitResponse:
    confirmed = await attached.commit(request.batch, consumed=not request.roll_back)
    return pb.CommitResponse(offset=confirmed.offset, latest=confirmed.latest)


def _assigned(attached: SessionConsumer) -> AssignedCore:
    if not isinstance(attached.core, AssignedCore):
        raise _refusal("the session has subscribed: the master gives it partitions")
    return attached.core


def _positions(core: AnyCore) -> list[pb.PartitionOffset]:
    return [
        pb.PartitionOffset(partition=values.partition_to_proto(partition), offset=position.offset)
        for partition, position in sorted(core.positions().items())
    ]


def _add_records(records: pb.RecordBatch, batch: Batch) -> int:
    """Write a batch's messages into a message; return how many bytes they are."""
    fetched = batch.columns
    if fetched is None:
        return 0
    if fetched.dense and len(fetched.columns):
        end = fetched.start + INDEX_ENTRY_BYTES * (int(fetched.columns.ordinals[-1]) + 1)
        fetched = FetchedBatch(fetched.partition, fetched.start, end, fetched.columns, dense=True)
    proto, data = batches.to_proto(fetched)
    proto.data = data
    if batch.bytes_behind is not None:
        proto.bytes_behind = batch.bytes_behind
    records.CopyFrom(proto)
    return len(data)


def _is_older(other: Session, session: Session) -> bool:
    return other is not session and other.client_id == session.client_id


def _refusal(what: str) -> GatewayError:
    return GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)


def _in_time(wait_s: float, call: Call) -> float:
    """Return how long a call may wait and still be answered before its client's deadline."""
    remaining: float | None = call.context.time_remaining()
    return wait_s if remaining is None else max(0.0, min(wait_s, remaining - _RESERVE_S))
