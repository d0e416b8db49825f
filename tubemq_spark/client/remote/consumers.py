"""Group consumers and assigned consumers that go through gateways; for users, they are the same classes.

What a consumer does is done at a gateway, by the same engine: heartbeats to masters and brokers, leases,
flow control, positions. Here is its session (``link``), what was fetched and not confirmed (``fetching``),
and what the gateway tells (``upkeep``). The way of a batch to its user is that of every consumer
(``client/consumer/turns.py``).
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeVar, cast

from google.protobuf.message import Message

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer, statuses
from tubemq_spark.client.consumer.callbacks import Callbacks, OnChange
from tubemq_spark.client.consumer.consumer import Consumer
from tubemq_spark.client.consumer.group.consumer import GroupConsumer
from tubemq_spark.client.consumer.questions import pass_over
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.values import (
    ConsumedPosition,
    ConsumeStatus,
    PartitionState,
    PartitionStatus,
)
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.connections import Gateways
from tubemq_spark.client.remote.fetching import RemoteFetching
from tubemq_spark.client.remote.link import Link
from tubemq_spark.client.remote.queries import Queries
from tubemq_spark.client.remote.ranges import read_remote_range
from tubemq_spark.client.remote.upkeep import Partitions, RemoteUpkeep
from tubemq_spark.client.steps import Blocking, Steps, run, wait_for
from tubemq_spark.client.subscription import Node, Subscription
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import (
    Endpoint,
    OffsetRange,
    RangeRequest,
    Route,
    StoreBounds,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import SLEEP
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import from_proto

Answer = TypeVar("Answer", bound=Message)

_LOOK_S: Final = 0.1
_LONGER_S: Final = 30.0
"""What registering at masters and brokers may take beyond asking one of them."""


class _Parts:
    """What both kinds of consumers have; it does not keep the consumer."""

    def __init__(
        self,
        state: ConsumerState,
        fetching: RemoteFetching,
        gateways: Gateways,
        on_loss: LossPolicy,
        join: "Callable[[_Parts, int], Steps[None]]",
        more: "Callable[[_Parts, int], Steps[None]]",
    ) -> None:
        self.state = state
        self.fetching = fetching
        self.gateways = gateways
        self.accepts_losses = on_loss is not fail_on_loss
        self.layout = TopicsLayout({}, 0)
        self.partitions = Partitions(state, self._endpoint_of)
        self.link = fetching.link = Link(gateways, lambda gateway: join(self, gateway), self._lost)
        self.upkeep = RemoteUpkeep(
            state, self.link, fetching, self.partitions, on_loss, lambda stay: more(self, stay)
        )
        fetching.on_news = self.upkeep.hasten
        fetching.on_lost = self.upkeep.lose
        self.queries = Queries(gateways)
        self._layout_at: float | None = None
        self.keeps_partitions = False
        """Whether they are still those of the consumer when its gateway was lost."""
        state.client_id = gateways.session.client_id

    def open(self) -> None:
        """Join at the first gateway that can serve; begin to keep what is held.

        Raises:
            TubeMQError: as ``Consumer.open``.
        """

        def join(gateway: int) -> Steps[None]:
            return self.link.join_at(gateway)

        try:
            if self.keeps_partitions:  # for members, a master would ask for no layout under this group
                self.refresh_layout()
            run(self.gateways.with_any(join, "registering a consumer", self.gateways.patience_s))
        except BaseException:
            self.gateways.close(0)
            raise
        self.state.life = Life.OPEN
        self.upkeep.start()

    def refresh_layout(self) -> None:
        """Ask where the partitions are, unless that was asked less than ``layout_period_ms`` ago.

        Raises:
            TubeMQError: no gateway answered, or TubeMQ refused.
        """
        period_s = self.state.config.consumer.layout_period_ms / 1000
        if self._layout_at is None or time.monotonic() - self._layout_at >= period_s:
            self.layout = self.queries.layout(self.state.subscription.topics)
            self._layout_at = time.monotonic()

    def ask(self, name: str, request: Message, answer: type[Answer]) -> Steps[Answer]:
        """Call the gateway where the consumer is; it may have to register at brokers."""
        return self.link.ask(name, request, answer, self.timeout_s)

    @property
    def timeout_s(self) -> float:
        """How long registering at masters and brokers may take."""
        return self.state.config.rpc_timeout_ms / 1000 + _LONGER_S

    def call(self, name: str, request: Message, answer: type[Answer], during: str) -> Answer:
        """Call in this thread; where the consumer is, or at the next gateway when that is lost.

        Raises:
            TubeMQConnectionError: no gateway could serve it.
            TubeMQError: that of TubeMQ.
        """
        deadline = Deadline.after_ms(round(1000 * self.gateways.patience_s))
        while True:
            self.state.check_open()
            try:
                return run(self.ask(name, request, answer))
            except AwayError as error:
                if deadline.expired:
                    raise TubeMQConnectionError(
                        "TUBEMQ_GATEWAY_AWAY",
                        during=during,
                        tried=self.gateways.tried,
                        cause=str(error).rstrip("."),
                    ) from error
                time.sleep(_LOOK_S)

    def _endpoint_of(self, partition: TopicPartition) -> Endpoint:
        return self.layout.partitions.get(partition) or self.link.endpoint

    def _lost(self) -> None:
        self.fetching.forget_batches()
        if not self.keeps_partitions:
            for partition in self.state.held():
                self.partitions.remove(partition)
        self.upkeep.hasten()


def _nothing_more(_parts: _Parts, _stay: int) -> Steps[None]:
    yield from ()


class RemoteGroupConsumer(GroupConsumer):
    """A group consumer through gateways. After the loss of one it is a new member of its group."""

    def __init__(
        self,
        config: ClientConfig,
        gateways: Gateways,
        subscription: Subscription,
        *,
        on_loss: LossPolicy = fail_on_loss,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        queries: Queries | None = None,
    ) -> None:
        """Reach no gateway; ``TubeMQClient.group_consumer`` makes consumers.

        Args:
            config: the settings.
            gateways: those of this consumer alone.
            subscription: the topics, with the message types that are wanted, and where a bound group starts.
            on_loss: what to do about records that are gone or damaged. It is told when they were passed over.
            on_assigned: told of partitions that have come.
            on_revoked: told of partitions that have gone.
            queries: asks about logs, under another group; by default ``gateways``, while no member is there.
        """
        Consumer.__init__(self, config, subscription, RemoteFetching)
        fetching = cast("RemoteFetching", self.fetching)
        self._parts = _Parts(self._state, fetching, gateways, on_loss, _subscribe, _nothing_more)
        self._parts.queries = queries or self._parts.queries
        self._parts.partitions.callbacks = Callbacks(self._state, on_assigned, on_revoked, gives_back=False)
        self._upkeep = self._parts.upkeep
        self._questions = GatewayQuestions(self._parts.queries)

    @property
    def consume_status(self) -> ConsumeStatus:
        """Whether messages can be had now, and if not, why."""
        self.check_process()
        return _status(self._state, self._parts.fetching)

    def _start(self) -> None:
        self._parts.open()


def _subscribe(parts: _Parts, gateway: int) -> Steps[None]:
    """Join the group; the partitions come with this answer, or with events."""
    subscription, start = parts.state.subscription, None
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
        accept_losses=parts.accepts_losses,
    )
    answer = yield from parts.gateways.ask_at(
        gateway, "Subscribe", request, pb.SubscribeResponse, parts.timeout_s
    )
    parts.partitions.replace(values.offsets_from_proto(answer.partitions))


class RemoteAssignedConsumer(AssignedConsumer):
    """An assigned consumer through gateways. After the loss of one it goes on where it confirmed."""

    def __init__(
        self,
        config: ClientConfig,
        gateways: Gateways,
        subscription: Subscription,
        *,
        node: Node | None = None,
        on_loss: LossPolicy = fail_on_loss,
        queries: Queries | None = None,
    ) -> None:
        """Reach no gateway; ``TubeMQClient.assigned_consumer`` makes consumers.

        Args:
            config: the settings.
            gateways: those of this consumer alone.
            subscription: the topics, with the message types that are wanted.
            node: which of how many consumers of the group this one is.
            on_loss: what to do about records that are gone or damaged. It is told when they were passed over.
            queries: tells where partitions are; by default ``gateways``, under the consumer's group.
        """
        Consumer.__init__(self, config, subscription, RemoteFetching)
        self._node = node
        fetching = cast("RemoteFetching", self.fetching)
        self._attaching = attaching = _Attaching(node)
        self._parts = _Parts(self._state, fetching, gateways, on_loss, attaching.join, attaching.attach_rest)
        self._parts.keeps_partitions = True
        self._parts.queries = queries or self._parts.queries
        self._upkeep = self._parts.upkeep
        self._questions = GatewayQuestions(self._parts.queries)
        # Not a method: threads hold the parts, and must not hold a consumer that its user has dropped.
        fetching.move = functools.partial(attaching.moving, self._parts)

    @property
    def consume_status(self) -> ConsumeStatus:
        """Whether messages can be had now, and if not, why."""
        self.check_process()
        return _status(self._state, self._parts.fetching)

    @property
    def registered_at(self) -> float | None:
        """When a gateway last registered this consumer, in seconds since 1970; None: none has."""
        return self._attaching.registered_at

    def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics; which of them can be read now, ``connect`` tells.

        A gateway is asked at most every ``layout_period_ms``; in between, this is what it said last.

        Raises:
            TubeMQError: no gateway answered, or TubeMQ refused.
            ConsumeError: the consumer is not open.
        """
        self.check_open()
        self._parts.refresh_layout()
        return dict.fromkeys(self._parts.layout.partitions, True)

    def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition; see ``AssignedConsumer.connect``."""
        self.check_open()
        parts = self._parts
        if partition not in parts.layout.partitions:
            parts.refresh_layout()
        stands = parts.call(
            "AttachPartitions",
            self._attaching.request(parts, {partition: offset}),
            pb.AttachPartitionsResponse,
            f"connecting to {partition}",
        ).partitions[0]
        if stands.HasField("error"):
            raise from_proto(stands.error)
        parts.partitions.add(partition, stands.offset)
        parts.upkeep.hasten()  # to hear what was lost, if something was
        with self._state.guard:
            position = self._state.cache.positions().get(partition)
        return position or ConsumedPosition(stands.offset, None, time.time())

    def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up; see ``AssignedConsumer.disconnect``."""
        self.check_open()
        state = self._state
        if partition not in state.held():
            return False
        deadline = Deadline.after_ms(state.config.consumer.rebalance_wait_ms)
        with state.changed:
            state.cache.hold_back([partition])
            while state.cache.state(partition) is PartitionState.IN_USE and not deadline.expired:
                state.changed.wait(min(_LOOK_S, deadline.remaining()))
                state.check_open()
        if not state.config.consumer.rollback:  # what is out counts as consumed; the gateway takes it back
            self._parts.fetching.confirm_out(partition)
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(partition)])
        during = f"disconnecting from {partition}"
        self._parts.call("DetachPartitions", request, pb.DetachPartitionsResponse, during)
        return self._parts.partitions.remove(partition)

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        self.check_process()
        return statuses(self._state, self._parts.layout.partitions, ())

    # Inside.

    def _start(self) -> None:
        self._parts.open()


