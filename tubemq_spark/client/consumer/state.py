"""What the coroutines of one consumer share: its partitions, and what each of them is doing.

All of it is used in the consumer's event loop only, but for ``stop``.

Invariants:

- ``connected`` and ``cache`` have the same partitions. They come by ``add`` and go by ``remove``, which only
  the holder of the partition's lock calls.
- ``troubles`` has the last error of a partition, until it is read again.
- ``life`` only goes on, and when it ends, all that wait are woken and refused.
- ``stopped`` is set from anywhere, by a signal handler perhaps, and never reset. Nothing is fetched then;
  what is out may be confirmed.
- The tasks of a consumer hold this object and never its faces, which are collected when users drop them.
"""

import asyncio
import enum
import logging
import os
from collections.abc import Callable, Collection
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.partition import ConsumerPartition, Standing
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.partition_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 1.0
"""A broker that takes so long to answer is not asked again while several partitions are given up."""
_TAKEN: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.DUPLICATE_PARTITION})


class Life(enum.Enum):
    """What becomes of a consumer; see ``core``."""

    NEW = "not open yet"
    OPEN = "open"
    CLOSED = "closed"


_ADVICE: Final = {
    Life.NEW: "open it first, or use it in a with block",
    Life.CLOSED: "open a new one",
}


class Changes:
    """Wakes the coroutines that wait for something to change."""

    def __init__(self) -> None:
        self.listener: Callable[[], object] = _nothing
        """Called with every change; it must return at once. ``FetchLine`` sets this."""
        self._waiting: list[asyncio.Future[None]] = []

    def note(self) -> None:
        """Make those who wait look again."""
        self.listener()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when a condition holds; what it raises is passed on."""
        while not holds():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter


class ConsumerState:
    """The partitions of one consumer."""

    def __init__(self, config: ClientConfig, subscription: Subscription, control: FlowControl) -> None:
        self.config = config
        self.subscription = subscription
        self.control = control
        self.client_id = ""
        """The name under which servers know the consumer."""
        self.owner = os.getpid()
        """The process that it belongs to."""
        self.changes = Changes()
        """Noted when something here has changed."""
        self.cache = PartitionCache(
            control,
            filtered_topics=subscription.filtered_topics,
            confirm_timeout_ms=config.consumer.confirm_timeout_ms,
            rollback=config.consumer.rollback,
        )
        self.connected: dict[TopicPartition, ConsumerPartition] = {}
        self.troubles: dict[TopicPartition, TubeMQError] = {}
        self.releases = OwnedTasks()
        """They tell brokers of partitions that were given up; none of them is cancelled."""
        self.missed: dict[Endpoint, int] = {}
        """The brokers that missed their last heartbeat, each with how many in a row."""
        self.life = Life.NEW
        self.stopped = False
        """Whether nothing is to be fetched any more."""
        self.abandon: Callable[[TopicPartition], object] = _ignore
        """Cancels a fetch of a partition that is under way; ``FetchLine`` sets this."""
        self.tell: Callable[[TubeMQError], object] = _ignore
        """Makes a fetch raise an error; ``FetchLine`` sets this too."""
        self.refused: Callable[[], RpcError | None] = _nothing
        """Returns why the master does not take this member of a group any more, if it does not."""
        self.on_loss: Callable[[TopicPartition], object] = _ignore
        """Called when a partition was given up for an error."""

    def held(self) -> tuple[TopicPartition, ...]:
        """Return what is connected, sorted."""
        return tuple(sorted(self.connected))

    def infos(self) -> tuple[PartitionInfo, ...]:
        """Return what is connected, in the order of its arrival, as the master knows it."""
        return self.cache.infos()

    def endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return the broker of a partition that is connected."""
        connected = self.connected.get(partition)
        return None if connected is None else connected.endpoint

    def check_open(self) -> None:
        """Do nothing as long as the consumer is open.

        Raises:
            ConsumeError: it is not.
        """
        if self.life is not Life.OPEN:
            raise self.refusal()

    def check_running(self) -> None:
        """Do nothing as long as the consumer is open and not stopped.

        Raises:
            ConsumeError: it is not.
        """
        self.check_open()
        if self.stopped:
            raise self.refusal()

    def check_fetch(self) -> None:
        """Do nothing as long as the consumer may fetch.

        Raises:
            ConsumeError: it is not open.
            RpcError: the master does not take it any more.
        """
        self.check_running()
        if (refused := self.refused()) is not None:
            raise refused

    def refusal(self) -> ConsumeError:
        """Return the error of a call that does not fit the consumer's life."""
        is_stopped = self.life is Life.OPEN and self.stopped
        group = self.config.group
        if self.life is Life.OPEN and not is_stopped:
            return ConsumeError("TUBEMQ_CONSUMER_OPEN", code=int(ErrCode.BAD_REQUEST), group=group)
        return ConsumeError(
            "TUBEMQ_CONSUMER_CLOSED",
            code=int(ErrCode.CLIENT_SHUTDOWN),
            group=group,
            state="stopped" if is_stopped else self.life.value,
            advice="close it" if is_stopped else _ADVICE[self.life],
        )

    def end(self) -> None:
        """Refuse everything from now on, and wake those that wait."""
        self.life = Life.CLOSED
        self.changes.note()

    def add(self, partition: ConsumerPartition, position: Position, *, on_hold: bool = False) -> None:
        """Add a partition that is registered at its broker; ``on_hold``: as by ``cache.hold``.

        Raises:
            ConsumeError: the consumer is not open.
        """
        name = partition.partition
        info = PartitionInfo(name.broker_id, partition.endpoint, name.topic, name.partition_id)
        self.check_open()
        if on_hold:
            self.cache.hold(name)
        self.connected[name] = partition
        self.cache.add(info, position)
        self.troubles.pop(name, None)
        self.changes.note()

    def remove(self, partition: ConsumerPartition) -> bool:
        """Remove a partition; return whether its broker has to commit what was fetched last."""
        consumed = self.cache.remove(partition.partition)
        self.connected.pop(partition.partition, None)
        self.changes.note()
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

    def note_missed(self, broker: Endpoint, error: Exception) -> None:
        """Count a heartbeat that a broker missed; warn of the first one in a row."""
        self.missed[broker] = count = self.missed.get(broker, 0) + 1
        if count == 1:
            logger.warning("no lease at %s could be renewed; it is tried again: %s", broker, error)

    def note_answer(self, broker: Endpoint) -> None:
        """Count missed heartbeats of a broker from 0; log how many there were."""
        count = self.missed.pop(broker, 0)
        here = {name.broker_id for name in self.connected if self.endpoint_of(name) == broker}
        if True in {self.cache.note_answer(broker_id) for broker_id in here}:
            self.changes.note()
        if count:
            logger.info("leases at %s are renewed again, after %d missed heartbeats", broker, count)


def _nothing() -> None:
    pass


def _ignore(_: object) -> None:
    pass


def is_taken(error: TubeMQError) -> bool:
    """Whether another consumer of the group holds the partition (410, 412)."""
    return isinstance(error, RpcError) and error.code in _TAKEN
