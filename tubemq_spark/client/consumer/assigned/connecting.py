"""Taking partitions and giving them up, as the user of an assigned consumer or the master says.

For each partition there is one lock of *intent*: of two tasks that connect to it, or of which one connects
and one disconnects, the second waits for the first. It is taken before the partition's own lock.
"""

import asyncio
import logging
import time
from typing import Final

from tubemq_spark.client.consumer.assigned.session import AssignedSession
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader
from tubemq_spark.client.consumer.registering import register
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.values import ConsumedPosition
from tubemq_spark.client.master.balance import Layout
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import TopicPartition, alone_in_store, require_aligned
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
            if not self._state.cache.registered(partition):
                status = self._state.config.consumer.consume_position.read_status
            try:
                position = await register(self._state, self._make(partition), offset, status)
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

    def _make(self, partition: TopicPartition) -> ConsumerPartition:
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
