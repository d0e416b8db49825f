"""What the coroutines of a consumer at its brokers share: its partitions, and what each of them is doing.

Its life is that of every consumer (``life``).

Invariants:

- ``connected`` and ``cache`` have the same partitions. They come by ``add`` and go by ``remove``, which only
  the holder of the partition's lock calls.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.life import ConsumerLife, Life
from tubemq_spark.client.consumer.partition import ConsumerPartition, Standing
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 1.0
"""A broker that takes so long to answer is not asked again while several partitions are given up."""
_TAKEN: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.DUPLICATE_PARTITION})


class ConsumerState(ConsumerLife):
    """The partitions of one consumer."""

    def __init__(self, config: ClientConfig, subscription: Subscription, control: FlowControl) -> None:
        super().__init__(config, subscription)
        self.control = control
        self.cache = PartitionCache(
            control,
            filtered_topics=subscription.filtered_topics,
            confirm_timeout_ms=config.consumer.confirm_timeout_ms,
            rollback=config.consumer.rollback,
        )
        self.connected: dict[TopicPartition, ConsumerPartition] = {}
        self.releases = OwnedTasks()
        """They tell brokers of partitions that were given up; none of them is cancelled."""
        self.abandon: Callable[[TopicPartition], object] = _ignore
        """Cancels a fetch of a partition that is under way; ``FetchLine`` sets this."""
        self.tell: Callable[[TubeMQError], object] = _ignore
        """Makes a fetch raise an error; ``FetchLine`` sets this too."""
        self.refused: Callable[[], RpcError | None] = _nothing
        """Returns why the master does not take this member of a group any more, if it does not."""
        self.on_loss: Callable[[TopicPartition], object] = _ignore
        """Called when a partition was given up for an error."""
        self.on_partitions: Callable[[], object] = _nothing
        """Called when a partition was added or removed."""

    def infos(self) -> tuple[PartitionInfo, ...]:
        """Return what is connected, in the order of its arrival, as the master knows it."""
        return self.cache.infos()

    def check_fetch(self) -> None:
        """Raise an error unless the consumer may fetch, and the master takes it."""
        super().check_fetch()
        if (refused := self.refused()) is not None:
            raise refused

    def add(self, partition: ConsumerPartition, position: Position, *, on_hold: bool = False) -> None:
        """Add a partition that is registered at its broker; ``on_hold``: as by ``cache.hold``."""
        name = partition.partition
        info = PartitionInfo(name.broker_id, partition.endpoint, name.topic, name.partition_id)
        self.check_open()
        if on_hold:
            self.cache.hold(name)
        self.connected[name] = partition
        self.cache.add(info, position)
        self.troubles.pop(name, None)
        self.changes.note()
        self.on_partitions()

    def remove(self, partition: ConsumerPartition) -> bool:
        """Remove a partition; return whether its broker has to commit what was fetched last."""
        consumed = self.cache.remove(partition.partition)
        self.connected.pop(partition.partition, None)
        self.changes.note()
        self.on_partitions()
        return consumed

    async def release(
        self, partition: ConsumerPartition, reason: TubeMQError | None = None, *, tells_broker: bool = True
    ) -> None:
        """Give a partition up, at its broker too, unless another consumer has taken it.

        Hold its lock. The broker is told also when this is cancelled.
        """
        if partition.standing is Standing.RELEASED:
            return
        name = partition.partition
        if reason is not None:  # first: who is told that it has gone asks why
            self.troubles[name] = reason
        consumed = self.remove(partition)
        partition.abandon()
        try:
            if tells_broker and not (reason is not None and is_taken(reason)):
                await self.releases.carry_out(partition.release(consumed=consumed), f"giving {name} back")
        finally:
            if reason is not None:
                self.on_loss(name)

    async def release_all(
        self, partitions: Collection[TopicPartition] | None = None, reason: TubeMQError | None = None
    ) -> None:
        """Give partitions up, by default all; a broker that does not answer costs one time-out at most."""
        loop = asyncio.get_running_loop()
        silent: set[Endpoint] = set()
        names = list(self.connected) if partitions is None else partitions
        for partition in [self.connected[name] for name in names if name in self.connected]:
            await self.take(partition)
            try:
                began = loop.time()
                tells_broker = partition.endpoint not in silent
                await self.release(partition, reason, tells_broker=tells_broker)
                if loop.time() - began >= _SILENCE_S:
                    silent.add(partition.endpoint)
            except Exception:
                # The others are to be given up all the same.
                logger.warning("%s could not be given up", partition.partition, exc_info=True)
            finally:
                partition.lock.release()

    async def let_go(self, partitions: Collection[TopicPartition], error: TubeMQError | None) -> None:
        """Hand out messages of partitions that were on hold from now on; or give them up, after an error."""
        try:
            if error is not None:
                await self.release_all(partitions, error)
        finally:
            for name in partitions:
                self.cache.let_go(name)
            self.changes.note()

    async def take(self, partition: ConsumerPartition) -> None:
        """Take the lock of a partition that is given up: a fetch that is under way is abandoned.

        What confirms its batch is waited for, since that ends by itself.
        """
        self.cache.hold_back([partition.partition])
        self.abandon(partition.partition)
        await partition.lock.acquire()

    async def wait_for_batches(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing more of some partitions, and wait until what was handed out is confirmed.

        That takes ``rebalance_wait_ms`` at most, and ends when the consumer closes: none can confirm then.
        """

        def none_is_out() -> bool:
            self.cache.expire()
            return self.life is not Life.OPEN or not set(self.cache.hold_back(partitions)) & set(partitions)

        try:
            async with asyncio.timeout(self.config.consumer.rebalance_wait_ms / 1000):
                await self.changes.until(none_is_out)
        except TimeoutError:
            self.cache.hold_back(partitions)

    def note_trouble(self, partition: ConsumerPartition, error: TubeMQError) -> None:
        """Remember why a partition cannot be read; warn of the first of several errors."""
        if self.troubles.get(partition.partition) is None:
            logger.warning("%s cannot be read; it is tried again: %s", partition.partition, error)
        self.troubles[partition.partition] = error

    def note_success(self, partition: ConsumerPartition) -> None:
        """Forget the trouble of a partition that answers."""
        if self.troubles and self.troubles.pop(partition.partition, None) is not None:
            logger.info("%s can be read again", partition.partition)

    def note_answer(self, broker: Endpoint) -> None:
        """Count missed heartbeats of a broker from 0, and ask for its partitions again."""
        here = {name.broker_id for name in self.connected if self.endpoint_of(name) == broker}
        if True in {self.cache.note_answer(broker_id) for broker_id in here}:
            self.changes.note()
        super().note_answer(broker)


def _nothing() -> None:
    pass


def _ignore(_: object) -> None:
    pass


def is_taken(error: TubeMQError) -> bool:
    """Whether another consumer of the group holds the partition (410, 412)."""
    return isinstance(error, RpcError) and error.code in _TAKEN
