"""Fetching and confirming batches at a gateway, in place of ``client/consumer/fetching.py``.

A turn is a call of the gateway that waits for messages of any partition, so it lasts as long as a wait, and
there is one for each that waits here. What a partition does is known from what comes: its batch is booked
when it comes, and free again when it was confirmed.

What comes for a partition that was paused, or given up, in between goes back to the gateway, and comes again.
So does everything that was not confirmed when a stay at a gateway is over (``link``).
"""

import collections
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.fetching import Booked, Fetching, Turn, not_held, sought
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.values import (
    Batch,
    Booking,
    Confirmed,
    ConsumedPosition,
    PartitionState,
    parse_context,
)
from tubemq_spark.client.reader.records import records_of
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.link import Link
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import ConsumeError, RemoteProtocolError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.retry import MOVED_REST_MS
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.packed import MalformedMessageError

logger = logging.getLogger(__name__)

_ANY: Final = TopicPartition("", -1, -1)
"""What a call is for: whichever partition has messages."""
_WAIT_MS: Final = 20_000
"""How long a gateway waits for messages, which is as long as it does at most."""
_REMEMBERED: Final = 1_000
"""Of how many batches that were lost it is known why they cannot be confirmed."""
_EVER: Final = float("inf")
"""How long a call counts for the one that waits here."""


class RemotePartition(NamedTuple):
    """A partition that a gateway holds for this consumer."""

    partition: TopicPartition
    endpoint: Endpoint


class _Out(NamedTuple):
    """A batch that is to be confirmed at a gateway."""

    stay: int
    name: str


