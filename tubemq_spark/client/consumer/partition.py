"""One partition that a consumer holds: its lease, its position, and the way back to it.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
UNPLACED   at the beginning, and after every error: the next thing to do is to register at ``position``
PLACED     the cursor stands at ``position``, at the broker and here
RELEASED   given up, also at the broker unless another consumer has taken it: nothing may be asked any more
=========  ==================================================================================================

::

    UNPLACED --connect, fetch, seek--> PLACED --unplace--> UNPLACED
    UNPLACED, PLACED --release, abandon--> RELEASED

Invariants:

- Only the holder of the partition's ``lock`` asks anything or changes the state. So requests follow each
  other, and a confirmation at the last moment comes either before the next fetch or too late.
- ``position`` is where the last confirmed batch ended. Only ``connect``, a confirmation, ``seek``, a reset
  and a loss that ``on_loss`` tolerates move it. After any error, and after a cancellation, the partition is
  registered there again, so nothing is lost, and at most the batch that was not confirmed comes again.
- ``_undecided`` is a loss that ``position`` has passed and ``on_loss`` has not decided on, since the task
  that asked was cancelled. The next fetch asks again.
- A lease keeps the consumer's name: the broker knows it again after a lost connection, and refuses others.
- That an administrator wants the group to continue at the end (``reset``) is no state: it may be said at any
  time, without the lock, and counts once, with the next fetch.

**The way back to a partition** of a member of a group (``GroupPartition``) is to register where the group
stands, not where this member stood: while its lease was lost, another member may have read on.
"""

