"""What the coroutines of a consumer at its brokers share: its partitions, and what each of them is doing.

Its life is that of every consumer (``life``).

Invariants:

- ``connected`` and ``cache`` have the same partitions. They come by ``add`` and go by ``remove``, which only
  the holder of the partition's lock calls.

Each heartbeat period ``Upkeep`` renews the leases of the partitions. All brokers are asked side by side, so
one that takes its time costs no lease elsewhere. The next heartbeat to a broker begins only when the last one
has ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final

from tubemq_spark.client.broker.session import BrokerSession, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PartitionCache
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.life import ConsumerLife, Life
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader, Standing
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import RpcError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import REGISTER_MS
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.packed_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SILENCE_S: Final = 1.0
"""A broker that takes so long to answer is not asked again while several partitions are given up."""
_TAKEN: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.DUPLICATE_PARTITION})
_LONGEST_ANSWER_MS: Final = 5_000
"""A broker that takes longer is asked again before its leases end."""


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
        self.abandon: Callable[[TopicPartition], object] = lambda _: None
        """Cancels a fetch of a partition that is under way; ``FetchLine`` sets this."""
        self.refused: Callable[[], RpcError | None] = lambda: None
        """Returns why the master does not take this member of a group any more, if it does not."""
        self.on_loss: Callable[[TopicPartition], object] = lambda _: None
        """Called when a partition was given up for an error."""
        self.on_partitions: Callable[[], object] = lambda: None
        """Called when a partition was added or removed."""

    def check_fetch(self) -> None:
        """Raise an error unless the consumer may fetch, and the master takes it."""
        super().check_fetch()
        if (refused := self.refused()) is not None:
            raise refused

    async def register(
        self, partition: ConsumerPartition, offset: int | None, status: ReadStatus, *, on_hold: bool = False
    ) -> Position:
        """Register a new partition at its broker, by default where the group stands, and add it.

        After an error or a cancellation the broker is told, which may have carried the request out.
        """
        async with partition.lock:
            try:
                position = await self._connect(partition, offset, status)
                self.add(partition, position, on_hold=on_hold)
            except BaseException:
                await self.release(partition)
                raise
        return position

    async def _connect(
        self, partition: ConsumerPartition, offset: int | None, status: ReadStatus
    ) -> Position:
        """Register a partition, with a second attempt after an error that may pass."""
        deadline = Deadline.after_ms(self.config.rpc_timeout_ms, asyncio.get_running_loop().time)
        try:
            return await partition.connect(offset, status)
        except TubeMQError as error:
            if not error.retriable or is_taken(error) or deadline.expired:
                raise
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(REGISTER_MS / 1000, deadline.remaining())):
                await self.changes.until(lambda: self.life is not Life.OPEN)
        self.check_open()
        return await partition.connect(offset, status)

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

    async def let_go(self, partitions: Collection[TopicPartition], error: TubeMQError | None = None) -> None:
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
        if True in {self.cache.brokers.answer(broker_id) for broker_id in here}:
            self.changes.note()
        super().note_answer(broker)


def is_taken(error: TubeMQError) -> bool:
    """Whether another consumer of the group holds the partition (410, 412)."""
    return isinstance(error, RpcError) and error.code in _TAKEN


class Upkeep:
    """Renews the leases of one consumer."""

    def __init__(
        self, state: ConsumerState, reader: Reader, after_leases: Callable[[], object] = lambda: None
    ) -> None:
        """Ask no broker. ``after_leases`` does what else is due in a period, and must return at once."""
        self._state = state
        self._reader = reader
        self._after_leases = after_leases
        self._heartbeats = OwnedTasks()
        self._under_way: dict[Endpoint, asyncio.Task[None]] = {}
        """The last heartbeat to each broker."""

    async def run(self) -> None:
        """Do each period what is due, until this is cancelled; then no heartbeat is left."""
        try:
            while True:
                await asyncio.sleep(self._reader.config.heartbeat_period_ms / 1000)
                try:
                    self.run_once()
                except Exception:
                    # The next period is another chance; leases last longer.
                    logger.warning("upkeep of %s failed", self._state.client_id, exc_info=True)
        finally:
            await self._heartbeats.cancel()

    def run_once(self) -> None:
        """Begin everything that is due in a period; waits for no server."""
        if self._state.cache.expire() or self._state.cache.wake():
            self._state.changes.note()
        self._keep_leases()
        self._after_leases()

    def _keep_leases(self) -> None:
        """Begin a heartbeat to each broker, except those whose last one has not ended."""
        by_broker: dict[Endpoint, list[ConsumerPartition]] = {}
        for partition in self._state.connected.values():
            by_broker.setdefault(partition.endpoint, []).append(partition)
        # At other brokers nothing is held any more.
        missed = self._state.missed
        self._state.missed = {broker: count for broker, count in missed.items() if broker in by_broker}
        self._under_way = {broker: task for broker, task in self._under_way.items() if not task.done()}
        for endpoint, partitions in by_broker.items():
            if endpoint not in self._under_way:
                self._under_way[endpoint] = self._heartbeats.start(
                    self._renew(endpoint, partitions), f"leases at {endpoint}", alone=True
                )

    async def _renew(self, endpoint: Endpoint, partitions: list[ConsumerPartition]) -> None:
        """Renew the leases at a broker. Without an answer nothing changes: the next fetch will find out."""
        config, session = self._reader.config, self._reader.session
        try:
            connect_ms = min(config.connect_timeout_ms, _LONGEST_ANSWER_MS)
            connection = await self._reader.connections.get(endpoint, connect_ms, config.tls)
            broker = BrokerSession(
                connection, config, session.visit_token, authorized_token=session.authorized_token
            )
            names = [partition.partition for partition in partitions]
            lost = await broker.start_heartbeat(
                config.group, session.client_id, names, timeout_ms=_LONGEST_ANSWER_MS
            )
        except TubeMQError as error:
            if self._state.life is Life.OPEN:
                self._state.note_missed(endpoint, error)
            if is_token_refused(error):
                session.refresh_soon()
            return
        self._state.note_answer(endpoint)
        for partition in partitions:
            if partition.partition in lost:
                await self._lose(endpoint, partition, lost[partition.partition])

    async def _lose(self, endpoint: Endpoint, partition: ConsumerPartition, code: int) -> None:
        """Register a partition again with its next fetch, or give it up when another consumer has it."""
        peer, during = f"broker {endpoint}", f"renewing the lease of {partition.partition}"
        error = rpc_error(code, "", peer=peer, during=during)
        # What uses it at this moment gets the same answer. The lock need not be taken: nothing here waits,
        # since a broker is not told of a partition that another consumer has taken.
        if partition.lock.locked() or partition.standing is Standing.RELEASED:
            return
        if is_taken(error):
            logger.warning("%s is given up: %s", partition.partition, error)
            await self._state.release(partition, error)
        elif code == ErrCode.HB_NO_NODE:
            logger.info("%s is registered again: its broker has forgotten us", partition.partition)
            partition.unplace()
