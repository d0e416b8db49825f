"""Group consumers and assigned consumers that go through gateways; for users, they are the same classes.

What a consumer does is done at a gateway, by the same engine: heartbeats to masters and brokers, leases,
flow control, positions. Here is its session (``link``), what was fetched and not confirmed (``fetching``),
and what the gateway tells (``upkeep``). The way of a batch to its user is that of every consumer
(``client/consumer/line.py``).
"""

import abc
import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Final, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase, statuses
from tubemq_spark.client.consumer.callbacks import Callbacks, OnChange
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.consumer.values import (
    ConsumedPosition,
    ConsumeStatus,
    PartitionState,
    PartitionStatus,
)
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.fetching import RemoteFetching
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.link import Link
from tubemq_spark.client.remote.upkeep import Partitions, RemoteUpkeep
from tubemq_spark.client.subscription import Node, Subscription
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import (
    Endpoint,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import from_proto

Answer = TypeVar("Answer", bound=Message)

_LOOK_S: Final = 0.1
"""How long a call waits that is made again at the next gateway."""
_LONGER_S: Final = 30.0
"""What registering at masters and brokers may take beyond asking one of them."""
_CLOSE_S: Final = 3.0
"""How long batches may take to be confirmed while their consumer closes; then its gateway, to close it."""


class RemoteCore(ConsumerCore):
    """What both kinds of consumers have."""

    fetching: RemoteFetching
    _keeps_partitions = False
    """Whether they are still those of the consumer when its gateway was lost."""

    def __init__(
        self,
        config: ClientConfig,
        gateways: Gateways,
        subscription: Subscription,
        user_code: UserCode,
        *,
        on_loss: LossPolicy,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        questions: Questions,
    ) -> None:
        super().__init__(config, subscription, user_code, on_loss, RemoteFetching)
        state, fetching = self.state, self.fetching
        callbacks = Callbacks(state, self.tasks, user_code, on_assigned, on_revoked, gives_back=False)
        self.link = Link(gateways, self.tasks, self._join, self._lost)
        """Where the consumer is."""
        self._gateways = gateways
        self._accepts_losses = on_loss is not fail_on_loss
        self._partitions = Partitions(state, callbacks, self._endpoint_of)
        tell_loss = self.tell_loss if self._accepts_losses else None
        self._heartbeats = RemoteUpkeep(
            state, self.link, fetching, self._partitions, tell_loss, self._do_more
        )
        fetching.link, fetching.tasks = self.link, self.tasks
        fetching.on_news = self._heartbeats.hasten
        fetching.on_lost = self._heartbeats.lose
        self.questions = questions
        self._layout = TopicsLayout({}, 0)
        self._layout_at: float | None = None
        state.client_id = gateways.session.client_id

    def consume_status(self) -> ConsumeStatus:
        """Return whether messages can be had now, and if not, why."""
        status = super().consume_status()
        # What is idle here may wait at its end at the gateway.
        is_idle = status is ConsumeStatus.READY and not self.state.cache.being_fetched()
        return ConsumeStatus.ALL_RESTING if is_idle and self.fetching.found_nothing else status

    # Life.

    async def _start(self) -> None:
        """Join at the first gateway that can serve."""
        try:
            if self._keeps_partitions:  # for members, a master would ask for no layout under this group
                await self._refresh_layout()
            await self._gateways.with_any(
                self.link.join_at, "registering a consumer", self._gateways.patience_s
            )
        except BaseException:
            await self._gateways.closing(0)
            raise

    async def _maintain(self) -> None:
        await self._heartbeats.run()

    async def _give_up(self) -> None:
        """Leave the gateway, which gives back what is held; then tell the user."""
        self.link.left = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.state.changes.until(lambda: not self.fetching.commits)
        try:
            await self._end()
        finally:
            for partition in self.state.held():
                self._partitions.remove(partition)
            await self._partitions.callbacks.settled

    async def _end(self) -> None:
        self._gateways.refuse_calls()
        await self._gateways.closing(_CLOSE_S)

    # At a gateway.

    @abc.abstractmethod
    async def _join(self, gateway: int) -> None:
        """Register at a gateway, where the session is open."""

    async def _do_more(self, stay: int) -> None:
        """Do what else is to be done with each heartbeat."""

    def _lost(self) -> None:
        self.fetching.forget_batches()
        if not self._keeps_partitions:
            for partition in self.state.held():
                self._partitions.remove(partition)
        self._heartbeats.hasten()

    def _endpoint_of(self, partition: TopicPartition) -> Endpoint:
        return self._layout.partitions.get(partition) or self.link.endpoint

    async def _refresh_layout(self) -> None:
        """Ask where the partitions are, unless that was asked less than ``layout_period_ms`` ago.

        Raises:
            TubeMQError: no gateway answered, or TubeMQ refused.
        """
        period_s = self.state.config.consumer.layout_period_ms / 1000
        if self._layout_at is None or time.monotonic() - self._layout_at >= period_s:
            self._layout = await self.questions.layout(self.state.subscription.topics)
            self._layout_at = time.monotonic()

    @property
    def _timeout_s(self) -> float:
        """How long registering at masters and brokers may take."""
        return self.state.config.rpc_timeout_ms / 1000 + _LONGER_S

    async def _ask(
        self, name: str, request: Message, answer: type[Answer], stay: int | None = None
    ) -> Answer:
        """Call the gateway where the consumer is; it may have to register at brokers."""
        return await self.link.ask(name, request, answer, self._timeout_s, stay)

    async def _call(self, name: str, request: Message, answer: type[Answer], during: str) -> Answer:
        """Call where the consumer is, or at the next gateway when that is lost.

        Raises:
            TubeMQConnectionError: no gateway could serve it.
            TubeMQError: that of TubeMQ.
        """
        deadline = Deadline.after_ms(round(1000 * self._gateways.patience_s))
        while True:
            self.state.check_open()
            try:
                return await self._ask(name, request, answer)
            except AwayError as error:
                if deadline.expired:
                    raise TubeMQConnectionError(
                        "TUBEMQ_GATEWAY_AWAY",
                        during=during,
                        tried=self._gateways.tried,
                        cause=str(error).rstrip("."),
                    ) from error
            await asyncio.sleep(_LOOK_S)


class RemoteGroupCore(RemoteCore):
    """A member of a group through gateways. After the loss of one it is a new member of its group."""

    def __init__(
        self,
        config: ClientConfig,
        gateways: Gateways,
        subscription: Subscription,
        user_code: UserCode,
        *,
        questions: Questions,
        on_loss: LossPolicy = fail_on_loss,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
    ) -> None:
        """Reach no gateway; may be called in any thread.

        Args:
            config: the settings.
            gateways: those of this consumer alone.
            subscription: the topics, with the message types that are wanted, and where a bound group starts.
            user_code: where functions of the user are called.
            questions: how to ask about the logs of partitions, and where these are.
            on_loss: what to do about records that are gone or damaged. It is told when they were passed over.
            on_assigned: told of partitions that have come.
            on_revoked: told of partitions that have gone.
        """
        super().__init__(
            config,
            gateways,
            subscription,
            user_code,
            on_loss=on_loss,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            questions=questions,
        )

    async def _join(self, gateway: int) -> None:
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
            filters=_filters(subscription),
            start=start,
            accept_losses=self._accepts_losses,
        )
        answer = await self._gateways.ask_at(
            gateway, "Subscribe", request, pb.SubscribeResponse, self._timeout_s
        )
        self._partitions.replace(values.offsets_from_proto(answer.partitions))


