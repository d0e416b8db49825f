"""What a consumer at a gateway holds, the calls that bring messages and end batches, and the users that wait.

The gateway has the engine: it asks brokers, books partitions, and says which confirmation is late. The state
here is what its answers and events have told, and what the user wants.

===============  ===========================================================================================
a batch is       until
===============  ===========================================================================================
*buffered*       a user takes it, a newer one of its partition comes, or the partition goes or is moved. It
                 waits there when its caller has left, and while its partition is not wanted, or not known yet
*out*            its user's confirmation has an answer, the partition goes or is moved, or the generation ends
===============  ===========================================================================================

- A partition has at most one batch buffered, and at most one out. A newer one takes the place of an older
  one, which the gateway has taken back, since it was not confirmed in time.
- A buffered batch goes to the first that asks, unless it has waited for as long as the gateway waits for its
  confirmation: then it comes again.
- A partition is *wanted* unless its user has paused it, or something *holds* it: a callback that is to be
  told of it, a move, a disconnection. Nothing of others is handed out.
- Of a batch that cannot be confirmed any more it is known why: its generation was the last one that is over,
  its partition was moved or has gone; all else is "confirmed before, or not in time".

A *call* waits at the gateway for messages of any partition; a task carries it out to its end, also when its
caller has left. What it brings is buffered for the one that has waited longest. So a fetch may be cancelled
or interrupted at any moment: nothing is lost, and nothing comes later for it.

- For each that waits there is a buffered batch, or a call under way, if the gateway may have messages that
  are wanted. Without anyone who waits no call begins.
- The gateway is told with each call what is not wanted, and goes by the last one. When it was told of
  something that is wanted again, one more call begins.
- What was asked for before a partition was moved, or disconnected, may have been read before that, or behind
  it: it goes back to the gateway, and comes again.
- While no gateway is to be asked (``membership``), calls wait.
"""

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.cache import PATIENCE_S
from tubemq_spark.client.consumer.life import ConsumerLife, confirmed_late, sought
from tubemq_spark.client.consumer.user_code import Callbacks
from tubemq_spark.client.consumer.values import (
    Batch,
    Confirmed,
    ConsumedPosition,
    ConsumeStatus,
    PartitionState,
    parse_context,
)
from tubemq_spark.client.consumer.waiting import WaitingLine
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.reader.records import records_of
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.membership import Membership
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.retry import MOVED_REST_MS
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

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
        self._is_member = is_member
        self._paused: set[TopicPartition] = set()
        self._holds: collections.Counter[TopicPartition] = collections.Counter()
        """How much has to end before something of a partition is handed out."""
        self._buffer: dict[TopicPartition, tuple[Batch, float]] = {}
        """In the order of handing out, with the times of the event loop until which they count."""
        self._lost: set[str] = set()
        """What was out when the last generation was over."""

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

    async def let_go(
        self,
        partitions: Collection[TopicPartition],
        error: TubeMQError | None = None,  # noqa: ARG002 (a gateway takes no single partition back)
    ) -> None:
        """End one ``hold`` of each."""
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
        """Return the state of a connected partition, as far as this side knows it."""
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
        """Note that what is out cannot be confirmed any more, since its generation is over."""
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


_WAIT_S: Final = 20.0
"""How long a gateway waits for messages, which is as long as it does at most."""


