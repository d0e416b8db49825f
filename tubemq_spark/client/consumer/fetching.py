"""The rules of fetching and confirming batches; any number of coroutines may do both.

A partition is booked (``select_now``) when it is the one that has been idle longest. Then it is fetched
(``fetch``), and what that brought is handed out to the user (``hand_out``) or the partition
rests. Until it is handed out no user has seen it: if the partition is given up or paused before that, it
comes again. The requests of a partition follow each other: its lock is held from the first to the last one of
a fetch, a confirmation and a move.

**Moving a partition** (``seek``) may come at any time. What it meets:

- a fetch under way, or a batch that none has taken: forgotten, and its booking ends;
- a batch that the user has: its booking ends, so that confirming it is refused (``TUBEMQ_CONFIRM_SOUGHT``);
- a confirmation under way: it ends first, since it holds the partition's lock;
- a partition that is being given up, or was: the move is refused;
- another move: they follow each other, and the last one counts.

Only when the broker has answered the partition is at its new position, here and for the group. Until then
nothing of it is fetched. After an error it goes on where it stood, and what was out comes again.

What goes wrong with one partition holds up no other:

- Records that are gone: the partition is given up, and ``fetch`` raises, unless ``on_loss`` tolerates it.
- Another consumer of the group holds the partition: it is given up, with a warning.
- The broker is away: all of its partitions rest, longer with each attempt (``cache``).
- The broker has lost the lease, or cannot serve now: the partition rests, and is registered again where it
  stands.
- The broker refuses for good: the partition is given up, and ``fetch`` raises.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tubemq_spark.client.broker.cursor import Step
from tubemq_spark.client.broker.session import Fetched, Position
from tubemq_spark.client.consumer.flow_control import FetchOutcome
from tubemq_spark.client.consumer.life import confirmed_late, not_held, sought
from tubemq_spark.client.consumer.partition import ConsumerPartition, Standing
from tubemq_spark.client.consumer.state import ConsumerState, is_taken
from tubemq_spark.client.consumer.values import (
    Batch,
    Booking,
    ColumnBatch,
    Confirmed,
    ConsumedPosition,
    PartitionState,
    parse_context,
)
from tubemq_spark.client.reader.records import Record, records_of
from tubemq_spark.errors import (
    DataLossError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition
from tubemq_spark.net.retry import ERROR_REST_MS, MOVED_REST_MS, STARTING_REST_MS
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.fetch_columns import FetchedBatch

logger = logging.getLogger(__name__)

_RESTS_MS: Final[dict[int, int]] = {ErrCode.FORBIDDEN: STARTING_REST_MS, ErrCode.MOVED: MOVED_REST_MS}
_NO_ANSWER: Final = TubeMQConnectionError, TubeMQTimeoutError
_PASSING: Final = frozenset({0, ErrCode.UNAUTHORIZED, ErrCode.FORBIDDEN, ErrCode.CERTIFICATE_FAILURE})
"""Codes of errors that may pass, besides those that the table of codes calls retriable. 0: the broker failed
while it read; 401: the lease was lost before a commit; 403: the broker starts, or the topic is being closed,
which the master will say; 415: tokens change."""


class FetchPlan(NamedTuple):
    """A partition that is fetched next."""

    booking: Booking
    confirms: bool
    """Whether the fetch confirms what was fetched before it."""
    partition: ConsumerPartition


class ReadyBatch(NamedTuple):
    """A batch that was fetched and not handed out."""

    booking: Booking
    batch: Batch


class Fetching:
    """Fetches and confirms for one consumer."""

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self.as_columns = False
        """Whether batches have columns and no records; for those that pass them on."""
        self.rest_at_end: Callable[[TopicPartition], int] = lambda _: state.config.consumer.not_found_wait_ms
        """Returns how long a partition rests in which nothing was found, in ms, unless the broker says it."""

    def select_now(self) -> FetchPlan | None:
        """Book a partition, if there is one that can be fetched."""
        state = self.state
        state.check_open()
        state.cache.expire()
        state.cache.wake()
        selection = state.cache.select()
        if selection is None:
            return None
        booking, confirms = selection
        return FetchPlan(booking, confirms, state.connected[booking.partition])

    async def fetch(self, plan: FetchPlan) -> ReadyBatch | None:
        """Fetch from a partition that was booked; None when that brought nothing for the user.

        A partition whose error is raised was given up.
        """
        async with plan.partition.lock:
            return await self._fetch_from(plan)

    def hand_out(self, booked: ReadyBatch) -> Batch | None:
        """Return a batch to the user, who has to confirm it from now on; None: it must come again."""
        state, (booking, batch) = self.state, booked
        if not state.cache.is_current(booking):
            return None
        if state.cache.is_wanted(booking.partition):
            state.cache.deliver(booking)
            return batch
        self._put_back(booking, Position(batch.offset, batch.latest))
        return None

    async def end_batch(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; see ``Consumer.confirm``."""
        booking = parse_context(context)
        partition = self.state.connected.get(booking.partition)
        if partition is None:
            raise confirmed_late(
                booking.partition, ErrCode.NOT_FOUND, "the partition is not connected any more"
            )
        # Before the lock too: what has it then may wait for the partition's broker.
        self._check_in_use(booking, partition)
        async with partition.lock:
            latest = self._check_in_use(booking, partition)
            return await self._end(booking, partition, latest, consumed=consumed)

    async def seek(self, where: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition that is held to an offset, or to an end of its log; see ``Consumer.seek``.

        One time-out is for both: who uses the partition before, and the broker's answer.
        """
        state = self.state
        state.check_open()
        partition = state.connected.get(where)
        if partition is None:
            raise not_held(where)
        state.cache.begin_seek(where)
        position: Position | None = None
        timeout_ms = state.config.rpc_timeout_ms
        limit = asyncio.timeout(timeout_ms / 1000)
        try:
            state.abandon(where)
            async with limit, partition.lock:
                if partition.standing is Standing.RELEASED:
                    raise not_held(where)
                position = await partition.seek(target, limit)
        except TimeoutError:
            if not limit.expired():  # ``on_loss`` has raised it, or it is that of a request
                raise
            during = f"moving {where}"
            raise TubeMQTimeoutError(
                "TUBEMQ_TIMEOUT", endpoint=partition.endpoint, timeout_ms=timeout_ms, during=during
            ) from None
        finally:
            state.cache.end_seek(where, position)
            state.changes.note()
        return ConsumedPosition(position.current, position.latest, time.time())

    async def _fetch_from(self, plan: FetchPlan) -> ReadyBatch | None:
        booking, confirms, partition = plan
        if partition.standing is Standing.RELEASED:
            return None
        own_limits = self.state.control.own_limits
        try:
            answer = await partition.fetch(confirms=confirms, own_limits=own_limits)
            batch = self._batch(booking, partition, answer) if isinstance(answer, Fetched) else None
            if isinstance(answer, Fetched) and batch is None:
                # All of it was for others, and no user will confirm it.
                await partition.confirm()
        except TubeMQError as error:
            await self._fail(booking, partition, error)
            return None
        except BaseException:
            self._let_rest(booking, partition, FetchOutcome(code=0))
            raise
        self.state.note_success(partition)
        return self._book(booking, partition, answer, batch)

    def _records(self, whole: FetchedBatch, partition: ConsumerPartition) -> tuple[Record, ...]:
        time_zone = self.state.config.message_time_zone
        return tuple(records_of(whole, exact_offsets=partition.own_store, time_zone=time_zone))

    def _batch(self, booking: Booking, partition: ConsumerPartition, fetched: Fetched) -> Batch | None:
        """Return the batch in an answer; None if there is none."""
        columns = fetched.columns
        if partition.types:
            # Brokers compare hashes of types.
            columns = columns.of_types(partition.types)
        if not len(columns):
            return None
        # Its end is not known yet. Where every offset of the store is one of the records, counting gives it.
        start = end = partition.position
        if partition.own_store:
            end += INDEX_ENTRY_BYTES * (int(columns.ordinals[-1]) + 1)
        header = fetched.header
        behind = header.data_lag if header.data_lag >= 0 else None
        whole = FetchedBatch(partition.partition, start, end, columns, partition.own_store, behind)
        make: Callable[..., Batch] = Batch
        if self.as_columns:
            make = functools.partial(ColumnBatch, columns=whole)
        return make(
            partition.partition,
            start,
            header.max_offset,
            () if self.as_columns else self._records(whole, partition),
            partition.endpoint,
            booking.context,
            bytes_behind=behind,
            slow=header.require_slow,
        )

    def _book(
        self, booking: Booking, partition: ConsumerPartition, answer: Fetched | Step, batch: Batch | None
    ) -> ReadyBatch | None:
        """Keep what a fetch brought; return the batch if there is one to hand out."""
        state, fetched = self.state, answer if isinstance(answer, Fetched) else answer.fetched
        state.cache.brokers.answer(booking.partition.broker_id)
        if not state.cache.is_current(booking):
            return None
        latest = fetched.header.max_offset
        if latest is None:
            latest = state.cache.position(booking.partition).latest
        # Without a batch everything before the position is confirmed, also after a refusal.
        position = Position(partition.position, latest)
        state.cache.record(booking, self._outcome(booking, answer), position)
        if batch is not None:
            return ReadyBatch(booking, batch)
        self._put_back(booking, position)
        return None

    def put_back(self, booking: Booking) -> None:
        """End a booking of which the user gets nothing."""
        self.state.cache.release(booking, consumed=False, rest_ms=0)
        self.state.changes.note()

    def _put_back(self, booking: Booking, position: Position) -> None:
        """End a booking of which the user gets nothing, at a position."""
        self.state.cache.book_position(booking, position)
        self.state.cache.release(booking, consumed=False)
        self.state.changes.note()

    def _outcome(self, booking: Booking, answer: Fetched | Step) -> FetchOutcome:
        if isinstance(answer, Fetched):
            header, columns = answer.header, answer.columns
            return FetchOutcome(ErrCode.SUCCESS, columns.nbytes, 0, header.data_lag, slow=header.require_slow)
        if answer.next != answer.start:
            # The broker passed over records of others, and there may be more.
            return FetchOutcome(ErrCode.SUCCESS)
        wait_ms = answer.pause_ms or self.rest_at_end(booking.partition)
        return FetchOutcome(answer.fetched.header.err_code, 0, wait_ms)

    async def _fail(self, booking: Booking, partition: ConsumerPartition, error: TubeMQError) -> None:
        """Give a partition up or let it rest after an error; raise what the user must know."""
        if is_taken(error):
            logger.warning("%s is given up: %s", booking.partition, error)
            await self.state.release(partition, error)
        elif _may_pass(error):
            self.state.note_trouble(partition, error)
            self._rest_after(booking, partition, error)
        else:
            await self.state.release(partition, error)
            raise error

    def _rest_after(self, booking: Booking, partition: ConsumerPartition, error: TubeMQError) -> None:
        """Make a partition rest after an error; with all others of its broker, if the broker is away."""
        code = error.code if isinstance(error, RpcError) else 0
        is_away = code == ErrCode.SERVICE_UNAVAILABLE or isinstance(error, _NO_ANSWER)
        if is_away:
            self.state.cache.brokers.fail(booking.partition.broker_id, booking.number)
        else:
            self.state.cache.brokers.answer(booking.partition.broker_id)
        # The pause of its broker counts.
        rest_ms = 0 if is_away else _RESTS_MS.get(code, ERROR_REST_MS)
        self._let_rest(booking, partition, FetchOutcome(code, 0, rest_ms))

    def _let_rest(self, booking: Booking, partition: ConsumerPartition, outcome: FetchOutcome) -> None:
        partition.unplace()
        if self.state.cache.is_current(booking):
            self.state.cache.record(booking, outcome)
            self.state.cache.release(booking, consumed=False, rest_ms=outcome.wait_ms)
        self.state.changes.note()

    def _check_in_use(self, booking: Booking, partition: ConsumerPartition) -> int | None:
        """Return where the store ended when that was heard last; raise if the user has no such batch."""
        cache = self.state.cache
        self.state.check_open()
        cache.expire()
        in_use = cache.is_current(booking) and cache.state(booking.partition) is PartitionState.IN_USE
        if partition.standing is Standing.RELEASED or not in_use:
            if cache.was_sought(booking):
                raise sought(booking.partition)
            what = "it was confirmed before, or not in time, or its partition was given up"
            raise confirmed_late(booking.partition, ErrCode.BAD_REQUEST, what)
        return cache.position(booking.partition).latest

    async def _end(
        self, booking: Booking, partition: ConsumerPartition, latest: int | None, *, consumed: bool
    ) -> Confirmed:
        """Confirm a batch, or roll it back; return the position behind it."""
        locally = consumed and self.state.config.consumer.confirm_locally
        loss: DataLossError | None = None
        try:
            if not consumed:
                await partition.roll_back()
            elif not locally:
                await partition.confirm()
        except DataLossError as error:
            loss = error
        except BaseException as error:
            if isinstance(error, TubeMQError):
                self.state.note_trouble(partition, error)
                self._rest_after(booking, partition, error)
            else:
                self._let_rest(booking, partition, FetchOutcome(code=0, wait_ms=ERROR_REST_MS))
            raise
        if not locally:
            self.state.cache.book_position(booking, Position(partition.position, latest))
        self.state.cache.release(booking, consumed=locally)
        self.state.changes.note()
        if loss is not None:
            raise loss
        offset = None if locally else partition.position
        return Confirmed(booking.partition, booking.context, offset, latest)


def _may_pass(error: TubeMQError) -> bool:
    """Whether registering the partition again may help."""
    if isinstance(error, RpcError):
        return error.retriable or error.code in _PASSING
    return error.retriable or isinstance(error, RemoteProtocolError)
