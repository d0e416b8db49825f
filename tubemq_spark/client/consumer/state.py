"""What the threads of one consumer share: its partitions, and what each of them is doing.

Invariants:

- ``guard`` guards everything here; it is never held for longer than a moment, and never during a request,
  so that an event loop may take it too. A partition's own lock is taken before it, never after.
- ``connected`` and ``cache`` have the same partitions. They come by ``add`` and go by ``remove``, which only
  the holder of the partition's own lock calls.
- ``troubles`` has the last error of a partition, until it is read again.
- ``life`` only goes on, and when it ends, all that wait are woken and refused.
- ``stopped`` is set without the lock, by a signal handler perhaps, and never reset. Nothing is fetched then;
  what is out may be confirmed.
- Threads of a consumer hold this object and never the consumer, which is collected when its user drops it.
"""

import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Final, cast

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.partition import ConsumerPartition, Standing
from tubemq_spark.client.steps import AtMost, Steps, wait_for
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Clock, Deadline
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.partition_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 1.0
"""A broker that takes so long to answer is not asked again while several partitions are given up."""
_LOOK_S: Final = 0.1
"""How often who waits for a partition looks whether the one that uses it is still there."""
_TAKEN: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.DUPLICATE_PARTITION})


class Life(enum.Enum):
    """What becomes of a consumer; see ``consumer``."""

    NEW = "not open yet"
    OPEN = "open"
    CLOSED = "closed"


_ADVICE: Final = {
    Life.NEW: "open it first, or use it in a with block",
    Life.CLOSED: "open a new one",
}


