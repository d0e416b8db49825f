"""Consumers of sessions: partitions that a client names, fetched with a wait, and committed.

A session that attaches partitions has a consumer, which registers at the master and at the brokers under the
session's client id. So another gateway, where the client opens its session again, takes its partitions over.

**States of a session's consumer.**

- *none*: until the session attaches for the first time;
- *open*: in ``_consumers``; its heartbeats go on without the client, as long as the session lives;
- *closing*: in ``_ending``; the session has ended, or the gateway stops. Its partitions are given up at the
  brokers, which may take a while;
- *closed*: the partitions are free, and the group's members are told so. What was not committed comes again,
  to the session that reads them next.

**A fetch that waits** uses a thread only while a broker is asked (``parking``). It is answered once: with
messages, or empty after its wait, when nothing is attached, or when the gateway drains. What a broker gave
after its client had gone is rolled back, so it comes again.
"""

import asyncio
import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Final

from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
from tubemq_spark.client.consumer.values import Batch, ConsumeStatus
from tubemq_spark.client.reader.records import Record
from tubemq_spark.errors import ConsumeError, GatewayError, TubeMQError
from tubemq_spark.gateway.admission import Turns
from tubemq_spark.gateway.handlers.arrivals import Arrivals
from tubemq_spark.gateway.handlers.events import Events
from tubemq_spark.gateway.handlers.members import Members
from tubemq_spark.gateway.handlers.parking import Parking
from tubemq_spark.gateway.metrics import Metrics
from tubemq_spark.gateway.session.calls import Call, Calls
from tubemq_spark.gateway.session.sessions import Session, Sessions
from tubemq_spark.gateway.session.upstream import Upstream
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, values

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 20.0
_LONGEST_CLOSE_S: Final = 2.0
_RESERVE_S: Final = 0.3
"""How much earlier than its client's deadline a call that waits is answered."""
_REASONS: Final[Mapping[ConsumeStatus, pb.FetchResponse.Reason]] = {
    ConsumeStatus.READY: pb.FetchResponse.REASON_READY,
    ConsumeStatus.NOTHING_ASSIGNED: pb.FetchResponse.REASON_NOTHING_ATTACHED,
    ConsumeStatus.ALL_PAUSED: pb.FetchResponse.REASON_PAUSED,
    ConsumeStatus.ALL_RESTING: pb.FetchResponse.REASON_AT_ENDS,
    ConsumeStatus.ALL_IN_USE: pb.FetchResponse.REASON_UNCOMMITTED,
}
_SHORTLY_MS: Final = 500
"""When to try again after too many fetches waited."""


@dataclasses.dataclass(slots=True, eq=False)
class Attached:
    """The consumer of a session, and what belongs to it."""

    session: Session
    consumer: AssignedConsumer
    parking: Parking
    partitions: set[TopicPartition] = dataclasses.field(default_factory=set)
    """What the client has attached, and was not told to be lost."""
    out: dict[TopicPartition, str] = dataclasses.field(default_factory=dict)
    """The batch of each partition that the client may still commit."""


