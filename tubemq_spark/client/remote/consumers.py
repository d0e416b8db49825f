"""Group consumers and assigned consumers that go through gateways; for users, they are the same classes.

What a consumer does is done at a gateway, by the only engine there is: heartbeats to masters and brokers,
leases, flow control, positions, time-outs. Here is what its user calls, and what its gateway tells:

- ``membership``: the session, at one gateway after the other, and heartbeats with events;
- ``fetching``: what is held, where its batches are, and the calls that bring messages and confirm them.

A member of a group gets its partitions with the answer of ``Subscribe`` and with events, and holds those and
no others. After the loss of its gateway it is a new member. An assigned consumer attaches what its user
connects, and at the next gateway all of that again, where it was confirmed; what cannot be attached then,
with every heartbeat until it can.
"""

import abc
import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import ClassVar, Final, TypeVar

from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase, statuses
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.consumer.life import not_held
from tubemq_spark.client.consumer.user_code import Callbacks
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, PartitionStatus
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.fetching import RemoteFetching, RemoteState
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.membership import Membership
from tubemq_spark.client.tasks import is_cancelled
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.loss import LossRecord, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import from_proto

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOOK_S: Final = 0.1
"""How long a call waits that is made again at the next gateway."""
_LONGER_S: Final = 30.0
"""What registering at masters and brokers may take beyond asking one of them."""
_CLOSE_S: Final = 3.0
"""How long batches may take to be confirmed while their consumer closes; then its gateway, to close it."""


