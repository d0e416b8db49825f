"""A consumer that reads the partitions its user names, from the offsets its user names."""

from collections.abc import Collection, Iterable
from concurrent.futures import Future

from tubemq_spark.client.background import outcome_of
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.connecting import Connecting, is_subscribable
from tubemq_spark.client.consumer.assigned.session import AssignedSession, share_of
from tubemq_spark.client.consumer.consumer import Consumer
from tubemq_spark.client.consumer.partition import Reader
from tubemq_spark.client.consumer.questions import BrokerQuestions
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.upkeep import Upkeep
from tubemq_spark.client.consumer.values import ConsumedPosition, PartitionStatus
from tubemq_spark.client.subscription import Node, Subscription
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import SLEEP, Wait
from tubemq_spark.offsets.loss import LossPolicy, fail_on_loss


class AssignedConsumer(Consumer):
    """Reads the partitions that its user connects it to; threads may share it.

    The master gives no partition to this consumer and takes none away: it says which there are
    (``partitions``), and the user decides (``connect``, ``disconnect``), for example by number (``share``).
    Batches come from all connected partitions in turn (``fetch``), one at a time from each, and are confirmed
    (``confirm``).

    **At least once**: what was not confirmed comes again, to the consumer that connects next without an
    offset. Offsets kept elsewhere, with the results, make that exactly once: see ``Confirmed.offset``.

    **Errors** of one partition do not hold up the others. A partition whose broker is away for a moment comes
    back by itself. One that the master does not call readable any more, or that another consumer has taken,
    is given up, and ``status`` says why.

    As a context manager it opens and closes itself.
    """

    kind = "assigned consumer"

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        subscription: Subscription,
        *,
        node: Node | None = None,
        on_loss: LossPolicy = fail_on_loss,
        follow_resets: bool = False,
        wait: Wait = SLEEP,
        client_id: str | None = None,
    ) -> None:
        """Reach no server; ``TubeMQClient.assigned_consumer`` makes consumers.

        Args:
            config: the settings.
            pool: the channels.
            subscription: the topics, with the message types that are wanted.
            node: which of how many consumers of the group this one is.
            on_loss: what to do about records that are gone or damaged. It must not call the consumer.
            follow_resets: whether the partitions go behind their last messages when an administrator wants
                the group to.
            wait: how to wait between attempts to register.
            client_id: the name under which servers know it; by default a new one. A consumer with the name of
                one that holds a partition takes that over.
        """
        super().__init__(config, subscription)
        self._node = node
        self._session = session = AssignedSession(
            config,
            pool.connections,
            subscription,
            self._control,
            node=node,
            partitions=self._state.held,
            on_news=lambda: connecting.follow_master(),  # noqa: PLW0108 (it is made below)
            client_id=client_id,
        )
        reader = Reader(config, pool, session, self._control, on_loss, session.endpoint_of)
        self._questions = BrokerQuestions(config, pool, lambda: session.visit_token)
        self._state.client_id = session.client_id
        self._connecting = connecting = Connecting(
            self._state, reader, session, follow_resets=follow_resets, wait=wait
        )
        self._upkeep = Upkeep(self._state, reader, stopping_others=connecting.ending)

    @property
    def node(self) -> Node | None:
        """Which of how many consumers of the group this one is, if that was given."""
        return self._node

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: not yet."""
        return self._session.registered_at

    # Partitions.

    def partitions(self) -> dict[TopicPartition, bool]:
        """Return all partitions of the topics, each with whether it can be read now (``subscribable``).

        The master is asked at most every ``layout_period_ms``; in between, this is what it said last.

        Raises:
            TubeMQError: the master had to be asked, and did not answer or refused.
            ConsumeError: the consumer is not open.
        """
        self.check_open()
        loop.run(self._session.refresh_layout())
        layout = self._session.known_layout
        return {partition: is_subscribable(layout, partition) for partition in layout.partitions}

    def share(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that belong to this consumer's node and can be read now; without a node, all.

        The nodes of a group split all partitions evenly, as TubeMQ's Java example does, so members of both
        kinds can share a group.

        Raises:
            TubeMQError: as ``partitions``.
        """
        subscribable = self.partitions()
        shared = subscribable if self._node is None else share_of(subscribable, self._node)
        return tuple(partition for partition in shared if subscribable[partition])

    def connect(self, partition: TopicPartition, offset: int | None = None) -> ConsumedPosition:
        """Take a partition; its messages come with ``fetch`` from now on.

        Args:
            partition: one of ``partitions``.
            offset: where to begin, in index bytes, and what the group's position becomes; None: where the
                group stands. Where a group begins that has no position is told by ``consume_position``.

        Returns:
            Where the partition stands now. A partition that is connected already stays as it is.

        Raises:
            ConsumeError: the partition does not exist (404), cannot be read now (422), was refused less than
                5 s ago (421), or is connected at another offset (400); or the consumer is not open (420).
            OffsetFormatError: the offset is negative or not a multiple of 28.
            DataLossError: the offset is not in the store, by ``on_loss``; the partition is not connected.
            RpcError: another consumer of the group holds it (410), or the broker refuses otherwise.
            TubeMQConnectionError: the broker cannot be reached.
        """
        self.check_open()
        if partition not in self._session.known_layout.partitions:
            loop.run(self._session.refresh_layout())
        return self._connecting.connect(partition, offset)

    def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up; return whether it was connected.

        A batch that is out is waited for, up to ``rebalance_wait_ms``; then it counts as ``rollback`` says.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self.check_open()
        return self._connecting.disconnect(partition)

    def begin_to_disconnect(self, partition: TopicPartition) -> "Future[bool]":
        """Give a partition up as ``disconnect`` does, in the background; for event loops.

        Nothing more of it is handed out from now on.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self.check_open()
        with self._state.guard:
            self._state.cache.hold_back([partition])
        return outcome_of(self._connecting.disconnecting(partition), f"{self.client_id} gives {partition} up")

    def status(self) -> dict[TopicPartition, PartitionStatus]:
        """Return what is known about each partition; asks no server."""
        self.check_process()
        layout = self._session.known_layout
        return statuses(self._state, layout.partitions, layout.not_subscribable)

    # Inside.

    def _start(self) -> None:
        loop.run(self._open_session())
        self._state.life = Life.OPEN
        self._upkeep.start()

    async def _open_session(self) -> None:
        await self._session.open()
        try:
            await self._session.refresh_layout()
        except BaseException:
            await self._session.close()
            raise


def statuses(
    state: ConsumerState, partitions: Iterable[TopicPartition], not_subscribable: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionStatus]:
    """Return what is known about each partition.

    Args:
        state: what the consumer holds.
        partitions: those that the master lists.
        not_subscribable: those of them that cannot be read now.
    """
    with state.changed:
        positions, troubles = state.cache.positions(), dict(state.troubles)
        states = {partition: state.cache.state(partition) for partition in positions}
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
