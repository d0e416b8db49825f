"""What a consumer at a gateway holds: its partitions, where they stand, and where their batches are.

The gateway has the engine: it asks brokers, books partitions, and says which confirmation is late. Here is
what its answers and events have told, and what the user wants.

===============  ===========================================================================================
a batch is       until
===============  ===========================================================================================
*buffered*       a user takes it, a newer one of its partition comes, or the partition goes or is moved. It
                 waits there when its caller has left, and while its partition is not wanted, or not known yet
*out*            its user's confirmation has an answer, the partition goes or is moved, or the stay is over
===============  ===========================================================================================

Invariants:

- A partition has at most one batch buffered, and at most one out. A newer one takes the place of an older
  one, which the gateway has taken back, since it was not confirmed in time.
- A buffered batch goes to the first that asks, unless it has waited for as long as the gateway waits for its
  confirmation: then it comes again.
- A partition is *wanted* unless its user has paused it, or something *holds* it: a callback that is to be
  told of it, a move, a disconnection. Nothing of others is handed out.
- Of a batch that cannot be confirmed any more it is known why: its stay was the last one that is over, its
  partition was moved or has gone; all else is "confirmed before, or not in time".
"""

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.life import ConsumerLife, confirmed_late, sought
from tubemq_spark.client.consumer.user_code import Callbacks
from tubemq_spark.client.consumer.values import (
    Batch,
    ConsumedPosition,
    ConsumeStatus,
    PartitionState,
    parse_context,
)
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class RemotePartition:
    """A partition that a gateway holds for this consumer."""

    endpoint: Endpoint
    position: ConsumedPosition
    out: str | None = None
    """The context of the batch that is out."""
    is_ending: bool = False
    """Whether the gateway is told what becomes of it."""
    moved: str | None = None
    """The context of the last batch that was out when the partition was moved."""