class RemoteCore(ConsumerCore):
    """What both kinds of consumers have.

    The gateways are those of one consumer alone. ``on_loss`` is told of losses when they were passed over,
    and callbacks of partitions when these have come or gone.
    """

    state: RemoteState
    line: RemoteFetching
    is_member: ClassVar[bool]

    def __init__(self, setup: ConsumerSetup, gateways: Gateways, questions: Questions) -> None:
        """Reach no gateway; may be called in any thread."""
        state = RemoteState(setup.config, setup.subscription, is_member=self.is_member)
        super().__init__(setup, questions, state, state)
        state.client_id = gateways.session.client_id
        state.callbacks = Callbacks(state, self.tasks, setup.user_code, setup.on_assigned, setup.on_revoked)
        self.membership = Membership(gateways, state, self.tasks, self)
        self.line = RemoteFetching(state, self.membership, self.tasks, self._note_failure)
        self._gateways = gateways
        self._accepts_losses = setup.on_loss is not fail_on_loss
        self._layout = TopicsLayout({}, values.NO_TOKEN)
        self._layout_at = float("-inf")
        self._known_lost: set[TopicPartition] = set()
        """Partitions of which an event will tell that they were given up, which is known."""
        self._refused: set[TopicPartition] = set()
        """Partitions whose losses were refused, and which the gateway still holds."""
        self._locks = collections.defaultdict[TopicPartition, asyncio.Lock](asyncio.Lock)
        """Of partitions: what attaches and detaches one is not mixed with another that does."""

    def is_out(self, batch: Batch) -> bool:
        """Return whether a batch that was handed out may still be confirmed, as far as is known here."""
        partition = self.state.connected.get(batch.partition)
        return partition is not None and partition.out == batch.context and not partition.is_ending

    def put_back(self, batch: Batch) -> None:
        """Take a batch back that did not reach its user: the next fetch gets it."""
        self.state.put_back(batch)

    async def _confirm(self, context: str, *, consumed: bool) -> Confirmed:
        return await self.line.end_batch(context, consumed=consumed)

    # Life.

    async def _start(self) -> None:
        """Join at the first gateway that can serve."""
        gateways = self._gateways
        try:
            if not self.is_member:  # for whose group a master would tell no layout beside its topics
                await self._refresh_layout()
            await gateways.with_any(self.membership.join_at, "registering a consumer", gateways.patience_s)
        except BaseException:
            await gateways.closing()
            raise

    async def _maintain(self) -> None:
        await self.membership.keep()

    async def _give_up(self) -> None:
        """Leave the gateway, which gives back what is held; then tell the user."""
        self.membership.has_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.state.changes.until(lambda: not self.line.ending)
        try:
            await self._end()
        finally:
            self._hold_only({})
            await self.state.callbacks.settled

    async def _end(self) -> None:
        self._gateways.refuse_calls()
        await self._gateways.closing(_CLOSE_S)

    # What the membership asks for, as ``Member``.

    @abc.abstractmethod
    async def join(self, gateway: int) -> None:
        """Register at a gateway, where the session is open."""

    def leave(self) -> None:
        """Note that a generation is over."""
        self._known_lost.clear()
        self._refused.clear()
        self.state.lose_batches()

    def has_batches(self) -> bool:
        """Return whether something may be confirmed, or is being confirmed."""
        return self.line.ending > 0 or any(entry.out for entry in self.state.connected.values())

    async def repair(self, generation: int) -> None:
        """Ask the gateway to give up refused partitions; while it is busy, again with the next heartbeat."""
        for partition in list(self._refused):
            if not (lock := self._locks[partition]).locked():
                async with lock:
                    await self._give_back(partition, generation)

    async def take_event(self, event: pb.SessionEvent) -> None:
        """Follow what the gateway tells."""
        which = event.WhichOneof("event")
        if which == "partition_lost":
            partition = values.partition_from_proto(event.partition_lost.partition)
            if partition in self._known_lost:  # and it may be held again
                self._known_lost.discard(partition)
            else:
                self.state.remove(partition, from_proto(event.partition_lost.error))
        elif which == "partitions_changed":
            positions = values.offsets_from_proto(event.partitions_changed.partitions)
            self._hold_only({each: positions[each] for each in positions if each not in self._refused})
            self.membership.hasten()
        elif which == "offset_corrected" and self._accepts_losses:
            partition = values.partition_from_proto(event.offset_corrected.partition)
            await self._take_loss(wire.loss_from_proto(event.offset_corrected.loss, partition))

    async def _take_loss(self, loss: LossRecord) -> None:
        """Ask the policy about a loss that was passed over; what it raises, a fetch raises."""
        try:
            await self.tell_loss(loss)
        except BaseException as error:  # also sys.exit(), which the next fetch raises
            if is_cancelled():
                raise
            self._refused.add(loss.partition)
            self.state.remove(loss.partition, error if isinstance(error, TubeMQError) else None)
            self.state.tell(error)

    def _note_failure(self, error: TubeMQError) -> None:
        """Give the partition up that an error is about; the gateway has done so."""
        about = str(error.parameters.get("partition"))
        for partition in self.state.held():
            if str(partition) == about:
                self._known_lost.add(partition)
                self.state.remove(partition, error)
        self.membership.hasten()

    # Partitions.

    async def _refresh_layout(self) -> None:
        """Ask where the partitions are, unless that was asked less than ``layout_period_ms`` ago."""
        now = asyncio.get_running_loop().time()
        if now - self._layout_at >= self.state.config.consumer.layout_period_ms / 1000:
            self._layout = await self.questions.layout(self.state.subscription.topics)
            self._layout_at = now

    def _hold(self, partition: TopicPartition, offset: int) -> None:
        endpoint = self._layout.partitions.get(partition) or self.membership.endpoint
        self.state.add(partition, offset, endpoint)

    def _hold_only(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition in self.state.held():
            if partition not in positions:
                self.state.remove(partition)
        for partition, offset in positions.items():
            self._hold(partition, offset)

    async def _detach(self, partition: TopicPartition, generation: int) -> None:
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(partition)])
        await self.membership.ask(
            "DetachPartitions", request, pb.DetachPartitionsResponse, generation, more_s=_LONGER_S
        )

    async def _give_back(self, partition: TopicPartition, generation: int) -> None:
        """Ask the gateway to give up a partition whose loss was refused, if it still has it."""
        if partition in self._refused:
            with contextlib.suppress(TubeMQError):
                await self._detach(partition, generation)
            self._refused.discard(partition)

    @property
    def _join_s(self) -> float:
        return self.state.config.rpc_timeout_ms / 1000 + _LONGER_S

    def _filters(self) -> list[pb.TopicFilter]:
        types_of = self.state.subscription.message_types.items()
        return [
            pb.TopicFilter(topic=topic, message_types=sorted(types)) for topic, types in types_of if types
        ]