class _Attaching:
    """How an assigned consumer takes its partitions, at one gateway after the other."""

    def __init__(self, node: Node | None) -> None:
        self.registered_at: float | None = None
        self._node = node
        self._rest: set[TopicPartition] = set()
        """What could not be attached now, but may be later."""

    def request(
        self, parts: _Parts, offsets: Mapping[TopicPartition, int | None]
    ) -> pb.AttachPartitionsRequest:
        """Return a request for some partitions; None: from where the group stands."""
        subscription, node = parts.state.subscription, self._node
        return pb.AttachPartitionsRequest(
            topics=subscription.topics,
            filters=_filters(subscription),
            accept_losses=parts.accepts_losses,
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

    def join(self, parts: _Parts, gateway: int) -> Steps[None]:
        """Register, and take what is held again, from where it was confirmed."""
        with parts.state.guard:
            offsets = {partition: at.offset for partition, at in parts.state.cache.positions().items()}
        answer = yield from parts.gateways.ask_at(
            gateway,
            "AttachPartitions",
            self.request(parts, offsets),
            pb.AttachPartitionsResponse,
            parts.timeout_s,
        )
        self.registered_at = time.time()
        self._rest = set()
        self._take(parts, offsets, answer)

    def moving(self, parts: _Parts, where: TopicPartition, target: int | Edge) -> Steps[int]:
        """Detach a partition and attach it elsewhere; return where it stands.

        Raises:
            AwayError: the gateway was lost; the next one has the partition where it stood.
            TubeMQError: the gateway has refused. The next heartbeat attaches it where it stood.
        """
        if isinstance(target, Edge):
            target = yield from wait_for(Blocking(functools.partial(_edge, parts.queries, where, target)))
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(where)])
        yield from parts.ask("DetachPartitions", request, pb.DetachPartitionsResponse)
        stay = parts.link.stay
        attaching = self.request(parts, {where: target})
        try:
            answer = yield from parts.link.ask(
                "AttachPartitions", attaching, pb.AttachPartitionsResponse, parts.timeout_s, stay
            )
            if answer.partitions[0].HasField("error"):
                raise from_proto(answer.partitions[0].error)
        except TubeMQError:
            self._rest.add(where)
            raise
        finally:
            parts.upkeep.hasten()  # to hear what was lost, or to attach it again
        return answer.partitions[0].offset

    def attach_rest(self, parts: _Parts, stay: int) -> Steps[None]:
        """Try again to take what could not be attached."""
        with parts.state.guard:
            positions = parts.state.cache.positions()
        rest = {partition: positions[partition].offset for partition in self._rest if partition in positions}
        self._rest = set()
        if rest:
            request = self.request(parts, rest)
            answer = yield from parts.link.ask(
                "AttachPartitions", request, pb.AttachPartitionsResponse, parts.timeout_s, stay
            )
            self._take(parts, rest, answer)

    def _take(
        self, parts: _Parts, offsets: Mapping[TopicPartition, int], answer: pb.AttachPartitionsResponse
    ) -> None:
        for partition, attached in zip(offsets, answer.partitions, strict=False):
            if not attached.HasField("error"):
                continue
            error = from_proto(attached.error)
            if error.retriable:
                self._rest.add(partition)
                with parts.state.guard:
                    parts.state.troubles[partition] = error
            else:
                parts.partitions.remove(partition, error)