class Consuming:
    """Serves ``AttachPartitions``, ``DetachPartitions``, ``Fetch`` and ``Commit``."""

    def __init__(
        self,
        settings: GatewaySettings,
        sessions: Sessions,
        upstream: Upstream,
        workers: Turns,
        metrics: Metrics,
        calls: Calls,
        events: Events,
        arrivals: Arrivals,
        members: Members,
    ) -> None:
        self._gateway = settings.name
        self._most = settings.fetches
        self.waiting = 0
        """How many fetches wait for messages."""
        self._sessions = sessions
        self._upstream = upstream
        self._workers = workers
        self._metrics = metrics
        self._calls = calls
        self._events = events
        self._arrivals = arrivals
        self._members = members
        self._consumers: dict[Session, Attached] = {}
        self._attaching: weakref.WeakKeyDictionary[Session, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._taking_back: set[asyncio.Task[None]] = set()
        self._ending: dict[Session, asyncio.Task[None]] = {}
        """What closes the consumers of sessions that have ended."""
        sessions.on_end.append(self._end)

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._consumers)

    async def attach_partitions(
        self, request: pb.AttachPartitionsRequest, call: Call
    ) -> pb.AttachPartitionsResponse:
        """Take partitions for a session; say of each where it stands or why it was not taken."""
        attached = await self._opened(call.owner(), request)
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
        attached = self.attached(call.owner())
        partitions = [values.partition_from_proto(place) for place in request.partitions]
        given_up = [partition for partition in partitions if await self.detach(attached, partition)]
        return pb.DetachPartitionsResponse(partitions=map(values.partition_to_proto, given_up))

    async def fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        """Return messages as soon as there are some."""
        session = call.owner()
        attached = self.attached(session)
        for context in request.commit:
            await self.commit_batch(attached, context)
        with self.place():
            batch = await attached.parking.fetch(_in_time(min(request.wait_ms / 1000, _LONGEST_WAIT_S), call))
        if batch is not None:
            return self.response(attached, batch, call)
        return pb.FetchResponse(
            reason=_REASONS[attached.consumer.consume_status], draining=self._calls.draining
        )

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitResponse:
        """Confirm a batch, or take it back."""
        attached = self.attached(call.owner())
        return await self.commit_batch(attached, request.batch, consumed=not request.roll_back)

    # For streams too.

    def attached(self, session: Session) -> Attached:
        """Return the consumer of a session.

        Raises:
            GatewayError: it has attached no partition.
        """
        attached = self._consumers.get(session)
        if attached is None:
            raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what="the session has attached no partition")
        return attached

    async def attach(self, attached: Attached, partition: TopicPartition, offset: int | None) -> int:
        """Take a partition; return where it stands.

        Raises:
            TubeMQError: as ``AssignedConsumer.connect``.
        """
        stands = await self._workers.run(lambda: attached.consumer.connect(partition, offset))
        attached.partitions.add(partition)
        attached.session.attached.add(partition.topic)
        self._look_for_lost(attached)
        attached.parking.wake(partition)
        return stands.offset

    async def detach(self, attached: Attached, partition: TopicPartition) -> bool:
        """Give a partition up; return whether it was attached.

        Raises:
            TubeMQError: as ``AssignedConsumer.disconnect``.
        """
        attached.partitions.discard(partition)
        # What is taken back must not be handed out again.
        attached.consumer.pause([partition])
        try:
            if (context := attached.out.get(partition)) is not None:
                # Otherwise the consumer would wait for it.
                with contextlib.suppress(TubeMQError):
                    await self.commit_batch(attached, context, consumed=False)
            given_up = await self._workers.run(lambda: attached.consumer.disconnect(partition))
        finally:
            with contextlib.suppress(TubeMQError):  # it has closed
                attached.consumer.resume([partition])
        attached.parking.wake()
        return given_up

    async def commit_batch(
        self, attached: Attached, context: str, *, consumed: bool = True
    ) -> pb.CommitResponse:
        """Confirm a batch, or take it back.

        Raises:
            TubeMQError: as ``Consumer.confirm``.
        """
        try:
            confirmed = await self._workers.run(lambda: attached.consumer.confirm(context, consumed=consumed))
        finally:
            for partition in [place for place, out in attached.out.items() if out == context]:
                del attached.out[partition]
            attached.parking.wake()
        return pb.CommitResponse(offset=confirmed.offset, latest=confirmed.latest)

    def take_back(self, attached: Attached, contexts: Iterable[str]) -> None:
        """Take batches back whose client does not go on; they come again."""
        self._keep(self._take_back(attached, tuple(contexts)))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        """Carry on with what no call waits for."""
        task = asyncio.ensure_future(work)
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)

    async def _take_back(self, attached: Attached, contexts: tuple[str, ...]) -> None:
        for context in contexts:
            # Another call may have committed it, or its session may have ended.
            with contextlib.suppress(TubeMQError):
                await self.commit_batch(attached, context, consumed=False)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places of fetches that wait.

        Raises:
            GatewayError: there is none left.
        """
        if self.waiting >= self._most:
            raise GatewayError(
                "TUBEMQ_GATEWAY_BUSY",
                gateway=self._gateway,
                what=f"{self.waiting} fetches wait already",
                retry_after_ms=_SHORTLY_MS,
            )
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def response(self, attached: Attached, batch: Batch, call: Call) -> pb.FetchResponse:
        """Return a batch as a message, and count it."""
        attached.out[batch.partition] = batch.context
        fetched = pb.FetchResponse(
            reason=pb.FetchResponse.REASON_READY,
            partition=values.partition_to_proto(batch.partition),
            offset=batch.offset,
            latest=batch.latest,
            messages=map(_message, batch.records),
            batch=batch.context,
            draining=self._calls.draining,
            lag=batch.lag,
            bytes_behind=batch.bytes_behind,
            slow=batch.slow,
        )
        if (last := batch.records[-1].offset) is not None:
            fetched.next = last + INDEX_ENTRY_BYTES
        if batch.bytes_behind is not None:
            self._metrics.behind(batch.bytes_behind)
        call.rows += len(batch)
        self._metrics.passed("read", len(batch), sum(len(record.value) for record in batch.records))
        return fetched

    # Life.

    def release(self) -> None:
        """Answer all fetches that wait, for a gateway that drains."""
        for attached in self._consumers.values():
            attached.parking.release()

    async def close(self) -> None:
        """Close all consumers, for the end of the gateway."""
        for session in list(self._consumers):
            self._end(session)
        if under_way := self._taking_back.union(self._ending.values()):
            await asyncio.wait(under_way)

    async def closed(self, session: Session, call: Call) -> None:
        """Return when the partitions of a session that has ended are free.

        A broker that does not answer is waited for no longer than ``_LONGEST_CLOSE_S``.
        """
        if (ending := self._ending.get(session)) is not None:
            await asyncio.wait({ending}, timeout=_in_time(_LONGEST_CLOSE_S, call))

    async def _opened(self, session: Session, request: pb.AttachPartitionsRequest) -> Attached:
        topics = set(request.topics) or {place.partition.topic for place in request.partitions}
        async with self._attaching.setdefault(session, asyncio.Lock()):
            attached = self._consumers.get(session)
            if attached is None:
                return await self._open(session, sorted(topics), accept_losses=request.accept_losses)
        if missing := topics - set(attached.consumer.subscription.topics):
            what = f"the session reads other topics than {', '.join(sorted(missing))}"
            raise GatewayError("TUBEMQ_GATEWAY_REQUEST", what=what)
        return attached

    async def _open(self, session: Session, topics: list[str], *, accept_losses: bool) -> Attached:
        await self._members.admit(session.access)
        on_loss = self._loss_policy(session, accept=accept_losses)
        consumer = self._upstream.consumer(session.access, topics, session.client_id, on_loss)
        opening = asyncio.ensure_future(self._workers.run(consumer.open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._keep(self._close_unused(consumer, opening))
            raise
        parking = Parking(consumer, self._workers, self._arrivals)
        attached = self._consumers[session] = Attached(session, consumer, parking)
        consumer.on_given_up(lambda: self._events.from_thread(lambda: self._look_for_lost(attached)))
        self._events.members_changed(session.access.config.group, session)
        return attached

    async def _close_unused(
        self, consumer: AssignedConsumer, opening: "asyncio.Future[AssignedConsumer]"
    ) -> None:
        """Close a consumer whose call has ended while it was opened."""
        with contextlib.suppress(TubeMQError):
            await opening
            await self._workers.run(consumer.close)

    def _loss_policy(self, session: Session, *, accept: bool) -> LossPolicy:
        def tell(loss: LossRecord) -> None:
            self._metrics.lost(loss.loss.value)
            logger.warning("%s of the session %s: %s", loss.partition, session.client_id, loss)
            self._events.from_thread(lambda: self._events.offset_corrected(session, loss))
            if not accept:
                fail_on_loss(loss)

        return tell

    def _look_for_lost(self, attached: Attached) -> None:
        """Tell the client of partitions that were given up, and not by it."""
        lost = attached.partitions - set(attached.consumer.connected)
        if lost:
            status = attached.consumer.status()
            for partition in sorted(lost):
                attached.partitions.discard(partition)
                self._events.partition_lost(attached.session, partition, status[partition].trouble)
            attached.parking.wake()

    def _end(self, session: Session) -> None:
        attached = self._consumers.pop(session, None)
        if attached is not None:
            task = asyncio.ensure_future(self._close(attached))
            self._ending[session] = task
            task.add_done_callback(lambda _: self._ending.pop(session))

    async def _close(self, attached: Attached) -> None:
        await attached.parking.close()
        try:
            await self._workers.run(attached.consumer.close)
        except (GatewayError, ConsumeError) as error:
            logger.warning(
                "the consumer %s was not closed; its leases end by themselves: %s",
                attached.consumer.client_id,
                error,
            )
        # Only now: who hears it may take the partitions.
        self._events.members_changed(attached.session.access.config.group, attached.session)


def _in_time(wait_s: float, call: Call) -> float:
    """Return how long a call may wait and still be answered before its client's deadline."""
    remaining: float | None = call.context.time_remaining()
    return wait_s if remaining is None else max(0.0, min(wait_s, remaining - _RESERVE_S))


def _message(record: Record) -> pb.FetchResponse.Message:
    proto = pb.FetchResponse.Message(
        value=record.value,
        message_id=record.message_id,
        offset=record.offset,
        has_attributes=record.attributes is not None,
    )
    for name, value in (record.attributes or {}).items():
        proto.attributes.add(name=name, value=value)
    return proto
