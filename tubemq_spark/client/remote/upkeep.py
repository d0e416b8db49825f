"""What a consumer at a gateway does beside its user's calls: heartbeats, and what their answers tell.

The scheduler of the process carries them out, so a consumer has no thread. A heartbeat keeps the session
alive while none fetches, brings the events of the session, and joins at the next gateway when one was lost.
They come quickly at first, and soon as often as the gateway wants: while a new member waits for partitions,
and after something has changed.
"""

import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Final

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.callbacks import Callbacks
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.remote import wire
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.fetching import RemoteFetching, RemotePartition
from tubemq_spark.client.remote.link import Link
from tubemq_spark.client.steps import Blocking, Pause, Steps, wait_for
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.scheduler import Task, process_scheduler
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import from_proto
from tubemq_spark.protocol.partition_strings import PartitionInfo

logger = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.2
"""Before the first heartbeat after something has changed."""
_LONGEST_S: Final = 10.0
"""Between two heartbeats, if the gateway does not want them more often."""
_LOOK_S: Final = 0.02
"""How often closing looks whether batches are still being confirmed."""
_CLOSE_S: Final = 3.0
"""How long a gateway may take to close a session with its consumer."""


class Partitions:
    """The partitions of a consumer at a gateway, as the gateway tells."""

    def __init__(self, state: ConsumerState, endpoint_of: Callable[[TopicPartition], Endpoint]) -> None:
        self._state = state
        self._endpoint_of = endpoint_of
        self.callbacks = Callbacks(state, None, None)
        """Tells the user what comes and goes."""

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Hold a partition from an offset on; nothing changes if it is held."""
        state = self._state
        with state.guard:
            if partition in state.connected:
                return
            endpoint = self._endpoint_of(partition)
            state.connected[partition] = RemotePartition(partition, endpoint)  # type: ignore[assignment]
            info = PartitionInfo(partition.broker_id, endpoint, partition.topic, partition.partition_id)
            if self.callbacks.holds:
                state.cache.hold(partition)
            state.cache.add(info, Position(offset, None))
            state.troubles.pop(partition, None)
            state.changed.notify_all()
        self.callbacks.assigned([partition])

    def remove(self, partition: TopicPartition, reason: TubeMQError | None = None) -> bool:
        """Give a partition up; return whether it was held."""
        state = self._state
        with state.guard:
            was_here = state.connected.pop(partition, None) is not None
            state.cache.remove(partition)
            if was_here and reason is not None:
                state.troubles[partition] = reason
        if was_here and reason is not None:
            logger.warning("%s is given up: %s", partition, reason)
            state.on_loss(partition)
        if was_here:
            self.callbacks.revoked([partition])
        return was_here

    def replace(self, positions: dict[TopicPartition, int]) -> None:
        """Hold these and no others."""
        for partition in self._state.held():
            if partition not in positions:
                self.remove(partition)
        for partition, offset in positions.items():
            self.add(partition, offset)


class RemoteUpkeep:
    """Keeps a consumer at a gateway, from ``start`` to ``close``."""

    def __init__(
        self,
        state: ConsumerState,
        link: Link,
        fetching: RemoteFetching,
        partitions: Partitions,
        on_loss: LossPolicy,
        more: Callable[[int], Steps[None]],
    ) -> None:
        """Do nothing.

        Args:
            state: the consumer's partitions.
            link: its session.
            fetching: its batches.
            partitions: what changes its partitions.
            on_loss: what to do about records that are gone.
            more: what else is to be done with each heartbeat, during a stay.
        """
        self._state = state
        self._link = link
        self._fetching = fetching
        self._partitions = partitions
        self._on_loss = on_loss
        self._accepts_losses = on_loss is not fail_on_loss
        self._more = more
        self.ended: Future[None] = Future()
        """Done when the consumer has closed."""
        self._seen = 0
        self._stay = 0
        self._lost: set[TopicPartition] = set()
        """Partitions of which an event will tell that they were given up, which is known."""
        self._task: Task | None = None
        self._should_close = False
        """Whether the consumer is to close."""
        self._is_closing = False
        self._patience: Deadline | None = None
        """How long a gateway that is about to stop is used on."""

    def start(self) -> None:
        """Begin."""
        self._task = process_scheduler().every(
            _SHORTEST_S * 1000, self._run, f"upkeep of {self._state.client_id}"
        )
        if self._should_close:  # since before there was a task to hasten
            self._task.hasten()

    def hasten(self) -> None:
        """Ask soon what has changed, and then more and more rarely."""
        if self._task is not None:
            self._task.period_s = _SHORTEST_S
            self._task.hasten()

    def lose(self, partition: TopicPartition, error: TubeMQError) -> None:
        """Give up a partition that the gateway has given up, before its event comes."""
        self._lost.add(partition)
        self._partitions.remove(partition, error)

    def close(self) -> None:
        """Close the consumer in the background; returns at once, takes no lock, and may be repeated."""
        self._should_close = True
        if self._task is not None:
            self._task.hasten()

    def join(self, timeout: float | None) -> bool:
        """Wait until the consumer has closed, so many seconds at most; return whether it has."""
        if self._task is None:
            self._link.gateways.close(0)
            return True
        futures.wait([self.ended], timeout)
        return self.ended.done()

    # In the scheduler's thread.

    def _run(self) -> InBackground | None:
        if self._should_close:
            self._end()
            return None
        with self._state.guard:
            for booking in self._state.cache.expire():
                self._fetching.take_back(booking)
        return InBackground(self._beat(), f"heartbeat of {self._state.client_id}").start()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._is_closing:
            return
        self._is_closing = True
        self._link.left = True
        self._state.end()
        InBackground(self._closing(), f"closing {self._state.client_id}").start()

    def _closing(self) -> Steps[None]:
        deadline = Deadline.after_ms(round(_CLOSE_S * 1000))
        while self._fetching.commits and not deadline.expired:
            yield from wait_for(Pause(_LOOK_S))
        try:
            # Waiting for gateways is not for the scheduler.
            yield from wait_for(Blocking(functools.partial(self._link.gateways.end, _CLOSE_S)))
        finally:
            for partition in self._state.held():
                self._partitions.remove(partition)
            yield from wait_for(self._partitions.callbacks.settled)
            self.ended.set_result(None)

    def _beat(self) -> Steps[None]:
        if self._state.life is not Life.OPEN or self._link.is_resting:
            return
        self._slow_down()
        link, timeout_s = self._link, self._state.config.rpc_timeout_ms / 1000
        try:
            yield from link.joined()
            stay = link.stay
            if stay != self._stay:  # whose events have numbers of their own
                self._stay, self._seen = stay, 0
                self._lost.clear()
            request = pb.HeartbeatRequest(seen=self._seen)
            answer = yield from link.ask("Heartbeat", request, pb.HeartbeatResponse, timeout_s, stay)
            self._state.note_answer(link.endpoint)
            if stay == link.stay:
                yield from self._take(answer, stay)
            if answer.draining or link.is_draining:
                self._leave(stay)
            else:
                yield from self._more(stay)
        except AwayError as error:
            self._note_missed(error)
        except TubeMQError as error:
            self._note_missed(error)
            self._link.rest()

    def _slow_down(self) -> None:
        if self._task is not None:
            self._task.period_s = min(_LONGEST_S, 2 * self._task.period_s)

    def _note_missed(self, error: AwayError | TubeMQError) -> None:
        self._state.note_missed(self._link.endpoint, error)

    def _leave(self, stay: int) -> None:
        """Leave a gateway that is about to stop, as soon as what is out was confirmed, or was not in time."""
        if self._fetching.has_batches and self._patience is None:
            self._patience = Deadline.after_ms(self._state.config.consumer.rebalance_wait_ms)
        if not self._fetching.has_batches or (self._patience is not None and self._patience.expired):
            self._patience = None
            self._link.lost(stay, AwayError("it is about to stop"))
        self.hasten()

    def _take(self, answer: pb.HeartbeatResponse, stay: int) -> Steps[None]:
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
            elif which == "offset_corrected" and self._accepts_losses:  # otherwise a call has failed
                partition = values.partition_from_proto(event.offset_corrected.partition)
                yield from self._take_loss(wire.loss_from_proto(event.offset_corrected.loss, partition), stay)
            self._seen = event.number

    def _take_loss(self, loss: LossRecord, stay: int) -> Steps[None]:
        """Ask the policy about a loss that was passed over; give the partition up if it raises."""
        error = yield from wait_for(Blocking(functools.partial(self._judge, loss)))
        if error is None:
            return
        self._partitions.remove(loss.partition, error)
        request = pb.DetachPartitionsRequest(partitions=[values.partition_to_proto(loss.partition)])
        timeout_s = self._state.config.rpc_timeout_ms / 1000
        with contextlib.suppress(TubeMQError):  # a member cannot, and gets nothing of it
            yield from self._link.ask(
                "DetachPartitions", request, pb.DetachPartitionsResponse, timeout_s, stay
            )

    def _judge(self, loss: LossRecord) -> TubeMQError | None:
        try:
            self._on_loss(loss)  # it is code of the user
        except TubeMQError as error:
            return error
        return None
