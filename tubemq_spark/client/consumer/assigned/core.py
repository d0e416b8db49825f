"""A consumer of the partitions that its user names, as coroutines; the master may say that one must go.

For each partition there is one lock of *intent*: of two tasks that connect to it, or of which one connects
and one disconnects, the second waits for the first. It is taken before the partition's own lock.
"""

import abc
import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tubemq_spark.client.consumer.assigned.session import AssignedSession, share_of
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader
from tubemq_spark.client.consumer.state import ConsumerState, Upkeep
from tubemq_spark.client.consumer.values import ConsumedPosition, PartitionState, PartitionStatus
from tubemq_spark.client.consumer_config import Node
from tubemq_spark.client.master.balance import Layout
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import TopicPartition, alone_in_store, require_aligned
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_QUIET_MS: Final = 5_000
"""How long a partition is not asked for again after a refusal that another attempt does not mend."""
_LASTING: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.CERTIFICATE_FAILURE})


class Connecting:
    """Connects a consumer to partitions."""

    def __init__(
        self,
        state: ConsumerState,
        tasks: OwnedTasks,
        reader: Reader,
        session: AssignedSession,
        *,
        follow_resets: bool,
    ) -> None:
        """``follow_resets`` says whether an administrator may move the group behind the last messages."""
        self._state = state
        self._tasks = tasks
        self._reader = reader
        self._session = session
        self._follow_resets = follow_resets
        self._intent_locks: dict[TopicPartition, asyncio.Lock] = {}
        self._giving_up: asyncio.Task[None] | None = None
        """What gives up partitions that cannot be read any more; the last one, if it has ended."""
        self._refused: dict[TopicPartition, tuple[float, TubeMQError]] = {}

    async def connect(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition:
        """Register a partition at its broker; see ``AssignedConsumer.connect``."""
        if offset is not None:
            require_aligned(offset, str(partition))
        async with self._intent_lock(partition):
            connected = self._connected_at(partition, offset)
            if connected is not None:
                return connected
            self._check_quiet(partition)
            # It only counts without an offset, and goes out only then: a broker would follow it.
            status = ReadStatus.STORED_OR_EARLIEST
            if partition not in self._state.cache.registered:
                status = self._state.config.consumer.consume_position.read_status
            try:
                position = await self._state.register(self._new_partition(partition), offset, status)
            except RpcError as error:
                if error.code in _LASTING:
                    self._refused[partition] = asyncio.get_running_loop().time(), error
                raise
            return ConsumedPosition(position.current, position.latest, time.time())

    async def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up, when its batch was confirmed or had its time; return whether it was held."""
        async with self._intent_lock(partition):
            await self._state.wait_for_batches([partition])
            return await self._give_up(partition)

    async def end(self) -> None:
        """Give everything up, when the consumer is closed; then wait for connects that are under way.

        They find it closed and give back what their brokers answer with, or are at the end of their time.
        """
        await self._state.release_all()
        for lock in list(self._intent_locks.values()):
            async with lock:
                pass

    def follow_master(self) -> None:
        """Give up what cannot be read any more, and follow resets: whenever the master has answered.

        Returns at once: a task waits for batches, and for brokers that are told.
        """
        if self._session.take_reset():
            self._reset()
        if self._giving_up is not None and not self._giving_up.done():
            return
        layout = self._session.known_layout
        unsubscribable = [p for p in self._state.held() if not is_subscribable(layout, p)]
        if unsubscribable:
            name = f"giving up partitions of {self._state.client_id}"
            self._giving_up = self._tasks.start(
                self._release_unsubscribable(unsubscribable), name, alone=True
            )

    async def _release_unsubscribable(self, unsubscribable: list[TopicPartition]) -> None:
        """Give up partitions that the master does not list as subscribable any more."""
        await self._state.wait_for_batches(unsubscribable)
        for partition in unsubscribable:
            async with self._intent_lock(partition):
                reason = self._not_subscribable(partition)
                if await self._give_up(partition, reason):
                    logger.warning("%s is given up: %s", partition, reason)

    def _reset(self) -> None:
        """Continue with the latest messages, because an administrator wants that."""
        if not self._follow_resets:
            logger.warning(
                "an administrator wants group %s to continue with the latest messages; ignored, since "
                "follow_resets is not set",
                self._reader.config.group,
            )
            return
        for partition in self._state.connected.values():
            partition.reset()

    def _intent_lock(self, partition: TopicPartition) -> asyncio.Lock:
        return self._intent_locks.setdefault(partition, asyncio.Lock())

    def _connected_at(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition | None:
        """Return the position of a partition that is connected."""
        self._state.check_open()
        connected = self._state.connected.get(partition)
        if connected is None:
            return None
        if offset not in (None, connected.position):
            raise ConsumeError(
                "TUBEMQ_CONNECT.ELSEWHERE",
                code=int(ErrCode.BAD_REQUEST),
                partition=partition,
                current=connected.position,
                asked=offset,
            )
        return self._state.cache.position(partition)

    def _check_quiet(self, partition: TopicPartition) -> None:
        refused_at, cause = self._refused.get(partition, (None, None))
        if refused_at is None:
            return
        ago_ms = int((asyncio.get_running_loop().time() - refused_at) * 1000)
        if ago_ms < _QUIET_MS:
            raise ConsumeError(
                "TUBEMQ_CONNECT.TOO_EARLY",
                code=int(ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST),
                partition=partition,
                ago_ms=ago_ms,
                cause=cause,
                wait_ms=_QUIET_MS - ago_ms,
            )
        del self._refused[partition]

    def _new_partition(self, partition: TopicPartition) -> ConsumerPartition:
        """Return a new partition, if the master lists it as subscribable."""
        layout = self._session.known_layout
        if partition not in layout.partitions:
            raise ConsumeError("TUBEMQ_CONNECT.UNKNOWN", code=int(ErrCode.NOT_FOUND), partition=partition)
        if not is_subscribable(layout, partition):
            raise self._not_subscribable(partition)
        return ConsumerPartition(
            self._reader,
            partition,
            layout.partitions[partition],
            self._state.subscription.message_types[partition.topic],
            own_store=partition.store_id in alone_in_store(layout.partitions),
        )

    async def _give_up(self, partition: TopicPartition, reason: TubeMQError | None = None) -> bool:
        """Give a partition up; return whether it was connected. Hold its intent."""
        connected = self._state.connected.get(partition)
        if connected is None:
            return False
        await self._state.take(connected)
        try:
            await self._state.release(connected, reason)
        finally:
            connected.lock.release()
        return True

    def _not_subscribable(self, partition: TopicPartition) -> ConsumeError:
        return ConsumeError(
            "TUBEMQ_CONNECT.NOT_SUBSCRIBABLE",
            code=int(ErrCode.PARTITION_UNSUBSCRIBABLE),
            partition=partition,
            group=self._state.config.group,
        )


def is_subscribable(layout: Layout, partition: TopicPartition) -> bool:
    """Whether the master lists a partition and says that it can be read."""
    return partition in layout.partitions and partition not in layout.not_subscribable


class AssignedCoreBase(ConsumerCore):
    """An assigned consumer, directly or through gateways."""

    node: Node | None = None
    """Which of how many consumers of the group this one is, if that was given."""

    @property
    @abc.abstractmethod
    def registered_at(self) -> float | None:
        """When a master or a gateway last accepted this consumer, in seconds since 1970; None: never."""

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

    def __init__(self, setup: ConsumerSetup, connections: Connections, questions: Questions) -> None:
        """Reach no server; may be called in any thread."""
        super().__init__(setup, questions)
        self.node = setup.node
        state = self.state
        self._session = session = AssignedSession(
            setup.config,
            connections,
            setup.subscription,
            self.control,
            node=setup.node,
            partitions=state.held,
            on_news=lambda: self._connecting.follow_master(),  # noqa: PLW0108 (it is made below)
            client_id=setup.client_id,
        )
        reader = Reader(setup.config, connections, session, self.control, self.tell_loss, session.endpoint_of)
        self._connecting = Connecting(state, self.tasks, reader, session, follow_resets=setup.follow_resets)
        self._leases = Upkeep(state, reader)
        state.client_id = session.client_id

    @property
    def registered_at(self) -> float | None:
        """When a master last accepted this consumer, in seconds since 1970; None: never."""
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
        """Open the session with the masters, and get the layout."""
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
