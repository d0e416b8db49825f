"""A member of a group as coroutines, which takes partitions and gives them up as the master wants.

Events come with answers to heartbeats. A task carries them out one after the other: giving up waits for
batches to be confirmed, and taking waits for brokers, for all of them side by side, so one that is away does
not hold up the others.

Each event is answered once, also one that failed: the master looks at what is held then, and plans again.
That is all that events ask which neither give nor take: the answer tells what is held. There is nothing to
stop when one says so, because a master sends the next event only after the answer to the last one.

**Where a bound group starts.** In its first round a master gives each member the partitions for which it has
named offsets. They begin there, also those that cannot be taken at once and come again with a later event.
Others begin where the group stands: another member may have read on from there.
"""

import asyncio
import collections
import logging
from collections.abc import Collection

from tubemq_spark.client.consumer.core import ConsumerSetup
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.partition import GroupPartition, Reader
from tubemq_spark.client.consumer.state import ConsumerState, Upkeep
from tubemq_spark.client.consumer.user_code import Callbacks
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, TubeMQConnectionError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.messages import CONNECTS, DISCONNECTS, EventType, RebalanceEvent
from tubemq_spark.protocol.packed_strings import PartitionInfo

logger = logging.getLogger(__name__)


class Rebalancing:
    """Carries out events while the consumer is open."""

    def __init__(
        self,
        state: ConsumerState,
        tasks: OwnedTasks,
        reader: Reader,
        session: GroupSession,
        callbacks: Callbacks,
    ) -> None:
        self._state = state
        self._tasks = tasks
        self._reader = reader
        self._session = session
        self._callbacks = callbacks
        self._taken: list[TopicPartition] = []
        """What was taken since its user was told last."""
        self._events: collections.deque[RebalanceEvent] = collections.deque()
        self._under_way: asyncio.Task[None] | None = None
        """What carries events out; the last one, if it has ended."""
        self._starts: dict[TopicPartition, int] = {}
        """Offsets at which partitions of the first round begin."""

    @property
    def _is_open(self) -> bool:
        return self._state.life is Life.OPEN

    def put(self, event: RebalanceEvent) -> None:
        """Take an event, which waits until the consumer is open; returns at once."""
        start = self._state.subscription.start
        if start is not None and self._session.first_round and event.type in CONNECTS:
            named = {info.partition for info in event.partitions}
            self._starts |= {where: offset for where, offset in start.offsets.items() if where in named}
        self._events.append(event)
        self.begin()

    def begin(self) -> None:
        """Carry out what has come, unless that is under way; the consumer calls it when it is open."""
        if self._events and self._is_open and (self._under_way is None or self._under_way.done()):
            name = f"rebalancing of {self._session.client_id}"
            self._under_way = self._tasks.start(self._carry_out_all(), name, alone=True)

    async def ended(self) -> None:
        """Wait for the event that is under way, the last one of a consumer that closes.

        That takes ``shutdown_wait_ms`` at most. What is taken later finds the consumer closed, and is given
        back.
        """
        if self._under_way is None:
            return
        patience_s = self._reader.config.consumer.shutdown_wait_ms / 1000
        _, under_way = await asyncio.wait([self._under_way], timeout=patience_s)
        if under_way:
            logger.warning("%s closes in the middle of a rebalance", self._session.client_id)

    async def _carry_out_all(self) -> None:
        while self._events and self._is_open:
            event = self._events.popleft()
            try:
                await self._carry_out(event)
            except Exception:
                # The master plans again by what is held.
                logger.warning("%s could not carry out: %s", self._session.client_id, event, exc_info=True)

    async def _carry_out(self, event: RebalanceEvent) -> None:
        """Do what an event says, and tell the master."""
        try:
            if event.type in DISCONNECTS:
                await self._give_up([info.partition for info in event.partitions])
            elif event.type in CONNECTS:
                await self._take(event.partitions)
            elif event.type is EventType.UNKNOWN:
                logger.warning("%s does not know what this event is: %s", self._session.client_id, event)
        finally:
            self._session.report(event)

    async def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        await self._state.wait_for_batches(partitions)
        await self._callbacks.revoked(set(partitions) & set(self._state.held()))
        await self._state.release_all(partitions)

    async def _take(self, partitions: Collection[PartitionInfo]) -> None:
        """Connect assigned partitions, at all their brokers side by side."""
        by_broker: dict[Endpoint, list[PartitionInfo]] = {}
        for info in self._state.cache.new_ones(partitions):
            by_broker.setdefault(info.endpoint, []).append(info)
        try:
            async with asyncio.TaskGroup() as brokers:
                for infos in by_broker.values():
                    brokers.create_task(self._take_of_broker(infos))
        finally:
            taken, self._taken = self._taken, []
            if self._is_open:  # otherwise it is given up before its user has heard of it
                self._callbacks.assigned(taken)

    async def _take_of_broker(self, partitions: list[PartitionInfo]) -> None:
        """Register partitions of one broker until it cannot be reached: the master plans the others again."""
        for info in partitions:
            if not self._is_open:
                return
            try:
                await self._connect(info)
            except ConsumeError:
                return  # the consumer was closed
            except Exception as error:
                is_ours = isinstance(error, TubeMQError)
                text = "%s could not be taken; the master will plan again: %s"
                logger.warning(text, info.partition, error, exc_info=not is_ours)
                if isinstance(error, TubeMQConnectionError | TubeMQTimeoutError):
                    return

    async def _connect(self, info: PartitionInfo) -> None:
        types = self._state.subscription.message_types.get(info.topic, frozenset())
        # A member is not told which other partitions are in the store.
        new = GroupPartition(self._reader, info.partition, info.endpoint, types, own_store=False)
        offset, read_status = self._beginning(info.partition)
        position = await self._state.register(new, offset, read_status, on_hold=self._callbacks.holds)
        self._taken.append(info.partition)
        logger.info("%s takes %s at offset %d", self._session.client_id, info.partition, position.current)

    def _beginning(self, partition: TopicPartition) -> tuple[int | None, ReadStatus]:
        """Return the offset to begin at, if there is one, and what counts for a group without a position."""
        if partition in self._state.cache.registered:
            return None, ReadStatus.STORED_OR_EARLIEST
        if partition in self._starts:
            return self._starts[partition], ReadStatus.STORED_OR_EARLIEST
        return None, self._reader.config.consumer.consume_position.read_status


