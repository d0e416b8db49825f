"""Consumers of sessions: partitions that a client names, or that the master gives to it as a member.

**States of a session's consumer** (``fetching``).

- *none*: until the session attaches or subscribes for the first time, or when that has failed;
- *opening*: in ``_consumers``; its ``opening`` is carried out to its end also when the call is cut. It waits
  for an older consumer of the same client id, since servers know both by one name;
- *open*: in ``_consumers``; its heartbeats go on without the client, as long as the session lives;
- *closing*: in ``_ending``, by its client id; the session has ended, or the gateway stops. One that opens
  does so first. Its partitions are given up at the brokers, which may take a while. That needs no place, so
  it is never refused;
- *closed*: the partitions are free, and the group's members are told so. What was not committed comes again,
  to the session that reads them next.

``Fetch`` (with a wait) and ``Consume`` (with credit) are two faces of one engine. A fetch is answered once:
with messages, or empty after its wait, when nothing is attached, or when the gateway drains.

**States of a stream.**

- *flowing*: there is credit, so the stream waits for messages as a fetch does, and sends them;
- *without credit*, or *without partitions*: nothing is fetched, so a client that does not read makes no
  gateway keep messages for it;
- *over*: the client ended its side or has gone, its session has ended, or the gateway drains. What was sent
  and not committed by then is taken back, and comes again.

Two tasks serve a stream: one reads and carries out commands, one sends batches. What either writes, it writes
under ``_write_lock``. The end of one is the end of both. What is fetched of a partition after a command about
it is written after the answer; what a seek has taken back is not written at all.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.values import Batch, ColumnBatch, ConsumeStatus, parse_context
from tubemq_spark.client.subscription import BoundStart, Node, Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQError
from tubemq_spark.gateway.admission import busy
from tubemq_spark.gateway.data.fetching import EndOfLogWaiters, SessionConsumer, refusal
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.events import Events
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
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
        self._places = FairQuota(settings.fetches)
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

    @property
    def waiting(self) -> int:
        """How many fetches wait for messages."""
        return self._places.used

    # Partitions.

    async def subscribe(self, request: pb.SubscribeRequest, call: Call) -> pb.SubscribeResponse:
        """Make a session a member of its group."""
        session, subscribing = call.owner(), request.SerializeToString(deterministic=True)
        consumer = self._consumers.get(session) or self._begin(session, request.topics, request, subscribing)
        if consumer.subscribed != subscribing:
            raise refusal("the session has attached partitions, or subscribed otherwise")
        await asyncio.shield(consumer.opening)
        session.attached.update(consumer.topics)
        return pb.SubscribeResponse(partitions=consumer.positions)

    async def attach_partitions(
        self, request: pb.AttachPartitionsRequest, call: Call
    ) -> pb.AttachPartitionsResponse:
        """Take partitions for a session; say of each where it stands or why it was not taken."""
        session, topics = call.owner(), {place.partition.topic for place in request.partitions}
        topics = set(request.topics) or topics
        consumer = self._consumers.get(session) or self._begin(session, sorted(topics), request, None)
        if consumer.subscribed is not None:
            raise refusal("the session has subscribed: the master gives it partitions")
        await asyncio.shield(consumer.opening)
        if missing := topics - consumer.topics:
            raise refusal(f"the session reads other topics than {', '.join(sorted(missing))}")
        response = pb.AttachPartitionsResponse()
        for place in request.partitions:
            answer = response.partitions.add()
            with _error_in(answer.error):
                answer.offset = await _attach(consumer, place)
        return response

    async def detach_partitions(
        self, request: pb.DetachPartitionsRequest, call: Call
    ) -> pb.DetachPartitionsResponse:
        """Give partitions up."""
        consumer = self.consumer_of(call.owner())
        given_up = [
            place for place in request.partitions if await consumer.detach(values.partition_from_proto(place))
        ]
        return pb.DetachPartitionsResponse(partitions=given_up)

    # Messages.

    async def fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
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
        return pb.FetchResponse(reason=_REASONS[consumer.status], draining=self._calls.draining)

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
        """Return the consumer of a session, which has to have one."""
        consumer = self._consumers.get(session)
        if consumer is None or not consumer.is_open:
            raise refusal("the session has attached no partition, and has not subscribed")
        return consumer

    @contextlib.contextmanager
    def place(self, who: Owner) -> Iterator[None]:
        """Take one of the places of fetches that wait."""
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

    async def closed(self, session: Session, call: Call) -> None:
        """Return when the partitions of a session that has ended are free.

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