class RemoteGroupCore(RemoteCore):
    """A member of a group through gateways. After the loss of one it is a new member of its group."""

    is_member = True

    async def join(self, gateway: int) -> None:
        """Join the group; the partitions come with this answer, or with events."""
        subscription, start = self.state.subscription, None
        if subscription.start is not None:
            bound = subscription.start
            start = pb.SubscribeRequest.BoundStart(
                session_key=bound.session_key,
                source_count=bound.source_count,
                offsets=values.offsets_to_proto(bound.offsets),
                smallest=not bound.select_big,
            )
        request = pb.SubscribeRequest(
            topics=subscription.topics,
            filters=self._filters(),
            start=start,
            accept_losses=self._accepts_losses,
        )
        answer = await self._gateways.ask_at(
            gateway, "Subscribe", request, pb.SubscribeResponse, self._join_s
        )
        self._hold_only(values.offsets_from_proto(answer.partitions))

    def leave(self) -> None:
        """Hold nothing any more."""
        super().leave()
        self._hold_only({})

    async def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:  # noqa: ARG002
        if partition not in self.state.connected:
            raise not_held(partition)
        raise ConsumeError("TUBEMQ_SEEK_UNSUPPORTED", code=int(ErrCode.BAD_REQUEST), partition=partition)


class RemoteAssignedCore(RemoteCore, AssignedCoreBase):
    """An assigned consumer through gateways. After the loss of one it goes on where it confirmed."""

    is_member = False
    registered_at = None

    def __init__(self, setup: ConsumerSetup, gateways: Gateways, questions: Questions) -> None:
        """Reach no gateway; may be called in any thread."""
        super().__init__(setup, gateways, questions)
        self.node = setup.node
        self._not_attached: set[TopicPartition] = set()
        """What is held, but not at the gateway, which may take it later."""

    # What users ask for.

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics; which of them can be read now, ``connect`` tells.

        A gateway is asked at most every ``layout_period_ms``; in between, this is what it said last.
        """
        self.state.check_open()
        await self._refresh_layout()
        return dict.fromkeys(self._layout.partitions, True)

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        state = self.state
        states = {partition: state.state_of(partition) for partition in state.connected}
        return statuses(self.positions(), states, state.troubles, self._layout.partitions, ())

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """See ``AssignedCoreBase``; a gateway that is attaching it goes on, so this is carried out."""
        self.state.check_open()
        return await self.carry_out(self._connect(partition, offset), f"connecting {partition}")

    async def disconnect(self, partition: TopicPartition) -> bool:
        """See ``AssignedCoreBase``."""
        self.state.check_open()
        self.state.hold(partition)
        return await self.carry_out(self._disconnect(partition), f"disconnecting {partition}")

    async def _connect(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition:
        async def attach(generation: int) -> list[pb.AttachPartitionsResponse.Attached]:
            await self._give_back(partition, generation)
            return await self._attach({partition: offset}, generation)

        if partition not in self._layout.partitions:
            await self._refresh_layout()
        async with self._locks[partition]:
            (attached,) = await self._at_any(attach, f"connecting to {partition}")
            if attached.HasField("error"):
                raise from_proto(attached.error)
            self._hold(partition, attached.offset)
        self.membership.hasten()  # to hear what was lost, if something was
        return self.positions()[partition]

    async def _disconnect(self, partition: TopicPartition) -> bool:
        try:
            if partition not in self.state.connected:
                return False
            await self._wait_for_batch(partition)
            during = f"disconnecting from {partition}"
            async with self._locks[partition]:
                await self._at_any(lambda generation: self._detach(partition, generation), during)
                self.line.note_move(partition)
                return self.state.remove(partition)
        finally:
            await self.state.let_go([partition])

    async def _wait_for_batch(self, partition: TopicPartition) -> None:
        """Wait until the batch of a partition that is given up is confirmed, or has had its time."""
        state, entry = self.state, self.state.connected[partition]

        def out() -> str | None:
            state.check_open()
            return entry.out if state.connected.get(partition) is entry else None

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(state.config.consumer.rebalance_wait_ms / 1000):
                await state.changes.until(lambda: out() is None)
        if (context := out()) is not None and not state.config.consumer.rollback:
            # The gateway would take it back.
            try:
                await self.line.end_batch(context, consumed=True)
            except TubeMQError as error:
                logger.warning("a batch of %s comes again: %s", partition, error)

    async def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition; several moves of one follow each other."""
        if partition not in self.state.connected:
            raise not_held(partition)
        self.state.begin_move(partition)
        self.line.note_move(partition)
        offset: int | None = None
        try:
            async with self._locks[partition]:
                if partition not in self.state.connected:
                    raise not_held(partition)
                offset = await self._move(partition, target)
        except AwayError as error:  # the next gateway has it where it stood
            raise self.membership.away_error(f"moving {partition}", error) from error
        finally:
            await self.state.end_move(partition, offset)
        return ConsumedPosition(offset, None, time.time())

    async def _move(self, where: TopicPartition, target: int | Edge) -> int:
        """Detach a partition and attach it elsewhere; return where it stands."""
        if isinstance(target, Edge):
            asked = await self.questions.bounds(self._layout, [where.store_id])
            bounds = asked.complete()[where.store_id]
            target = bounds.earliest if target is Edge.EARLIEST else bounds.latest
        generation = await self.membership.joined()
        await self._detach(where, generation)
        try:
            (attached,) = await self._attach({where: target}, generation)
            if attached.HasField("error"):
                raise from_proto(attached.error)
        except (TubeMQError, AwayError):  # the next heartbeat attaches it where it stood
            self._not_attached.add(where)
            raise
        finally:
            self.membership.hasten()  # for that, or to hear what was lost
        return attached.offset

    # At a gateway.

    async def join(self, gateway: int) -> None:
        """Register, and take what is held again, from where it was confirmed."""
        offsets = self.committed()
        request = self._attach_request(offsets)
        answer = await self._gateways.ask_at(
            gateway, "AttachPartitions", request, pb.AttachPartitionsResponse, self._join_s
        )
        self.registered_at = time.time()
        self._note_attached(offsets, answer.partitions)

    async def repair(self, generation: int) -> None:
        """Give up what was refused, and try again to take what could not be attached."""
        await super().repair(generation)
        missing = self._not_attached.intersection(self.state.connected)
        if again := [partition for partition in missing if not self._locks[partition].locked()]:
            async with contextlib.AsyncExitStack() as locks:
                for partition in again:
                    await locks.enter_async_context(self._locks[partition])
                offsets = self.committed(again)
                self._note_attached(offsets, await self._attach(offsets, generation))

    def _note_attached(
        self, partitions: Iterable[TopicPartition], answers: Iterable[pb.AttachPartitionsResponse.Attached]
    ) -> None:
        """Note what became of partitions that are held."""
        for partition, attached in zip(partitions, answers, strict=False):
            self._not_attached.discard(partition)
            if attached.HasField("error"):
                error = from_proto(attached.error)
                if error.retriable:
                    self._not_attached.add(partition)
                    self.state.troubles[partition] = error
                else:
                    self.state.remove(partition, error)

    async def _attach(
        self, offsets: Mapping[TopicPartition, int | None], generation: int
    ) -> list[pb.AttachPartitionsResponse.Attached]:
        request = self._attach_request(offsets)
        answer = await self.membership.ask(
            "AttachPartitions", request, pb.AttachPartitionsResponse, generation, more_s=_LONGER_S
        )
        return list(answer.partitions)

    def _attach_request(self, offsets: Mapping[TopicPartition, int | None]) -> pb.AttachPartitionsRequest:
        """Return a request for some partitions; None: from where the group stands."""
        request = pb.AttachPartitionsRequest(
            topics=self.state.subscription.topics,
            filters=self._filters(),
            accept_losses=self._accepts_losses,
        )
        if self.node is not None:
            request.node.source_count, request.node.node_id = self.node.source_count, self.node.node_id
        for partition, offset in offsets.items():
            request.partitions.add(partition=values.partition_to_proto(partition), offset=offset)
        return request

    async def _at_any(self, ask: Callable[[int], Awaitable[Result]], during: str) -> Result:
        """Return the result of a call in this generation, or in the next one if this one ends."""
        deadline = Deadline.after_ms(1000 * self._gateways.patience_s)
        while True:
            self.state.check_open()
            try:
                return await ask(await self.membership.joined())
            except AwayError as error:
                if deadline.expired:
                    raise self.membership.away_error(during, error) from error
            await asyncio.sleep(_LOOK_S)