class GatewayQuestions:
    """Asks gateways about logs."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def bounds(self, stores: Mapping[StoreId, Endpoint]) -> StoreBounds:
        """See ``Questions``."""
        return self._queries.bounds(list(stores))

    def peek(
        self, endpoint: Endpoint, records: OffsetRange
    ) -> AbstractContextManager[Iterator[FetchedBatch]]:
        """See ``Questions``."""
        request = RangeRequest(records, Route(endpoint, 0), own_store=False)
        return contextlib.closing(read_remote_range(self._queries.gateways, request, pass_over, SLEEP))


def _edge(queries: Queries, where: TopicPartition, edge: Edge) -> int:
    bounds = queries.bounds([where.store_id]).complete()[where.store_id]
    return bounds.earliest if edge is Edge.EARLIEST else bounds.latest


def _filters(subscription: Subscription) -> list[pb.TopicFilter]:
    return [
        pb.TopicFilter(topic=topic, message_types=sorted(types))
        for topic, types in subscription.message_types.items()
        if types
    ]


def _status(state: ConsumerState, fetching: RemoteFetching) -> ConsumeStatus:
    with state.guard:
        status = state.cache.status()
        # What is idle here may wait at its end at the gateway.
        is_idle = status is ConsumeStatus.READY and not state.cache.being_fetched()
        return ConsumeStatus.ALL_RESTING if is_idle and fetching.found_nothing else status