class RemoteAssignedCore(RemoteCore, AssignedCoreBase):
    """An assigned consumer through gateways. After the loss of one it goes on where it confirmed."""

    _keeps_partitions = True

    def __init__(
        self,
        config: ClientConfig,
        gateways: Gateways,
        subscription: Subscription,
        user_code: UserCode,
        *,
        questions: Questions,
        node: Node | None = None,
        on_loss: LossPolicy = fail_on_loss,
    ) -> None:
        """Reach no gateway; may be called in any thread.

        Args:
            config: the settings.
            gateways: those of this consumer alone.
            subscription: the topics, with the message types that are wanted.
            user_code: where functions of the user are called.
            questions: how to ask about the logs of partitions, and where these are.
            node: which of how many consumers of the group this one is.
            on_loss: what to do about records that are gone or damaged. It is told when they were passed over.
        """
        super().__init__(config, gateways, subscription, user_code, on_loss=on_loss, questions=questions)
        self.node = node
        self.fetching.move = self._move
        self._registered_at: float | None = None
        self._rest: set[TopicPartition] = set()
        """What could not be attached now, but may be later."""

    @property
    def registered_at(self) -> float | None:
        """When a gateway last registered this consumer, in seconds since 1970; None: none has."""
        return self._registered_at

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics; which of them can be read now, ``connect`` tells.

        A gateway is asked at most every ``layout_period_ms``; in between, this is what it said last.

        Raises:
            TubeMQError: no gateway answered, or TubeMQ refused.
            ConsumeError: the consumer is not open.
        """
        self.state.check_open()
        await self._refresh_layout()
        return dict.fromkeys(self._layout.partitions, True)

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """See ``AssignedCoreBase``; a gateway that is attaching it goes on, so this is carried out."""
        self.state.check_open()
        return await self.carry_out(self._connect(partition, offset), f"connecting {partition}")

    async def disconnect(self, partition: TopicPartition) -> bool:
        """See ``AssignedCoreBase``."""
        self.state.check_open()
        self.state.cache.hold_back([partition])
        return await self.carry_out(self._disconnect(partition), f"disconnecting {partition}")

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        return statuses(self.state, self._layout.partitions, ())

    async def _connect(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition:
        if partition not in self._layout.partitions:
            await self._refresh_layout()
        answer = await self._call(
            "AttachPartitions",
            self._attach_request({partition: offset}),
            pb.AttachPartitionsResponse,
            f"connecting to {partition}",
        )
        stands = answer.partitions[0]
        if stands.HasField("error"):
            raise from_proto(stands.error)
        self._partitions.add(partition, stands.offset)
        self._heartbeats.hasten()  # to hear what was lost, if something was
        position = self.state.cache.positions().get(partition)
        return position or ConsumedPosition(stands.offset, None, time.time())

    async def _disconnect(self, partition: TopicPartition) -> bool:
        state = self.state
        if partition not in state.connected:
            return False

        def is_not_out() -> bool:
            state.check_open()
            return state.cache.state(partition) is not PartitionState.IN_USE

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(state.config.consumer.rebalance_wait_ms / 1000):
                await state.changes.until(is_not_out)
        if not state.config.consumer.rollback:  # what is out counts as consumed; the gateway takes it back
            await self.fetching.confirm_out(partition)
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(partition)])
        during = f"disconnecting from {partition}"
        await self._call("DetachPartitions", request, pb.DetachPartitionsResponse, during)
        return self._partitions.remove(partition)

    async def _move(self, where: TopicPartition, target: int | Edge) -> int:
        """Detach a partition and attach it elsewhere; return where it stands.

        Raises:
            AwayError: the gateway was lost; the next one has the partition where it stood.
            TubeMQError: the gateway has refused. The next heartbeat attaches it where it stood.
        """
        if isinstance(target, Edge):
            asked = await self.questions.bounds(self._layout, [where.store_id])
            bounds = asked.complete()[where.store_id]
            target = bounds.earliest if target is Edge.EARLIEST else bounds.latest
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(where)])
        await self._ask("DetachPartitions", request, pb.DetachPartitionsResponse)
        stay = self.link.stay
        attaching = self._attach_request({where: target})
        try:
            answer = await self._ask("AttachPartitions", attaching, pb.AttachPartitionsResponse, stay)
            if answer.partitions[0].HasField("error"):
                raise from_proto(answer.partitions[0].error)
        except TubeMQError:
            self._rest.add(where)
            raise
        finally:
            self._heartbeats.hasten()  # to hear what was lost, or to attach it again
        return answer.partitions[0].offset

    def _attach_request(self, offsets: Mapping[TopicPartition, int | None]) -> pb.AttachPartitionsRequest:
        """Return a request for some partitions; None: from where the group stands."""
        subscription, node = self.state.subscription, self.node
        return pb.AttachPartitionsRequest(
            topics=subscription.topics,
            filters=_filters(subscription),
            accept_losses=self._accepts_losses,
            node=None
            if node is None
            else pb.AttachPartitionsRequest.Node(source_count=node.source_count, node_id=node.node_id),
            partitions=[
                pb.AttachPartitionsRequest.Wanted(
                    partition=values.partition_to_proto(partition), offset=offset
                )
                for partition, offset in offsets.items()
            ],
        )

    async def _join(self, gateway: int) -> None:
        """Register, and take what is held again, from where it was confirmed."""
        offsets = {partition: at.offset for partition, at in self.positions().items()}
        answer = await self._gateways.ask_at(
            gateway,
            "AttachPartitions",
            self._attach_request(offsets),
            pb.AttachPartitionsResponse,
            self._timeout_s,
        )
        self._registered_at = time.time()
        self._rest = set()
        self._take(offsets, answer)

    async def _do_more(self, stay: int) -> None:
        """Try again to take what could not be attached."""
        positions = self.positions()
        rest = {partition: positions[partition].offset for partition in self._rest if partition in positions}
        self._rest = set()
        if rest:
            request = self._attach_request(rest)
            self._take(rest, await self._ask("AttachPartitions", request, pb.AttachPartitionsResponse, stay))

    def _take(self, offsets: Mapping[TopicPartition, int], answer: pb.AttachPartitionsResponse) -> None:
        for partition, attached in zip(offsets, answer.partitions, strict=False):
            if not attached.HasField("error"):
                continue
            error = from_proto(attached.error)
            if error.retriable:
                self._rest.add(partition)
                self.state.troubles[partition] = error
            else:
                self._partitions.remove(partition, error)


def _filters(subscription: Subscription) -> list[pb.TopicFilter]:
    return [
        pb.TopicFilter(topic=topic, message_types=sorted(types))
        for topic, types in subscription.message_types.items()
        if types
    ]