class Changed(threading.Condition):
    """A condition that also tells an event loop when to look again."""

    def __init__(self, guard: threading.RLock) -> None:
        super().__init__(guard)
        self.listener: Callable[[], object] = _nothing
        """Called with every ``notify_all``; the lock is held, so it must only note that."""
        self._next: Future[None] | None = None

    def next(self) -> "Future[None]":
        """Return what is done with the next ``notify_all``; hold the lock."""
        self._next = self._next or Future()
        return self._next

    def notify_all(self) -> None:
        """Wake all threads and rules that wait, and tell the listener."""
        super().notify_all()
        self.listener()
        following, self._next = self._next, None
        if following is not None:
            following.set_result(None)


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
        self.guard = threading.RLock()
        """The lock of ``changed``; taken itself, it is given back also when a signal raises just then."""
        self.changed = Changed(self.guard)
        self.cache = PartitionCache(
            control,
            filtered_topics=subscription.filtered_topics,
            confirm_timeout_ms=config.consumer.confirm_timeout_ms,
            rollback=config.consumer.rollback,
        )
        self.connected: dict[TopicPartition, ConsumerPartition] = {}
        self.troubles: dict[TopicPartition, TubeMQError] = {}
        self.missed: dict[Endpoint, int] = {}
        """The brokers that missed their last heartbeat, each with how many in a row."""
        self.life = Life.NEW
        self.stopped = False
        """Whether nothing is to be fetched any more."""
        self.abandon: Callable[[TopicPartition], object]
        """Ends a fetch of a partition that is under way; ``Turns`` sets this and the next."""
        self.abandon_orphans: Callable[[], object]
        """Ends what an event loop was carrying out that has ended."""
        self.refused: Callable[[], RpcError | None] = _nothing
        """Returns why the master does not take this member of a group any more, if it does not."""
        self.tell: Callable[[TubeMQError], object]
        """Makes a fetch raise an error; ``Turns`` sets this too."""
        self.on_loss: Callable[[TopicPartition], object] = lambda _: None
        """Called when a partition was given up for an error; ``changed`` is not held then."""

    def held(self) -> tuple[TopicPartition, ...]:
        """Return what is connected, sorted."""
        with self.guard:
            return tuple(sorted(self.connected))

    def infos(self) -> tuple[PartitionInfo, ...]:
        """Return what is connected, in the order of its arrival, as the master knows it."""
        with self.guard:
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

    def stop(self) -> None:
        """Fetch nothing more, and wake those that wait for batches; takes no lock, any code may call it."""
        self.stopped = True
        self.changed.listener()

    def end(self) -> bool:
        """Refuse everything from now on, and wake those that wait; return whether the consumer was open."""
        with self.guard:
            was_open, self.life = self.life is Life.OPEN, Life.CLOSED
            self.changed.notify_all()
        return was_open

    def add(self, partition: ConsumerPartition, position: Position, *, held: bool = False) -> None:
        """Add a partition that is registered at its broker; ``held``: as by ``cache.hold``."""
        name = partition.partition
        info = PartitionInfo(name.broker_id, partition.endpoint, name.topic, name.partition_id)
        with self.guard:
            self.check_open()
            if held:
                self.cache.hold(name)
            self.connected[name] = partition
            self.cache.add(info, position)
            self.troubles.pop(name, None)
            self.changed.notify_all()

    def remove(self, partition: ConsumerPartition) -> bool:
        """Remove a partition; return whether its broker has to commit what was fetched last."""
        with self.guard:
            consumed = self.cache.remove(partition.partition)
            self.connected.pop(partition.partition, None)
            self.changed.notify_all()
        return consumed

    def releasing(
        self, partition: ConsumerPartition, reason: TubeMQError | None = None, *, tells_broker: bool = True
    ) -> Steps[None]:
        """Give a partition up, at its broker too, unless another consumer has taken it.

        Hold its lock.
        """
        if partition.standing is Standing.RELEASED:
            return
        with self.guard:
            if reason is not None:  # first: who is told that it has gone asks why
                self.troubles[partition.partition] = reason
            consumed = self.remove(partition)
        if not tells_broker or (reason is not None and is_taken(reason)):
            partition.abandon()
        else:
            yield from partition.releasing(consumed=consumed)
        if reason is not None:
            self.on_loss(partition.partition)

    def releasing_all(
        self,
        partitions: Collection[TopicPartition] | None = None,
        reason: TubeMQError | None = None,
        clock: Clock = time.monotonic,
    ) -> Steps[None]:
        """Give partitions up, by default all; a broker that does not answer costs one time-out at most."""
        silent: set[Endpoint] = set()
        with self.guard:
            names = list(self.connected) if partitions is None else partitions
            leaving = [self.connected[name] for name in names if name in self.connected]
        for partition in leaving:
            yield from self.taking(partition)
            try:
                began = clock()
                tells_broker = partition.endpoint not in silent
                yield from self.releasing(partition, reason, tells_broker=tells_broker)
                if clock() - began >= _SILENCE_S:
                    silent.add(partition.endpoint)
            except Exception:
                # The others are to be given up all the same.
                logger.warning("%s could not be given up", partition.partition, exc_info=True)
            finally:
                partition.lock.release()

    def taking(self, partition: ConsumerPartition) -> Steps[None]:
        """Take the lock of a partition that is given up: a fetch that is under way is abandoned.

        What confirms its batch is waited for, since that ends by itself, unless its event loop has ended.
        """
        with self.guard:
            self.cache.hold_back([partition.partition])
        self.abandon(partition.partition)
        for turn in partition.lock.take():
            while not (yield from wait_for(AtMost(cast("Future[None]", turn), _LOOK_S))):
                self.abandon_orphans()

    def waiting_for_batches(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        """Hand out nothing more of some partitions, and wait until what was handed out is confirmed.

        That takes ``rebalance_wait_ms`` at most, and ends when the consumer closes: none can confirm then.
        """
        deadline = Deadline.after_ms(self.config.consumer.rebalance_wait_ms)
        while not deadline.expired:
            with self.guard:
                self.cache.expire()
                if self.life is not Life.OPEN or not set(self.cache.hold_back(partitions)) & set(partitions):
                    return
                change = self.changed.next()
            yield from wait_for(AtMost(change, deadline.remaining()))
        with self.guard:
            self.cache.hold_back(partitions)

    def note_trouble(self, partition: ConsumerPartition, error: TubeMQError) -> None:
        """Remember why a partition cannot be read; warn of the first of several errors."""
        with self.guard:
            first = self.troubles.get(partition.partition) is None
            self.troubles[partition.partition] = error
        if first:
            logger.warning("%s cannot be read; it is tried again: %s", partition.partition, error)

    def note_success(self, partition: ConsumerPartition) -> None:
        """Forget the trouble of a partition that answers."""
        if not self.troubles:  # as a rule, and then without the lock
            return
        with self.guard:
            trouble = self.troubles.pop(partition.partition, None)
        if trouble is not None:
            logger.info("%s can be read again", partition.partition)

    def note_missed(self, broker: Endpoint, error: Exception) -> None:
        """Count a heartbeat that a broker missed; warn of the first one in a row."""
        with self.guard:
            self.missed[broker] = count = self.missed.get(broker, 0) + 1
        if count == 1:
            logger.warning("no lease at %s could be renewed; it is tried again: %s", broker, error)

    def note_answer(self, broker: Endpoint) -> None:
        """Count missed heartbeats of a broker from 0; log how many there were."""
        with self.guard:
            count = self.missed.pop(broker, 0)
            here = {
                one.broker_id for one, partition in self.connected.items() if partition.endpoint == broker
            }
            if {self.cache.note_answer(broker_id) for broker_id in here} & {True}:
                self.changed.notify_all()
        if count:
            logger.info("leases at %s are renewed again, after %d missed heartbeats", broker, count)


def _nothing() -> None:
    pass


def is_taken(error: TubeMQError) -> bool:
    """Whether another consumer of the group holds the partition (410, 412)."""
    return isinstance(error, RpcError) and error.code in _TAKEN