class RemoteFetching(WaitingLine):
    """Fetches and ends batches for one consumer; ``on_failure`` hears why a call for messages was refused."""

    def __init__(
        self,
        state: RemoteState,
        membership: Membership,
        tasks: OwnedTasks,
        on_failure: Callable[[TubeMQError], object],
    ) -> None:
        super().__init__(state)
        self.ending = 0
        """How many batches are being confirmed or rolled back."""
        self._state = state
        self._membership = membership
        self._tasks = tasks
        self._on_failure = on_failure
        self._calls: set[asyncio.Task[None]] = set()
        self._told: frozenset[TopicPartition] = frozenset()
        """What the gateway knows not to be wanted."""
        self._moved: dict[TopicPartition, int] = {}
        """A number between those of the calls before the last move of a partition, or the last disconnection,
        and behind it."""
        state.changes.listener = self._begin_fetches

    @property
    def _outcomes(self) -> int:
        return len(self._errors) + len(self._state.ready())

    def _hand_out(self) -> Batch:
        return self._state.hand_out()

    def _longest_s(self, timeout_s: float) -> float:
        return max(timeout_s, PATIENCE_S)  # a call itself waits for messages, and does not end in between

    def _comes_soon(self, ended: int) -> bool:
        state = self._state
        is_idle = any(state.state_of(partition) is PartitionState.IDLE for partition in state.connected)
        return state.asking > 0 and is_idle and self._ended - ended < len(state.connected)

    # Calls for messages.

    def _begin_fetches(self) -> None:
        """Begin as many calls as are missing; called with every change."""
        state = self._state
        if not self._waiting or state.stopped or not state.expects_messages():
            return
        missing = len(self._waiting) - self._outcomes - len(self._calls)
        if missing <= 0 and state.asking == len(self._calls) > 0 and not self._told <= state.unwanted:
            missing = 1
        for _ in range(missing):
            call = self._tasks.start(self._call(), f"fetch of {state.client_id}")
            self._calls.add(call)
            call.add_done_callback(self._end_call)

    def _end_call(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._ended += 1
        if not call.cancelled() and (error := call.exception()) is not None:
            self._errors.append(error)
        self._state.changes.note()

    async def _call(self) -> None:
        """Wait for messages at the gateway, and buffer what comes."""
        membership = self._membership
        try:
            await membership.rested()
            generation, number = await membership.joined_or_rest(), next(self._numbers)
            answer = await self._ask(generation)
        except AwayError as error:
            logger.debug("%s waits: %s", self._state.client_id, error)
            return
        except TubeMQError as error:
            self._on_failure(error)
            raise
        if answer.draining:
            membership.note_draining()
        if answer.batch:
            self._take(answer, number, generation)
        elif answer.reason != pb.FetchResponse.REASON_AT_ENDS:
            # It knows of other partitions than this consumer, which the next heartbeat will mend.
            await asyncio.sleep(MOVED_REST_MS / 1000)

    async def _ask(self, generation: int) -> pb.FetchResponse:
        self._told = self._state.unwanted
        paused = map(values.partition_to_proto, sorted(self._told))
        request = pb.FetchRequest(wait_ms=round(1000 * _WAIT_S), paused=paused)
        self._state.asking += 1
        try:
            return await self._membership.ask("Fetch", request, pb.FetchResponse, generation, more_s=_WAIT_S)
        finally:
            self._state.asking -= 1

    def _take(self, answer: pb.FetchResponse, number: int, generation: int) -> None:
        """Take over a gateway's answer with a batch; roll back one that a move has overtaken."""
        partition = values.partition_from_proto(answer.partition)
        if number < self._moved.get(partition, 0):
            rolling_back = self._commit(answer.batch, generation, consumed=False)
            self._tasks.start(rolling_back, f"rolling {answer.batch} back")  # or else it comes again later
            return
        try:
            columns = batches.from_proto(answer.records, answer.records.data, partition)
        except MalformedMessageError as error:
            raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
        batch = Batch(
            partition,
            columns.start,
            answer.latest if answer.HasField("latest") else None,
            tuple(
                records_of(
                    columns, exact_offsets=columns.dense, time_zone=self._state.config.message_time_zone
                )
            ),
            self._state.endpoint_of(partition) or self._membership.endpoint,
            answer.batch,
            bytes_behind=columns.bytes_behind,
            slow=answer.slow,
        )
        self._state.buffer(batch)
        if partition not in self._state.connected:
            self._membership.hasten()

    def note_move(self, partition: TopicPartition) -> None:
        """Take back what was asked for by now, if it is of a partition that is moved or given up."""
        self._moved[partition] = next(self._numbers)

    # Ending batches.

    async def end_batch(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; see ``Consumer.confirm``."""
        partition = self._state.begin_to_end(context)
        offset, latest = None, self._state.connected[partition].position.latest
        try:
            answer = await self._commit(context, self._membership.generation, consumed=consumed)
            offset = answer.offset if answer.HasField("offset") else None
            latest = answer.latest if answer.HasField("latest") else latest
        except AwayError as error:
            during = f"confirming a batch of {partition}, which comes again unless that was done"
            raise self._membership.away_error(during, error) from error
        finally:
            self._state.end_batch(partition, context, offset, latest)
        return Confirmed(partition, context, offset, latest)

    async def _commit(self, context: str, generation: int, *, consumed: bool) -> pb.CommitResponse:
        request = pb.CommitRequest(batch=context, roll_back=not consumed)
        self.ending += 1
        try:
            return await self._membership.ask("Commit", request, pb.CommitResponse, generation)
        finally:
            self.ending -= 1
            self._state.changes.note()
