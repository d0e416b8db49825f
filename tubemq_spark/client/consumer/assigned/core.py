"""A consumer of the partitions that its user names, as coroutines; see ``consumer``."""

import abc
from collections.abc import Collection, Iterable, Mapping

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.connecting import Connecting, is_subscribable
from tubemq_spark.client.consumer.assigned.session import AssignedSession, share_of
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.upkeep import Upkeep
from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.consumer.values import ConsumedPosition, PartitionState, PartitionStatus
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.subscription import Node, Subscription
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss


class AssignedCoreBase(ConsumerCore):
    """An assigned consumer, directly or through gateways."""

    node: Node | None = None
    """Which of how many consumers of the group this one is, if that was given."""

    @property
    @abc.abstractmethod
    def registered_at(self) -> float | None:
        """When a master or a gateway last accepted this consumer, in seconds since 1970; None: not yet."""

    @abc.abstractmethod
    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now."""

    async def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of this consumer's node that can be read now; without a node, all."""
        subscribable = await self.partitions()
        shared = subscribable if self.node is None else share_of(subscribable, self.node)
        return tuple(partition for partition in shared if subscribable[partition])

    @abc.abstractmethod
    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition; when this is cancelled, it is given back."""

    @abc.abstractmethod
    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up; that is carried out also when its caller waits no more.

        Nothing more of it is handed out from now on.
        """

    @abc.abstractmethod
    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""


class AssignedCore(EngineCore, AssignedCoreBase):
    """Holds the partitions that its user connects it to."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        subscription: Subscription,
        user_code: UserCode,
        *,
        questions: Questions,
        node: Node | None = None,
        on_loss: LossPolicy = fail_on_loss,
        follow_resets: bool = False,
        client_id: str | None = None,
    ) -> None:
        """Reach no server; may be called in any thread.

        A consumer with the ``client_id`` of one that holds a partition takes that over. ``follow_resets``
        says whether partitions go behind their last messages when an administrator wants the group to.
        """
        super().__init__(config, subscription, user_code, on_loss)
        self.node = node
        state = self.state
        self._session = session = AssignedSession(
            config,
            connections,
            subscription,
            self.control,
            node=node,
            partitions=state.held,
            on_news=lambda: self._connecting.follow_master(),  # noqa: PLW0108 (it is made below)
            client_id=client_id,
        )
        reader = Reader(config, connections, session, self.control, self.tell_loss, session.endpoint_of)
        self.questions = questions
        self._connecting = Connecting(state, self.tasks, reader, session, follow_resets=follow_resets)
        self._leases = Upkeep(state, reader)
        state.client_id = session.client_id

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: not yet."""
        return self._session.registered_at

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to fetch until the user connects a partition."""
        return not self.state.connected

    async def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now."""
        self.state.check_open()
        await self._session.refresh_layout()
        layout = self._session.known_layout
        return {partition: is_subscribable(layout, partition) for partition in layout.partitions}

    async def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition; when this is cancelled, it is given back."""
        self.state.check_open()
        if partition not in self._session.known_layout.partitions:
            await self._session.refresh_layout()
        return await self._connecting.connect(partition, offset)

    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up; that is carried out also when its caller waits no more.

        Nothing more of it is handed out from now on.
        """
        self.state.check_open()
        self.state.cache.hold_back([partition])
        return await self.carry_out(self._connecting.disconnect(partition), f"disconnecting {partition}")

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        layout = self._session.known_layout
        positions = self.positions()
        states = {partition: self.state.cache.state(partition) for partition in positions}
        troubles = self.state.troubles
        return statuses(positions, states, troubles, layout.partitions, layout.not_subscribable)

    @property
    def _visit_token(self) -> int:
        return self._session.visit_token

    async def _start(self) -> None:
        try:
            await self._session.open()
            await self._session.refresh_layout()
        except BaseException:
            await self._session.close()
            raise

    async def _maintain(self) -> None:
        await self._leases.run()

    async def _give_up(self) -> None:
        self._session.stop_heartbeats()
        await self._connecting.end()

    async def _end(self) -> None:
        await self._session.close()


def statuses(
    positions: Mapping[TopicPartition, ConsumedPosition],
    states: Mapping[TopicPartition, PartitionState | None],
    troubles: Mapping[TopicPartition, TubeMQError],
    partitions: Iterable[TopicPartition],
    not_subscribable: Collection[TopicPartition],
) -> dict[TopicPartition, PartitionStatus]:
    """Return what is known about each partition."""
    listed = set(partitions)
    by_partition: dict[TopicPartition, PartitionStatus] = {}
    for partition in sorted({*listed, *positions, *troubles}):
        position = positions.get(partition)
        by_partition[partition] = PartitionStatus(
            subscribable=partition in listed and partition not in not_subscribable,
            connected=position is not None,
            state=states.get(partition),
            offset=None if position is None else position.offset,
            latest=None if position is None else position.latest,
            heard_at=None if position is None else position.heard_at,
            trouble=troubles.get(partition),
        )
    return by_partition
