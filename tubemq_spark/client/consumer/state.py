"""What the threads of one consumer share: its partitions, and what each of them is doing.

Invariants:

- ``changed`` guards everything here; nobody holds it for longer than a moment, and never during a request, so
  that an event loop may take it too. A partition's own lock is taken before it, never after.
- ``connected`` and ``cache`` have the same partitions. They come by ``add`` and go by ``remove``, which only
  the holder of the partition's own lock calls.
- ``troubles`` has the last error of a partition, until it is read again.
- Once ``refusal`` is set, it stays: whoever waits is woken and raises it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.missed_heartbeats import MissedHeartbeats
from tubemq_spark.client.consumer.partition import ConsumerPartition
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Clock, Deadline
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.partition_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 1.0
"""A broker that takes so long to answer is not asked again while several partitions are given up."""
_TAKEN: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.DUPLICATE_PARTITION})


class Changed(threading.Condition):
    """A condition that also tells somebody who is not a thread when to look again."""

    def __init__(self) -> None:
        super().__init__()
        self.listener: Callable[[], object] = _nothing
        """Called with every ``notify_all``; the lock is held, so it must only note that."""

    def notify_all(self) -> None:
        """Wake all threads that wait, and tell the listener."""
        super().notify_all()
        self.listener()


class ConsumerState:
    """The partitions of one consumer."""

    def __init__(self, config: ClientConfig, subscription: Subscription, control: FlowControl) -> None:
        """Hold nothing yet."""
        self.config = config
        self.subscription = subscription
        self.control = control
        self.changed = Changed()
        self.cache = PartitionCache(
            control,
            filtered_topics=subscription.filtered_topics,
            confirm_timeout_ms=config.consumer.confirm_timeout_ms,
            rollback=config.consumer.rollback,
        )
        self.connected: dict[TopicPartition, ConsumerPartition] = {}
        self.troubles: dict[TopicPartition, TubeMQError] = {}
        self.missed = MissedHeartbeats()
        """Of brokers; has a lock of its own."""
        self.refusal: Callable[[], ConsumeError] | None = None
        self.on_loss: Callable[[], object] = _nothing
        """Called when a partition was given up for an error; ``changed`` is not held then."""

    def held(self) -> tuple[TopicPartition, ...]:
        """Return what is connected, sorted."""
        with self.changed:
            return tuple(sorted(self.connected))

    def check_open(self) -> None:
        """Do nothing as long as the consumer is open.

        Raises:
            ConsumeError: it is not.
        """
        if self.refusal is not None:
            raise self.refusal()

    def end(self, refusal: Callable[[], ConsumeError]) -> None:
        """Refuse everything from now on, and wake those who wait."""
        with self.changed:
            self.refusal = refusal
            self.changed.notify_all()

    def add(self, partition: ConsumerPartition, found: Position) -> None:
        """Hold a partition that is registered."""
        name = partition.partition
        info = PartitionInfo(name.broker_id, partition.endpoint, name.topic, name.partition_id)
        with self.changed:
            self.check_open()
            self.connected[name] = partition
            self.cache.add(info, found)
            self.troubles.pop(name, None)
            self.changed.notify_all()

    def remove(self, partition: ConsumerPartition) -> bool:
        """Hold a partition no longer; return whether its broker has to commit what was fetched last."""
        with self.changed:
            given_up = self.cache.remove([partition.partition])
            self.connected.pop(partition.partition, None)
            self.changed.notify_all()
        return any(one.confirms for one in given_up)

    def release(self, partition: ConsumerPartition, reason: TubeMQError | None = None) -> None:
        """Give a partition up, at its broker too, unless somebody else has taken it. Hold its lock."""
        if partition.released:
            return
        consumed = self.remove(partition)
        if reason is not None:
            with self.changed:
                self.troubles[partition.partition] = reason
        if reason is not None and is_taken(reason):
            partition.abandon()
        else:
            partition.release(consumed=consumed)
        if reason is not None:
            self.on_loss()

    def release_all(
        self, partitions: Collection[TopicPartition] | None = None, clock: Clock = time.monotonic
    ) -> None:
        """Give partitions up, by default all; a broker that does not answer costs one time-out at most."""
        silent: set[Endpoint] = set()
        with self.changed:
            names = list(self.connected) if partitions is None else partitions
            wanted = [self.connected[name] for name in names if name in self.connected]
        for held in wanted:
            with held.lock:
                if held.endpoint in silent:
                    self.remove(held)
                    held.abandon()
                    continue
                began = clock()
                self.release(held)
                if clock() - began >= _SILENCE_S:
                    silent.add(held.endpoint)

    def wait_for_batches(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing more of some partitions, and wait until what was handed out is confirmed.

        That takes ``rebalance_wait_ms`` at most, and ends when the consumer closes: then nobody can confirm.
        """
        deadline = Deadline.after_ms(self.config.consumer.rebalance_wait_ms)
        with self.changed:
            while set(self.cache.hold_back(partitions)) & set(partitions):
                if deadline.expired or self.refusal is not None:
                    break
                self.changed.wait(deadline.remaining())
                self.cache.expire()

    def note_trouble(self, partition: ConsumerPartition, error: TubeMQError) -> None:
        """Remember why a partition cannot be read; warn of the first of several errors."""
        with self.changed:
            first = self.troubles.get(partition.partition) is None
            self.troubles[partition.partition] = error
        if first:
            logger.warning("%s cannot be read; it is tried again: %s", partition.partition, error)

    def note_success(self, partition: ConsumerPartition) -> None:
        """Forget the trouble of a partition that answers."""
        if not self.troubles:  # as a rule, and then without the lock
            return
        with self.changed:
            trouble = self.troubles.pop(partition.partition, None)
        if trouble is not None:
            logger.info("%s can be read again", partition.partition)


def _nothing() -> None:
    pass


def is_taken(error: TubeMQError) -> bool:
    """Whether another consumer of the group holds the partition (410, 412)."""
    return isinstance(error, RpcError) and error.code in _TAKEN