class RemoteFetching(Fetching):
    """Fetches and confirms for one consumer, at the gateway where it is."""

    def __init__(self, state: ConsumerState, clock: Clock = time.monotonic) -> None:
        super().__init__(state)
        self.link: Link
        self.tasks: OwnedTasks
        """Those of the consumer."""
        self.on_news: Callable[[], object] = lambda: None
        """Called when the gateway may have more to tell."""
        self.on_lost: Callable[[TopicPartition, TubeMQError], object] = lambda _partition, _error: None
        """Called when a fetch has failed since a partition was given up."""
        self.refused: TubeMQError | None = None
        """Why a fetch failed while nothing was held."""
        self.move: Callable[[TopicPartition, int | Edge], Awaitable[int]] = self._refuse_to_move
        """Moves a partition at the gateway, of which nothing is out, and returns where it stands."""
        self.commits = 0
        """How many batches are being confirmed or rolled back; they are not in ``_out`` any more."""
        self._clock = clock
        self._out: dict[Booking, _Out] = {}
        self._lost: collections.OrderedDict[Booking, None] = collections.OrderedDict()
        self._place = RemotePartition(_ANY, Endpoint("gateway", 0))
        self._numbers = 0
        self._paused: dict[int, frozenset[TopicPartition]] = {}
        """What was paused when each call began that waits, by the number of its turn."""
        self._nothing_until = 0.0
        self._looks = False
        self._moves: collections.Counter[TopicPartition] = collections.Counter()
        """How many moves of partitions have begun."""

    # What the line asks.

    def fresh_until(self, turn: Turn, began: float) -> float:  # noqa: ARG002 (as long as the call waits)
        """Return until when a turn counts: as long as it asks for all that is wanted now."""
        paused = self._paused.get(turn.booking.number)
        is_current = paused is None or paused <= self.state.cache.unwanted
        return _EVER if is_current else -_EVER

    def select_now(self) -> Turn | None:
        """Return a turn, if the gateway may have messages.

        Raises:
            ConsumeError: the consumer is not open.
        """
        state = self.state
        state.check_open()
        self.expire()
        if self._clock() < self._rest_until() or self.link.is_draining:
            return None
        if self.link.gateway is not None and not state.cache.at_rest and not self._looks:
            if self.refused is not None and not state.connected:
                raise self.refused
            return None
        self._looks = False
        self._numbers += 1
        return Turn(Booking(_ANY, self._numbers), False, self._place)  # type: ignore[arg-type]

    def wait_s(self) -> float | None:
        """Return after how many seconds ``select_now`` may find something; None: not by itself."""
        waits = [self.state.cache.wait_s()]
        if (rest := self._rest_until() - self._clock()) > 0:
            waits.append(rest)
        return min((wait for wait in waits if wait is not None), default=None)

    def _rest_until(self) -> float:
        return max(self.link.rest_until, self._nothing_until)

    async def take_turn(self, turn: Turn) -> Booked | None:
        """Wait for messages at the gateway; None when there were none for the user.

        Raises:
            TubeMQError: as ``Consumer.fetch``.
        """
        number = turn.booking.number
        try:
            await self.link.joined()
            stay = self.link.stay
            paused = self._paused[number] = self.state.cache.unwanted
            moves = dict(self._moves)
            request = pb.FetchRequest(wait_ms=_WAIT_MS, paused=map(values.partition_to_proto, sorted(paused)))
            answer = await self.link.ask("Fetch", request, pb.FetchResponse, _WAIT_MS / 1000, stay)
        except AwayError as error:
            logger.debug("%s waits: %s", self.state.client_id, error)
            return None
        except TubeMQError as error:
            self._note_failure(error)
            raise
        finally:
            self._paused.pop(number, None)
        return self._book(answer, stay, moves)

    def look(self) -> None:
        """Ask once whether the gateway refuses: everything was taken from this consumer."""
        self._looks = True
        self.state.changes.note()

    def _note_failure(self, error: TubeMQError) -> None:
        """Give the partition up that an error is about; the gateway has done so."""
        about = str(error.parameters.get("partition"))
        for partition in self.state.held():
            if str(partition) == about:
                self.on_lost(partition, error)
        self.refused = error
        self.on_news()

    def _book(  # type: ignore[override]
        self, answer: pb.FetchResponse, stay: int, moves: Mapping[TopicPartition, int]
    ) -> Booked | None:
        if answer.draining and not self.link.is_draining:
            self.link.is_draining = True
            self.on_news()
        if not answer.batch:
            if answer.reason != pb.FetchResponse.REASON_AT_ENDS:
                # It knows of other partitions than this consumer, which the next heartbeat will mend.
                self._nothing_until = self._clock() + MOVED_REST_MS / 1000
            return None
        partition = values.partition_from_proto(answer.partition)
        out = _Out(stay, answer.batch)
        cache = self.state.cache
        if self.link.stay != stay or self.link.gateway is None:
            return None  # it comes again, at the next gateway
        # What was fetched before a move may come behind it.
        is_moved = self._moves[partition] != moves.get(partition, 0)
        if partition not in cache or self.state.life is not Life.OPEN or is_moved:
            self._roll_back(out)
            return None
        booking, replaced = cache.book(partition)
        if replaced is not None:
            self._out.pop(replaced, None)
        self.refused = None
        self._out[booking] = out
        latest = answer.latest if answer.HasField("latest") else None
        cache.book_position(booking, Position(answer.records.start, latest))
        broker = self.state.connected[partition].endpoint
        return Booked(booking, self._batch_of(answer, partition, booking, broker))

    def _batch_of(
        self, answer: pb.FetchResponse, partition: TopicPartition, booking: Booking, broker: Endpoint
    ) -> Batch:
        try:
            columns = batches.from_proto(answer.records, answer.records.data, partition)
        except MalformedMessageError as error:
            raise RemoteProtocolError("TUBEMQ_GATEWAY_ANSWER", what=str(error)) from error
        return Batch(
            partition,
            columns.start,
            answer.latest if answer.HasField("latest") else None,
            tuple(records_of(columns, exact_offsets=columns.dense)),
            broker,
            booking.context,
            bytes_behind=columns.bytes_behind,
            slow=answer.slow,
        )

    def expire(self) -> None:
        """Give back the batches that were not confirmed in time."""
        for booking in self.state.cache.expire():
            self._give_back(booking)

    def put_back(self, booking: Booking) -> None:
        """Give back a batch of which the user gets nothing."""
        super().put_back(booking)
        self._give_back(booking)

    def _put_back(self, booking: Booking, position: Position) -> None:
        super()._put_back(booking, position)
        self._give_back(booking)

    def _give_back(self, booking: Booking) -> None:
        """Give the batch of a booking that has ended back to the gateway."""
        if (out := self._out.pop(booking, None)) is not None:
            self._roll_back(out)

    def _roll_back(self, out: _Out) -> None:
        """Tell the gateway in the background that a batch is to come again."""
        self.commits += 1
        self.tasks.start(self._rolling_back(out), f"rolling back for {self.state.client_id}", alone=True)

    async def _rolling_back(self, out: _Out) -> None:
        try:
            await self._commit(out, consumed=False)
        except (AwayError, TubeMQError) as error:
            logger.debug("%s comes again later: %s", out.name, error)

    # Confirming.

    async def end_batch(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; see ``Consumer.confirm``."""
        booking = parse_context(context)
        cache = self.state.cache
        out = self._take_out(booking)
        latest = cache.position(booking.partition).latest
        try:
            answer = await self._commit(out, consumed=consumed)
        except AwayError as error:
            self._free(booking)
            raise TubeMQConnectionError(
                "TUBEMQ_GATEWAY_AWAY",
                during=f"confirming a batch of {booking.partition}, which comes again unless that was done",
                tried=self.link.gateways.tried,
                cause=str(error).rstrip("."),
            ) from error
        except BaseException:
            self._free(booking)
            raise
        offset = answer.offset if answer.HasField("offset") else None
        if answer.HasField("latest"):
            latest = answer.latest
        if offset is not None:
            cache.book_position(booking, Position(offset, latest))
        self._free(booking)
        return Confirmed(booking.partition, context, offset, latest)

    def _take_out(self, booking: Booking) -> _Out:
        """Return the batch of a booking, which is ended by nothing else from now on.

        Raises:
            ConsumeError: the user has no such batch, or the consumer is not open.
        """
        state = self.state
        state.check_open()
        self.expire()
        if booking in self._lost:
            raise _late(booking, ErrCode.BAD_REQUEST, "its gateway was lost, so it comes again")
        if booking.partition not in state.cache:
            raise _late(booking, ErrCode.NOT_FOUND, "the partition is not connected any more")
        in_use = state.cache.is_current(booking) and (
            state.cache.state(booking.partition) is PartitionState.IN_USE
        )
        if not in_use and state.cache.was_sought(booking):
            raise sought(booking)
        out = self._out.pop(booking, None) if in_use else None
        if out is None:
            raise _late(booking, ErrCode.BAD_REQUEST, "it was confirmed before, or not in time")
        self.commits += 1
        return out

    async def _commit(self, out: _Out, *, consumed: bool) -> pb.CommitResponse:
        """Commit at the gateway that gave a batch; ``commits`` counts it already."""
        request = pb.CommitRequest(batch=out.name, roll_back=not consumed)
        timeout_s = self.state.config.rpc_timeout_ms / 1000
        try:
            return await self.link.ask("Commit", request, pb.CommitResponse, timeout_s, out.stay)
        finally:
            self.commits -= 1
            self.state.changes.note()

    def _free(self, booking: Booking) -> None:
        self.state.cache.release(booking, consumed=False, rest_ms=0)
        self.state.changes.note()

    async def confirm_out(self, partition: TopicPartition) -> None:
        """Confirm the batch of a partition that is given up, if there is one; errors are logged."""
        for booking in [booking for booking in self._out if booking.partition == partition]:
            try:
                await self.end_batch(booking.context, consumed=True)
            except TubeMQError as error:
                logger.warning("a batch of %s comes again: %s", partition, error)

    # Moving.

    async def seek(self, where: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition that is held; see ``Consumer.seek``."""
        state = self.state
        state.check_open()
        if where not in state.cache:
            raise not_held(where)
        state.cache.begin_seek(where)
        self._moves[where] += 1
        outs = [self._out.pop(booking) for booking in list(self._out) if booking.partition == where]
        self.commits += len(outs)
        position: Position | None = None
        try:
            for out in outs:  # which the gateway would wait for
                await self._rolling_back(out)
            position = Position(await self.move(where, target), None)
        except AwayError as error:
            raise TubeMQConnectionError(
                "TUBEMQ_GATEWAY_AWAY",
                during=f"moving {where}",
                tried=self.link.gateways.tried,
                cause=str(error).rstrip("."),
            ) from error
        finally:
            state.cache.end_seek(where, position)
            state.changes.note()
        return ConsumedPosition(position.current, None, time.time())

    async def _refuse_to_move(self, where: TopicPartition, _: int | Edge) -> int:
        raise ConsumeError("TUBEMQ_SEEK_UNSUPPORTED", code=int(ErrCode.BAD_REQUEST), partition=where)

    # What the link tells.

    def forget_batches(self) -> None:
        """Note that what was handed out cannot be confirmed any more, since its gateway was lost."""
        for booking in self._out:
            self._lost[booking] = None
            self.state.cache.release(booking, consumed=False, rest_ms=0)
        self._out.clear()
        while len(self._lost) > _REMEMBERED:
            self._lost.popitem(last=False)
        self.state.changes.note()

    @property
    def found_nothing(self) -> bool:
        """Whether the gateway has looked for messages, and waits for some."""
        return bool(self._paused)

    @property
    def has_batches(self) -> bool:
        """Whether batches may be confirmed at the gateway where this is, or are being confirmed."""
        return bool(self._out) or self.commits > 0


def _late(booking: Booking, code: ErrCode, what: str) -> ConsumeError:
    return ConsumeError("TUBEMQ_CONFIRM_LATE", code=int(code), partition=booking.partition, what=what)
