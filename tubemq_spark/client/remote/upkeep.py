"""What a consumer at a gateway does beside its user's calls: heartbeats, and what their answers tell.

A heartbeat keeps the session alive while none fetches, brings the events of the session, and joins at the
next gateway when one was lost. They come quickly at first, and soon as often as the gateway wants: while a
new member waits for partitions, and after something has changed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.callbacks import Callbacks
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.fetching import RemoteFetching, RemotePartition
from tubemq_spark.client.remote.link import Link
from tubemq_spark.client.tasks import is_cancelled
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.loss import LossRecord
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.partition_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.2
"""Before the first heartbeat after something has changed."""
_LONGEST_S: Final = 10.0
"""Between two heartbeats, if the gateway does not want them more often."""


class Partitions:
    """The partitions of a consumer at a gateway, as the gateway tells."""

    def __init__(
        self, state: ConsumerState, callbacks: Callbacks, endpoint_of: Callable[[TopicPartition], Endpoint]
    ) -> None:
        """Hold none.

        Args:
            state: what the consumer holds.
            callbacks: tell the user what comes and goes.
            endpoint_of: returns the broker of a partition, or the gateway.
        """
        self.callbacks = callbacks
        self._state = state
        self._endpoint_of = endpoint_of

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Hold a partition from an offset on; nothing changes if it is held."""
        state = self._state
        if partition in state.connected:
            return
        endpoint = self._endpoint_of(partition)
        state.connected[partition] = RemotePartition(partition, endpoint)  # type: ignore[assignment]
        if self.callbacks.holds:
            state.cache.hold(partition)
        info = PartitionInfo(partition.broker_id, endpoint, partition.topic, partition.partition_id)
        state.cache.add(info, Position(offset, None))
        state.troubles.pop(partition, None)
        state.changes.note()
        self.callbacks.assigned([partition])

    def remove(self, partition: TopicPartition, reason: TubeMQError | None = None) -> bool:
        """Give a partition up; return whether it was held."""
        state = self._state
        held = state.connected.get(partition)
        if held is None:
            return False
        state.remove(held)
        if reason is not None:
            state.troubles[partition] = reason
            logger.warning("%s is given up: %s", partition, reason)
            state.on_loss(partition)
        self.callbacks.revoked([partition])
        return True

    def replace(self, positions: dict[TopicPartition, int]) -> None:
        """Hold these and no others."""
        for partition in self._state.held():
            if partition not in positions:
                self.remove(partition)
        for partition, offset in positions.items():
            self.add(partition, offset)


class RemoteUpkeep:
    """Keeps a consumer at a gateway."""

    def __init__(
        self,
        state: ConsumerState,
        link: Link,
        fetching: RemoteFetching,
        partitions: Partitions,
        tell_loss: Callable[[LossRecord], Awaitable[None]] | None,
        more: Callable[[int], Awaitable[None]],
    ) -> None:
        """Do nothing.

        Args:
            state: the consumer's partitions.
            link: its session.
            fetching: its batches.
            partitions: what changes its partitions.
            tell_loss: asks the user what to do about records that are gone; None: a call fails instead.
            more: what else is to be done with each heartbeat, during a stay.
        """
        self._state = state
        self._link = link
        self._fetching = fetching
        self._partitions = partitions
        self._tell_loss = tell_loss
        self._more = more
        self._seen = 0
        self._stay = 0
        self._lost: set[TopicPartition] = set()
        """Partitions of which an event will tell that they were given up, which is known."""
        self._period_s = _SHORTEST_S
        self._hastened = asyncio.Event()
        """Set when the next heartbeat is due at once."""
        self._patience: Deadline | None = None
        """How long a gateway that is about to stop is used on."""

    def hasten(self) -> None:
        """Ask soon what has changed, and then more and more rarely."""
        self._period_s = _SHORTEST_S
        self._hastened.set()

    def lose(self, partition: TopicPartition, error: TubeMQError) -> None:
        """Give up a partition that the gateway has given up, before its event comes."""
        self._lost.add(partition)
        self._partitions.remove(partition, error)

    async def run(self) -> None:
        """Send heartbeats until this is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._hastened.wait()
            self._hastened.clear()
            self._fetching.expire()
            try:
                await self._beat()
            except BaseException:  # also sys.exit() in a policy
                if is_cancelled():
                    raise
                # The next one is another chance.
                logger.warning("heartbeat of %s failed", self._state.client_id, exc_info=True)

    async def _beat(self) -> None:
        if self._state.life is not Life.OPEN or self._link.is_resting:
            return
        self._period_s = min(_LONGEST_S, 2 * self._period_s)
        link, timeout_s = self._link, self._state.config.rpc_timeout_ms / 1000
        try:
            await link.joined()
            stay = link.stay
            if stay != self._stay:  # whose events have numbers of their own
                self._stay, self._seen = stay, 0
                self._lost.clear()
            request = pb.HeartbeatRequest(seen=self._seen)
            answer = await link.ask("Heartbeat", request, pb.HeartbeatResponse, timeout_s, stay)
            self._state.note_answer(link.endpoint)
            if stay == link.stay:
                await self._take(answer, stay)
            if answer.draining or link.is_draining:
                self._leave(stay)
            else:
                await self._more(stay)
        except AwayError as error:
            self._note_missed(error)
        except TubeMQError as error:
            self._note_missed(error)
            self._link.rest()

    def _note_missed(self, error: AwayError | TubeMQError) -> None:
        self._state.note_missed(self._link.endpoint, error)

    def _leave(self, stay: int) -> None:
        """Leave a gateway that is about to stop, as soon as what is out was confirmed, or was not in time."""
        if self._fetching.has_batches and self._patience is None:
            self._patience = Deadline.after_ms(self._state.config.consumer.rebalance_wait_ms)
        if not self._fetching.has_batches or (self._patience is not None and self._patience.expired):
            self._patience = None
            self._link.lost(stay, AwayError("it is about to stop"))
        self._period_s = _SHORTEST_S

    async def _take(self, answer: pb.HeartbeatResponse, stay: int) -> None:
        for event in answer.events:
            if event.number <= self._seen:
                continue
            which = event.WhichOneof("event")
            if which == "partition_lost":
                partition = values.partition_from_proto(event.partition_lost.partition)
                if partition in self._lost:  # a fetch has said so, and it may be held again
                    self._lost.discard(partition)
                else:
                    self._partitions.remove(partition, from_proto(event.partition_lost.error))
            elif which == "partitions_changed":
                positions = values.offsets_from_proto(event.partitions_changed.partitions)
                self._partitions.replace(positions)
                if not positions:
                    self._fetching.look()
                self.hasten()
            elif which == "offset_corrected" and self._tell_loss is not None:
                partition = values.partition_from_proto(event.offset_corrected.partition)
                await self._take_loss(wire.loss_from_proto(event.offset_corrected.loss, partition), stay)
            self._seen = event.number

    async def _take_loss(self, loss: LossRecord, stay: int) -> None:
        """Ask the policy about a loss that was passed over; give the partition up if it raises."""
        try:
            if self._tell_loss is not None:
                await self._tell_loss(loss)
        except TubeMQError as error:
            self._partitions.remove(loss.partition, error)
            request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(loss.partition)])
            timeout_s = self._state.config.rpc_timeout_ms / 1000
            with contextlib.suppress(TubeMQError):  # a member cannot, and gets nothing of it
                await self._link.ask(
                    "DetachPartitions", request, pb.DetachPartitionsResponse, timeout_s, stay
                )