import asyncio
import contextlib
import dataclasses
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tubemq_spark.client.broker.cursor import Cursor, Step
from tubemq_spark.client.broker.lease import Lease, LeaseHolder
from tubemq_spark.client.broker.session import MEMORY_TOO, BrokerSession, Claim, Fetched, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.master.session import MasterSession
from tubemq_spark.client.metadata.positions import store_bounds
from tubemq_spark.errors import (
    DataLossError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.model import INDEX_ENTRY_BYTES, Endpoint, TopicPartition, rows_between
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_EDGES: Final = {Edge.EARLIEST: 0, Edge.LATEST: ((1 << 62) // INDEX_ENTRY_BYTES) * INDEX_ENTRY_BYTES}
"""Offsets that a broker moves to the beginning and to the end of a store."""
_RELEASE_ATTEMPTS: Final = 2
_RELEASE_CONNECT_MS: Final = 1_000
"""Giving a partition back does not wait long for a broker that is away: the lease ends by itself."""
_RELEASE_QUIET_S: Final = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """What the partitions of one consumer share."""

    config: ClientConfig
    connections: Connections
    session: MasterSession
    control: FlowControl
    on_loss: Callable[[LossRecord], Awaitable[None]]
    """Asks what to do about records that are gone or damaged; raises if they are not to be passed over."""
    endpoint_of: Callable[[TopicPartition], Endpoint | None]
    """Returns a partition's broker, as the master said last."""


class OwnHolder(LeaseHolder):
    """Holds a partition under the consumer's own name, with what the master says now."""

    def __init__(
        self, reader: Reader, partition: TopicPartition, endpoint: Endpoint, types: frozenset[str]
    ) -> None:
        super().__init__(partition)
        self.endpoint = endpoint
        self._reader = reader
        self._claim = Claim(partition, reader.config.group, reader.session.client_id)
        self._types = tuple(sorted(types))

    async def acquire(self, offset: int) -> Position:
        """Register the partition at an offset."""
        return await self._register(lambda lease: lease.register(offset))

    async def resume(self, read_status: ReadStatus) -> Position:
        """Register the partition where the group stands; one without a position begins as the status says."""
        return await self._register(lambda lease: lease.register(None, read_status))

    async def release(self, *, consumed: bool) -> None:
        """Give the partition back, so that its next owner does not have to wait until the lease ends.

        What got lost with its connection is repeated once; other errors are logged only. A broker that could
        not be reached a moment ago is not asked: several partitions of it may be given up together.
        """
        lease, connections = self._lease, self._reader.connections
        if lease is None or connections.failed_lately(
            self.endpoint, self._reader.config.tls, _RELEASE_QUIET_S
        ):
            return
        error: TubeMQError | None = None
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                lease.session = await self._connect(_RELEASE_CONNECT_MS)
            except TubeMQConnectionError as lost:
                error = lost
                break
            error = await lease.release(consumed=consumed)
            if not isinstance(error, TubeMQConnectionError):
                self._lease = None
                break
        if error is not None and not isinstance(error, RpcError):
            logger.info("%s may be held for 30 s more; its broker was not told: %s", self._partition, error)

    async def _register(self, register: Callable[[Lease], Awaitable[Position]]) -> Position:
        self.endpoint = self._reader.endpoint_of(self._partition) or self.endpoint
        try:
            return await self._register_once(register)
        except TubeMQError as error:
            if not is_token_refused(error):
                raise
        await self._reader.session.refresh_token()
        return await self._register_once(register)

    async def _register_once(self, register: Callable[[Lease], Awaitable[Position]]) -> Position:
        try:
            return await register(await self._make_lease())
        except RpcError as error:
            if error.code == ErrCode.PARTITION_OCCUPIED:
                self._lease = None
            raise

    async def _make_lease(self) -> Lease:
        """Make the lease again: connection, token and priority may have changed since."""
        session = await self._connect(self._reader.config.connect_timeout_ms)
        priority = self._reader.control.query_priority
        self._lease = Lease(
            session,
            self._claim,
            # With a filter, brokers show by default only what is flushed, up to half a minute late.
            query_priority=priority if priority >= 0 else MEMORY_TOO if self._types else None,
            message_types=self._types,
        )
        return self._lease

    async def _connect(self, timeout_ms: int) -> BrokerSession:
        config, session = self._reader.config, self._reader.session
        connection = await self._reader.connections.get(
            self.endpoint, min(timeout_ms, config.connect_timeout_ms), config.tls
        )
        return BrokerSession(
            connection, config, session.visit_token, authorized_token=session.authorized_token
        )


class Standing(enum.Enum):
    """Whether a partition can be asked for; see the module."""

    UNPLACED = "unplaced"
    PLACED = "placed"
    RELEASED = "released"


class ConsumerPartition:
    """A partition of one consumer; see the module."""

    def __init__(
        self,
        reader: Reader,
        partition: TopicPartition,
        endpoint: Endpoint,
        types: frozenset[str],
        *,
        own_store: bool,
    ) -> None:
        """Create a partition that is not registered; ``connect`` does it.

        ``own_store``: every record of the store is wanted, so that offsets can be counted.
        """
        self.lock = asyncio.Lock()
        self.partition = partition
        self.types = types
        self.own_store = own_store and not types
        self.standing = Standing.UNPLACED
        self._reader = reader
        self._holder = OwnHolder(reader, partition, endpoint, types)
        self._cursor = Cursor(self._holder, partition)
        self._reset_wanted = False
        self._undecided: LossRecord | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The partition's broker."""
        return self._holder.endpoint

    @property
    def position(self) -> int:
        """Where the next batch begins."""
        return self._cursor.position

    async def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Register the partition for the first time, by default where the group stands.

        ``read_status`` says where a group begins that has no position.
        """
        if offset is not None:
            self._cursor.position = offset
            return await self._place_at_position()
        return await self._resume(read_status)

    async def seek(self, target: int | Edge, limit: asyncio.Timeout) -> Position:
        """Register the partition elsewhere; the broker forgets what was fetched and not confirmed.

        After an error or a cancellation the partition goes on where it stood; that of a member of a group
        where the group stands, which the broker may have moved. ``limit`` ends the wait for the broker;
        ``on_loss`` may take its time.
        """
        before, undecided = self.position, self._undecided
        self.unplace()
        try:
            answer = await self._cursor.seek(_EDGES[target] if isinstance(target, Edge) else target)
            limit.reschedule(None)
            if not isinstance(target, Edge):
                await self._compare(target, answer.current)
            self.standing = Standing.PLACED
        except BaseException as error:
            self._cursor.position, self._undecided = before, undecided
            if isinstance(error, DataLossError):
                # The broker stands elsewhere now, by this call.
                await self._place_at_once()
            raise
        self._undecided, self._reset_wanted = None, False
        return answer

    def unplace(self) -> None:
        """Register again before anything else: something went wrong."""
        if self.standing is Standing.PLACED:
            self.standing = Standing.UNPLACED

    async def fetch(self, *, confirms: bool, own_limits: bool) -> Fetched | Step:
        """Return messages, which begin at ``position``; or a step without any: there is nothing to read now.

        ``confirms``: that confirms the last batch.
        """
        cursor = self._cursor
        undecided, self._undecided = self._undecided, None
        if undecided is not None:
            await self._ask_on_loss(undecided)
        if self._reset_wanted:
            await self._follow_reset()
        elif self.standing is Standing.UNPLACED:
            await self._place()
        elif confirms and cursor.unconfirmed is not None:
            confirming = cursor.start_fetch(confirm=True, own_limits=own_limits)
            await self._accept(await cursor.confirm_by(confirming))
        fetched = cursor.unconfirmed if confirms else None
        if fetched is None:
            fetched = await cursor.receive(cursor.start_fetch(own_limits=own_limits))
        if fetched.refusal is not None:
            return await cursor.confirm()
        if damaged := len(fetched.corrupt):
            await self._report(Loss.CORRUPT, self.position, cursor.counted_end(fetched), damaged)
        return fetched

    async def confirm(self) -> Step:
        """Confirm the last batch at the broker, also when a loss is raised that was found with it."""
        step = await self._cursor.confirm()
        await self._accept(step)
        return step

    async def roll_back(self) -> None:
        """Make the broker forget the last batch, which then comes again."""
        lease = self._holder.lease
        self._cursor.unconfirmed = None
        answer = await lease.session.start_commit(lease.claim, consumed=False)
        if answer.current != self.position:
            raise RemoteProtocolError(
                "TUBEMQ_POSITION_MOVED",
                partition=self.partition,
                actual=answer.current,
                expected=self.position,
            )

    def reset(self) -> None:
        """Continue behind the last message of the store, from the next fetch on; needs no lock."""
        self._reset_wanted = True

    async def release(self, *, consumed: bool) -> None:
        """Give the partition up; errors are logged only."""
        self.standing = Standing.RELEASED
        await self._holder.release(consumed=consumed)

    def abandon(self) -> None:
        """Give the partition up, which another consumer has taken."""
        self.standing = Standing.RELEASED

    async def _place(self) -> Position:
        """Register again after an error."""
        return await self._place_at_position()

    async def _place_at_position(self) -> Position:
        """Register at the position and see whether it is still there."""
        start = self._cursor.position
        answer = await self._cursor.seek(start)
        await self._compare(start, answer.current)
        self.standing = Standing.PLACED
        return answer

    async def _resume(self, read_status: ReadStatus) -> Position:
        """Register where the group stands."""
        answer = await self._holder.resume(read_status)
        self._cursor.position, self._cursor.unconfirmed = answer.current, None
        self.standing = Standing.PLACED
        return answer

    async def _compare(self, start: int, actual: int) -> None:
        """Report what is missing where the broker does not stand at the offset that was asked for."""
        if actual > start:
            await self._report(Loss.EXPIRED, start, actual, self._rows(start, actual))
        elif actual < start:
            await self._report(Loss.MOVED_BACK, actual, start, self._rows(actual, start))

    async def _place_at_once(self) -> None:
        """Register at the position, which the partition had before; if that fails, the next fetch does."""
        with contextlib.suppress(TubeMQError):
            await self._cursor.seek(self._cursor.position)
            self.standing = Standing.PLACED

    async def _follow_reset(self) -> None:
        before = self._cursor.position
        await self._cursor.seek(_EDGES[Edge.LATEST])
        self.standing, self._reset_wanted = Standing.PLACED, False
        logger.warning(
            "%s continues at offset %d, not at %d, as an administrator wants",
            self.partition,
            self._cursor.position,
            before,
        )

    async def _accept(self, step: Step) -> None:
        if self.own_store and not step.dense:
            # The broker passed over records without a word (MsgFileStore.getMessages).
            missing = rows_between(step.start, step.next) - step.fetched.count
            await self._report(Loss.SKIPPED, step.start, step.next, missing)

    def _rows(self, start: int, end: int) -> int | None:
        return rows_between(start, end) if self.own_store else None

    async def _report(self, loss: Loss, start: int, end: int, rows: int | None) -> None:
        await self._ask_on_loss(LossRecord(loss, self.partition, start, end, rows))

    async def _ask_on_loss(self, loss: LossRecord) -> None:
        """Ask ``on_loss``, which may take its time; if this is cancelled, the next fetch asks again."""
        try:
            await self._reader.on_loss(loss)
        except asyncio.CancelledError:
            if loss.loss is not Loss.CORRUPT:  # otherwise the batch comes again, and is reported then
                self._undecided = loss
            raise


class _Move(NamedTuple):
    """That a partition goes on elsewhere than where this member stood, in index bytes."""

    expected: int
    actual: int
    had_lease: bool
    """Whether this member held the lease, so that no other one can have read on."""


class GroupPartition(ConsumerPartition):
    """A partition of a member of a group, which sets the group's position at a bound start and by ``seek``.

    A broker moves the position of a group by itself when it lies outside the log. The fetch that finds that
    begins elsewhere, though this member held the lease; when its answer is lost, registering again does. What
    the log holds tells a loss from the act of an administrator, who may move the group at any time, and from
    another member that has read on.
    """

    _move: _Move | None = None
    """What is to be told of, until it is known why."""
    _verdict: BaseException | None = None
    """What ``on_loss`` raised last."""
    _failed: BaseException | None = None
    """What the next fetch raises: ``on_loss`` has raised it, while none waited for messages."""

    async def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Register the partition for the first time; see ``ConsumerPartition.connect``.

        What ``on_loss`` raises about the offset, the next fetch raises, as it does with every loss.
        """
        try:
            return await super().connect(offset, read_status)
        except BaseException as error:
            if error is not self._verdict:
                raise
            self._failed = error
            return Position(self.position, None)

    async def seek(self, target: int | Edge, limit: asyncio.Timeout) -> Position:
        """Register the partition elsewhere; see ``ConsumerPartition.seek``."""
        answer = await super().seek(target, limit)
        self._move = None  # its user has said where it goes on
        return answer

    async def fetch(self, *, confirms: bool, own_limits: bool) -> Fetched | Step:
        """Fetch what comes next; see ``ConsumerPartition.fetch``."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        if self._move is None:
            try:
                return await super().fetch(confirms=confirms, own_limits=own_limits)
            except RemoteProtocolError as error:
                if error.condition != "TUBEMQ_POSITION_MOVED":
                    raise
                expected, actual = int(error.parameters["expected"]), int(error.parameters["actual"])
                self._move = _Move(expected, actual, had_lease=True)
        self.unplace()
        await self._tell_why_moved()
        return await super().fetch(confirms=False, own_limits=own_limits)

    async def _tell_why_moved(self) -> None:
        """Report a loss, or log that the group was moved."""
        if self._move is None:
            return
        expected, actual, had_lease = self._move
        reader, store = self._reader, self.partition.store_id
        asked = await store_bounds(
            reader.config, reader.connections, {store: self.endpoint}, reader.session.visit_token
        )
        span, failure = asked.by_store.get(store), asked.failures.get(store)
        if failure is not None and failure.retriable:
            raise failure
        self._move, self._cursor.position = None, actual
        # Where the broker refuses to say, a gap counts as a loss rather than as nothing.
        gone = (
            had_lease if span is None else span.earliest > expected and (had_lease or actual <= span.earliest)
        )
        if actual > expected and gone:
            end = actual if span is None else min(actual, span.earliest)
            await self._report(Loss.EXPIRED, expected, end, None)
        elif actual < expected and had_lease and (span is None or span.latest < expected):
            await self._report(Loss.MOVED_BACK, actual, expected, None)
        elif had_lease:
            logger.warning(
                "%s: the group was moved from offset %d to %d, by an administrator",
                self.partition,
                expected,
                actual,
            )

    async def _ask_on_loss(self, loss: LossRecord) -> None:
        """Keep what ``on_loss`` raises, for the next fetch."""
        try:
            await super()._ask_on_loss(loss)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._verdict = error
            raise

    async def _place(self) -> Position:
        before = self.position
        answer = await self._resume(ReadStatus.STORED_OR_EARLIEST)
        if answer.current != before:
            logger.info(
                "%s continues at offset %d, where the group stands, and not at %d",
                self.partition,
                answer.current,
                before,
            )
        if answer.current > before:
            self._move = _Move(before, answer.current, had_lease=False)
            await self._tell_why_moved()
        return answer