class _Stream:
    """One stream."""

    def __init__(self, consumer: SessionConsumer, service: ConsumeService, calls: Calls, call: Call) -> None:
        self._consumer = consumer
        self._service = service
        self._calls = calls
        self._call = call
        self._credit = 0
        self._write_lock = asyncio.Lock()
        self._uncommitted: set[str] = set()
        """The batches that were sent, and neither committed nor taken back."""
        self._commanded: TopicPartition | None = None
        """What the command is about that is carried out."""
        self._answered = asyncio.Event()
        """Set when that is answered."""

    async def run(self) -> None:
        """Serve until one side ends it."""
        tasks = {asyncio.create_task(self._carry_out_commands()), asyncio.create_task(self._send())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._consumer.take_back(self._uncommitted)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    # Sending.

    async def _send(self) -> None:
        consumer = self._consumer
        while not consumer.session.ended:
            self._calls.refuse_when_draining()
            if self._flows():
                await self._send_next()
            else:
                await consumer.changed.wait()

    async def _send_next(self) -> None:
        """Send the next batch, an error instead, or a sign that there is nothing."""
        self._call.judge(_NOTHING_NAMED)
        try:
            batch = await self._consumer.fetch(_SIGN_S)
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
        if self._consumer.uncommitted.get(batch.partition) == batch.context:
            answer = self._service.response(batch, self._call)
            self._credit -= answer.ByteSize()
            await self._write(pb.ConsumeResponse(batch=answer))
        else:
            self._uncommitted.discard(batch.context)

    def _flows(self) -> bool:
        return self._credit > 0 and not self._consumer.core.has_nothing

    async def _write(self, event: pb.ConsumeResponse) -> None:
        async with self._write_lock:
            await self._call.context.write(event)

    # Commands.

    async def _carry_out_commands(self) -> None:
        # What read returns at the end of a stream is no command.
        while isinstance(command := await self._call.read(), pb.ConsumeRequest):
            self._call.judge(command)
            which = command.WhichOneof("command")
            if which == "credit":
                self._credit += command.credit
                self._consumer.note()
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
            answer.position.CopyFrom(await _commit(self._consumer, request))
        self._uncommitted.discard(request.batch)
        return answer

    async def _seek(self, command: pb.ConsumeRequest.Seek) -> pb.ConsumeResponse.Sought:
        answer = pb.ConsumeResponse.Sought(partition=command.partition)
        with _error_in(answer.error):
            await self._consumer.detach(values.partition_from_proto(command.partition))
            answer.offset = await _attach(self._consumer, command)
        return answer

    def _pause(self, command: pb.ConsumeRequest) -> pb.ConsumeResponse.Paused:
        core = self._consumer.core
        if command.HasField("pause"):
            core.pause(map(values.partition_from_proto, command.pause.partitions))
        else:
            core.resume(map(values.partition_from_proto, command.resume.partitions))
        paused = sorted(core.paused())
        return pb.ConsumeResponse.Paused(partitions=map(values.partition_to_proto, paused))


@contextlib.contextmanager
def _error_in(answer: pb.TubeError) -> Iterator[None]:
    """Write an error into an answer."""
    try:
        yield
    except TubeMQError as error:
        answer.CopyFrom(failures.to_proto(error))


async def _attach(
    consumer: SessionConsumer, place: pb.AttachPartitionsRequest.Wanted | pb.ConsumeRequest.Seek
) -> int:
    """Take a partition at an offset, if one is given; return where it stands."""
    offset = place.offset if place.HasField("offset") else None
    return await consumer.attach(values.partition_from_proto(place.partition), offset)


async def _commit(consumer: SessionConsumer, request: pb.CommitRequest) -> pb.CommitResponse:
    confirmed = await consumer.commit(request.batch, consumed=not request.roll_back)
    return pb.CommitResponse(offset=confirmed.offset, latest=confirmed.latest)


def _start_of(request: pb.SubscribeRequest) -> BoundStart | None:
    """Return where a bound group starts."""
    if not request.HasField("start"):
        return None
    start, offsets = request.start, values.offsets_from_proto(request.start.offsets)
    return BoundStart(start.session_key, start.source_count, offsets, select_big=not start.smallest)


def _in_time(wait_s: float, call: Call) -> float:
    """Return how long a call may wait and still be answered before its client's deadline."""
    remaining: float | None = call.context.time_remaining()
    return wait_s if remaining is None else max(0.0, min(wait_s, remaining - _RESERVE_S))