class RemoteState(ConsumerLife):
    """The partitions of one consumer at a gateway; ``is_member``: they come without being asked for."""

    callbacks: Callbacks
    """Tell the user what comes and goes."""

    def __init__(self, config: ClientConfig, subscription: Subscription, *, is_member: bool) -> None:
        super().__init__(config, subscription)
        self.connected: dict[TopicPartition, RemotePartition] = {}
        self.asking = 0
        """How many calls wait for messages at the gateway."""
        self.tell: Callable[[BaseException], object] = lambda _: None
        """Makes a fetch raise an error; ``RemoteFetching`` sets this."""
        self._is_member = is_member
        self._paused: set[TopicPartition] = set()
        self._holds: collections.Counter[TopicPartition] = collections.Counter()
        """How much has to end before something of a partition is handed out."""
        self._buffer: dict[TopicPartition, tuple[Batch, float]] = {}
        """In the order of handing out, with the times of the event loop until which they count."""
        self._lost: set[str] = set()
        """What was out when the last stay was over."""

    # Partitions.

    def add(self, partition: TopicPartition, offset: int, endpoint: Endpoint) -> None:
        """Hold a partition from an offset on; nothing changes if it is held."""
        if partition not in self.connected:
            if self.callbacks.holds:
                self.hold(partition)
            self.connected[partition] = RemotePartition(endpoint, _position(offset))
            self.troubles.pop(partition, None)
            self.changes.note()
            self.callbacks.assigned([partition])

    def remove(self, partition: TopicPartition, reason: TubeMQError | None = None) -> bool:
        """Give a partition up; return whether it was held."""
        if self.connected.pop(partition, None) is None:
            return False
        self._buffer.pop(partition, None)
        if reason is not None:
            self.troubles[partition] = reason
            logger.warning("%s is given up: %s", partition, reason)
        self.changes.note()
        self.callbacks.revoked([partition])
        return True

    def hold(self, partition: TopicPartition) -> None:
        """Hand out nothing of a partition until ``let_go`` was called as often as this."""
        self._holds[partition] += 1

    async def let_go(self, partitions: Collection[TopicPartition], _: TubeMQError | None = None) -> None:
        """End one ``hold`` of each; after an error of a callback too, since a gateway takes none back."""
        self._holds.subtract(partitions)
        self._holds = +self._holds
        self.changes.note()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What the user has paused, held or not."""
        return frozenset(self._paused)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of partitions until they are resumed."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Hand them out again; by default all that were paused."""
        self._paused.difference_update(self.paused if partitions is None else partitions)

    @property
    def unwanted(self) -> frozenset[TopicPartition]:
        """What was paused, and what is held until something has ended."""
        return self.paused.union(self._holds)

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the group stands in the partitions that are held."""
        return {partition: entry.position for partition, entry in self.connected.items()}

    def expects_messages(self) -> bool:
        """Return whether the gateway may have messages that are wanted."""
        return bool(self.connected.keys() - self.unwanted) if self.connected else self._is_member

    def state_of(self, partition: TopicPartition) -> PartitionState:
        """Return what a partition is doing that is held, as far as that is known here."""
        if self.connected[partition].out is not None:
            return PartitionState.IN_USE
        if partition in self._paused or partition in self._holds:
            return PartitionState.PAUSED
        return PartitionState.FETCHING if partition in self._buffer else PartitionState.IDLE

    def status(self) -> ConsumeStatus:
        """Return whether messages can be had now."""
        states = {self.state_of(partition) for partition in self.connected}
        if not states:
            return ConsumeStatus.NOTHING_ASSIGNED
        if PartitionState.FETCHING in states or (PartitionState.IDLE in states and not self.asking):
            return ConsumeStatus.READY
        if PartitionState.IDLE in states:
            return ConsumeStatus.ALL_RESTING
        return ConsumeStatus.ALL_IN_USE if PartitionState.IN_USE in states else ConsumeStatus.ALL_PAUSED

    # The way of a batch.

    def buffer(self, batch: Batch, *, first: bool = False) -> None:
        """Keep a batch until someone takes it."""
        until = asyncio.get_running_loop().time() + self.config.consumer.confirm_timeout_ms / 1000
        self._buffer.pop(batch.partition, None)
        self._buffer[batch.partition] = batch, until
        if first:
            self._buffer = {batch.partition: (batch, until), **self._buffer}

    def put_back(self, batch: Batch) -> None:
        """Take a batch back that has not reached its user: the next one gets it."""
        entry = self.connected.get(batch.partition)
        if entry is not None and entry.out == batch.context and not entry.is_ending:
            entry.out = None
            self.buffer(batch, first=True)
            self.changes.note()

    def ready(self) -> list[Batch]:
        """Return the buffered batches that may be handed out, in their order."""
        if not self._buffer:
            return []
        now, wanted = asyncio.get_running_loop().time(), self.connected.keys() - self.unwanted
        return [batch for batch, until in self._buffer.values() if batch.partition in wanted and now < until]

    def hand_out(self) -> Batch:
        """Return the batch that comes next; its user has to confirm it."""
        batch = self.ready()[0]
        del self._buffer[batch.partition]
        entry = self.connected[batch.partition]
        entry.out, entry.is_ending = batch.context, False
        entry.position = _position(batch.offset, batch.latest)
        return batch

    def begin_to_end(self, context: str) -> TopicPartition:
        """Return the partition of a batch that is out, which is ended by nothing else from now on."""
        partition = parse_context(context).partition
        self.check_open()
        entry = self.connected.get(partition)
        if context in self._lost:
            why = "its gateway was lost, so it comes again"
            raise confirmed_late(partition, ErrCode.BAD_REQUEST, why)
        if entry is None:
            raise confirmed_late(partition, ErrCode.NOT_FOUND, "the partition is not connected any more")
        if entry.moved == context:
            raise sought(partition)
        if entry.out != context or entry.is_ending:
            raise confirmed_late(partition, ErrCode.BAD_REQUEST, "it was confirmed before, or not in time")
        entry.is_ending = True
        return partition

    def end_batch(
        self, partition: TopicPartition, context: str, offset: int | None, latest: int | None
    ) -> None:
        """Note that a batch is not out any more, and where its partition stands, if that is known."""
        entry = self.connected.get(partition)
        if entry is not None and entry.out == context:
            entry.out = None
            if offset is not None:
                entry.position = _position(offset, latest)
        self.changes.note()

    def lose_batches(self) -> None:
        """Note that what is out cannot be confirmed any more, since its stay is over."""
        self._buffer.clear()
        self._lost = {entry.out for entry in self.connected.values() if entry.out is not None}
        for entry in self.connected.values():
            entry.out = None

    def begin_move(self, partition: TopicPartition) -> None:
        """Hand out nothing of a partition that is held until ``end_move``, and forget its batches."""
        self.hold(partition)
        self._buffer.pop(partition, None)
        entry = self.connected[partition]
        entry.moved, entry.out = entry.out or entry.moved, None

    async def end_move(self, partition: TopicPartition, offset: int | None) -> None:
        """End what one ``begin_move`` has begun; None: the partition stays where it stood."""
        entry = self.connected.get(partition)
        if entry is not None and offset is not None:
            entry.position = _position(offset)
        await self.let_go([partition])


def _position(offset: int, latest: int | None = None) -> ConsumedPosition:
    return ConsumedPosition(offset, latest, time.time())