class GroupCore(EngineCore):
    """Holds the partitions that the master gives it."""

    def __init__(self, setup: ConsumerSetup, connections: Connections, questions: Questions) -> None:
        """Reach no server; may be called in any thread."""
        super().__init__(setup, questions)
        state = self.state
        self._session = session = GroupSession(
            setup.config,
            connections,
            setup.subscription,
            self.control,
            partitions=state.cache.infos,
            on_event=lambda event: self._rebalancing.put(event),  # noqa: PLW0108 (it is made below)
            client_id=setup.client_id,
        )
        reader = Reader(setup.config, connections, session, self.control, self.tell_loss, state.endpoint_of)
        self._callbacks = Callbacks(state, self.tasks, setup.user_code, setup.on_assigned, setup.on_revoked)
        self._rebalancing = Rebalancing(state, self.tasks, reader, session, self._callbacks)
        self._leases = Upkeep(state, reader, self._give_up_when_refused)
        self._giving_up: asyncio.Task[None] | None = None
        """What gives all partitions up since the master has refused the member."""
        state.client_id = session.client_id
        state.on_loss = self._tell_of_loss
        state.refused = lambda: session.refused

    @property
    def _visit_token(self) -> int:
        return self._session.visit_token

    async def _start(self) -> None:
        try:
            await self._session.open()
        except BaseException:
            await self._session.close()
            raise

    async def _maintain(self) -> None:
        self._rebalancing.begin()
        await self._leases.run()

    async def _give_up(self) -> None:
        self._session.stop_heartbeats()
        await self._rebalancing.ended()
        self._callbacks.revoked(self.state.held())
        await self._callbacks.settled
        await self.state.release_all()

    async def _end(self) -> None:
        await self._session.close()

    async def give_up(self, partition: TopicPartition) -> bool:
        """Give a partition up, which the master plans again; return whether it was held."""
        self.state.check_open()
        if partition not in self.state.connected:
            return False
        await self.carry_out(self.state.release_all([partition]), f"giving {partition} up")
        self._tell_of_loss(partition)
        return True

    def _tell_of_loss(self, partition: TopicPartition) -> None:
        self._session.report()
        self._callbacks.revoked([partition])

    def _give_up_when_refused(self) -> None:
        """Give all partitions up if the master has refused the member, and wake those that wait."""
        state, refused = self.state, self._session.refused
        if refused is None:
            return
        if state.connected and (self._giving_up is None or self._giving_up.done()):
            logger.warning("%s gives up its partitions: %s", state.client_id, refused)
            self._callbacks.revoked(state.held())
            name = f"giving up the partitions of {state.client_id}"
            self._giving_up = self.tasks.start(state.release_all(), name, alone=True)
        state.changes.note()
