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
  other, and a confirmation at the last moment comes either before the next fetch or too late. ``fetch``,
  ``confirm`` and ``roll_back`` are ``Steps``: the lock is held from the first to the last of them.
- ``position`` is where the last confirmed batch ended. Only ``connect``, a confirmation, ``seek``, a reset
  and a loss that ``on_loss`` tolerates move it. After any error the partition is registered there again, so
  nothing is lost, and at most the batch that was not confirmed comes again.
- A lease keeps the consumer's name: the broker knows it again after a lost connection, and refuses others.
- That an administrator wants the group to continue at the end (``reset``) is no state: it may be said at any
  time, without the lock, and counts once, with the next fetch.
"""

import contextlib
import dataclasses
import enum
import functools
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tubemq_spark.client.broker.cursor import Cursor, Step
from tubemq_spark.client.broker.lease import Lease, LeaseHolder
from tubemq_spark.client.broker.session import MEMORY_TOO, BrokerSession, Claim, Fetched, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.steps import Blocking, PartitionLock, Steps, run, wait_for
from tubemq_spark.errors import (
    DataLossError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.pool import ChannelPool, RpcChannel
from tubemq_spark.net.retry import Wait
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, rows_between
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_EDGES: Final = {Edge.EARLIEST: 0, Edge.LATEST: ((1 << 62) // INDEX_ENTRY_BYTES) * INDEX_ENTRY_BYTES}
"""Offsets that a broker moves to the beginning and to the end of a store."""
_RELEASE_ATTEMPTS: Final = 2
_RELEASE_CONNECT_MS: Final = 1_000
"""Giving a partition back does not wait long for a broker that is away: the lease ends by itself."""
_RELEASE_QUIET_S: Final = 10.0


class ConsumerSession(Protocol):
    """What partitions need of their consumer's session with the masters."""

    client_id: str
    """The name under which servers know the consumer."""
    visit_token: int
    authorized_token: str

    def refresh_soon(self) -> None:
        """Ask the master for a visit token that brokers accept, in the background; any thread may."""

    async def refresh_token(self) -> None:
        """Ask the master for a visit token that brokers accept, and wait for it.

        Raises:
            TubeMQError: no master answered, or it refuses us.
        """

    def stop_heartbeats(self) -> None:
        """Send no more heartbeats; any thread may call it, and it waits for nothing."""

    async def close(self) -> None:
        """Leave the master; errors are only logged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """What the partitions of one consumer share."""

    config: ClientConfig
    pool: ChannelPool
    session: ConsumerSession
    control: FlowControl
    on_loss: LossPolicy
    endpoint_of: Callable[[TopicPartition], Endpoint | None]
    """Returns a partition's broker, as the master said last."""


class OwnHolder(LeaseHolder):
    """Holds a partition under the consumer's own name, with what the master says now."""

    def __init__(
        self, reader: Reader, partition: TopicPartition, endpoint: Endpoint, types: frozenset[str]
    ) -> None:
        super().__init__(partition)
        self.endpoint = endpoint
        self.wait: Wait | None = None
        """What may end the wait for an answer before its time-out; None: nothing."""
        self._reader = reader
        self._claim = Claim(partition, reader.config.group, reader.session.client_id)
        self._types = tuple(sorted(types))

    async def acquire(self, offset: int) -> Position:
        """Register the partition at an offset.

        Raises:
            TubeMQError: as ``BrokerSession.start_register``.
        """
        return await Blocking(lambda: self._register(lambda lease: run(lease.register(offset))))

    def resume(self, read_status: ReadStatus) -> Position:
        """Register the partition where the group stands; one without a position begins as the status says.

        Raises:
            TubeMQError: as ``BrokerSession.start_register``.
        """
        return self._register(lambda lease: run(lease.register(None, read_status)))

    def releasing(self, *, consumed: bool) -> Steps[None]:
        """Give the partition back, so that its next owner does not have to wait until the lease ends.

        What got lost with its connection is repeated once; other errors are logged only. A broker that could
        not be reached a moment ago is not asked: several partitions of it may be given up together.
        """
        lease, pool = self._lease, self._reader.pool
        if lease is None or pool.failed_lately(self.endpoint, self._reader.config.tls, _RELEASE_QUIET_S):
            return
        error: TubeMQError | None = None
        for _ in range(_RELEASE_ATTEMPTS):
            try:
                lease.session = yield from self._connecting(_RELEASE_CONNECT_MS)
            except TubeMQConnectionError as lost:
                error = lost
                break
            error = yield from lease.release(consumed=consumed).__await__()
            if not isinstance(error, TubeMQConnectionError):
                self._lease = None
                break
        if error is not None and not isinstance(error, RpcError):
            logger.info("%s may be held for 30 s more; its broker was not told: %s", self._partition, error)

    def _register(self, register: Callable[[Lease], Position]) -> Position:
        self.endpoint = self._reader.endpoint_of(self._partition) or self.endpoint
        try:
            return self._register_once(register)
        except TubeMQError as error:
            if not is_token_refused(error):
                raise
        loop.run(self._reader.session.refresh_token())
        return self._register_once(register)

    def _register_once(self, register: Callable[[Lease], Position]) -> Position:
        try:
            return register(self._make_lease())
        except RpcError as error:
            if error.code == ErrCode.PARTITION_OCCUPIED:
                self._lease = None
            raise

    def _make_lease(self) -> Lease:
        """Make the lease again: channel, token and priority may have changed since."""
        priority = self._reader.control.query_priority
        self._lease = Lease(
            self._connect(self._reader.config.connect_timeout_ms),
            self._claim,
            # With a filter, brokers show by default only what is flushed, up to half a minute late.
            query_priority=priority if priority >= 0 else MEMORY_TOO if self._types else None,
            message_types=self._types,
        )
        return self._lease

    def _connect(self, timeout_ms: int) -> BrokerSession:
        config = self._reader.config
        return self._session(
            self._reader.pool.get(self.endpoint, min(timeout_ms, config.connect_timeout_ms), config.tls)
        )

    def _connecting(self, timeout_ms: int) -> Steps[BrokerSession]:
        config = self._reader.config
        started = self._reader.pool.start(
            self.endpoint, min(timeout_ms, config.connect_timeout_ms), config.tls
        )
        return self._session((yield from wait_for(started)))

    def _session(self, channel: RpcChannel) -> BrokerSession:
        session = self._reader.session
        return BrokerSession(
            channel, self._reader.config, session.visit_token, self.wait, session.authorized_token
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

        Args:
            reader: what all partitions of the consumer share.
            partition: the partition.
            endpoint: its broker.
            types: the message types that are wanted; none means all.
            own_store: whether every record of the store is wanted, so that offsets can be counted.
        """
        self.lock = PartitionLock()
        self.partition = partition
        self.types = types
        self.own_store = own_store and not types
        self.standing = Standing.UNPLACED
        self._reader = reader
        self._holder = OwnHolder(reader, partition, endpoint, types)
        self._cursor = Cursor(self._holder, partition)
        self._reset_wanted = False

    @property
    def endpoint(self) -> Endpoint:
        """The partition's broker."""
        return self._holder.endpoint

    @property
    def position(self) -> int:
        """Where the next batch begins."""
        return self._cursor.position

    def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Register the partition for the first time.

        Args:
            offset: where to begin; None: where the group stands.
            read_status: where a group begins that has no position.

        Raises:
            DataLossError: the offset is not in the store, and ``on_loss`` does not tolerate it.
            TubeMQError: as ``BrokerSession.start_register``.
        """
        if offset is not None:
            self._cursor.position = offset
            return self._place_at_position()
        return self._resume(read_status)

    def seek(self, target: int | Edge, wait: Wait) -> Position:
        """Register the partition elsewhere; the broker forgets what was fetched and not confirmed.

        After an error the partition goes on where it stood.

        Args:
            target: an offset, or an end of the store.
            wait: its ``check`` ends the wait for the broker.

        Returns:
            Where it stands.

        Raises:
            DataLossError: the offset is not in the store, and ``on_loss`` does not tolerate it.
            TubeMQError: as ``BrokerSession.start_register``. A member of a group goes on where the group
                stands, which the broker may have moved.
        """
        before = self.position
        self.unplace()
        self._holder.wait = wait
        try:
            wait.check()
            answer = self._place_at(target)
        except DataLossError:
            # The broker stands elsewhere now, by this call.
            self._place_at_once(before)
            raise
        except BaseException:
            self._cursor.position = before
            raise
        finally:
            self._holder.wait = None
        self._reset_wanted = False
        return answer

    def unplace(self) -> None:
        """Register again before anything else: something went wrong."""
        if self.standing is Standing.PLACED:
            self.standing = Standing.UNPLACED

    def fetch(self, *, confirms: bool, own_limits: bool) -> Steps[Fetched | Step]:
        """Fetch what comes next.

        Args:
            confirms: whether the last batch is confirmed by that.
            own_limits: as for ``Cursor.start_fetch``.

        Returns:
            Messages, which begin at ``position``; or a step without any: there is nothing to read now.

        Raises:
            DataLossError: records are gone, and ``on_loss`` does not tolerate it.
            TubeMQError: as ``Cursor.receive`` and ``Cursor.confirm``.
        """
        cursor = self._cursor
        if self._reset_wanted:
            yield from wait_for(Blocking(self._follow_reset))
        elif self.standing is Standing.UNPLACED:
            yield from wait_for(Blocking(self._place))
        elif confirms and cursor.unconfirmed is not None:
            confirming = cursor.start_fetch(confirm=True, own_limits=own_limits)
            yield from self._accept((yield from cursor.confirm_by(confirming).__await__()))
        fetched = cursor.unconfirmed if confirms else None
        if fetched is None:
            fetched = yield from cursor.receive(cursor.start_fetch(own_limits=own_limits)).__await__()
        if fetched.refusal is not None:
            return (yield from cursor.confirm().__await__())
        yield from self._report_damage(fetched)
        return fetched

    def confirm(self) -> Steps[Step]:
        """Confirm the last batch at the broker.

        Raises:
            DataLossError: the broker passed over records, and ``on_loss`` does not tolerate it. The batch
                is confirmed all the same.
            TubeMQError: as ``Cursor.confirm``.
        """
        step = yield from self._cursor.confirm().__await__()
        yield from self._accept(step)
        return step

    def roll_back(self) -> Steps[None]:
        """Make the broker forget the last batch, which then comes again.

        Raises:
            TubeMQError: as ``BrokerSession.start_commit``.
        """
        lease = self._holder.lease
        self._cursor.unconfirmed = None
        answer = yield from wait_for(lease.session.start_commit(lease.claim, consumed=False))
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

    def releasing(self, *, consumed: bool) -> Steps[None]:
        """Give the partition up; errors are logged only."""
        self.standing = Standing.RELEASED
        yield from self._holder.releasing(consumed=consumed)

    def abandon(self) -> None:
        """Give the partition up, which another consumer has taken."""
        self.standing = Standing.RELEASED

    def _place(self) -> Position:
        """Register again after an error."""
        return self._place_at_position()

    def _place_at_position(self) -> Position:
        """Register at the position and see whether it is still there."""
        start = self._cursor.position
        answer = run(self._cursor.seek(start))
        if answer.current > start:
            self._report(Loss.EXPIRED, start, answer.current, self._rows(start, answer.current))
        elif answer.current < start:
            self._report(Loss.MOVED_BACK, answer.current, start, self._rows(answer.current, start))
        self.standing = Standing.PLACED
        return answer

    def _resume(self, read_status: ReadStatus) -> Position:
        """Register where the group stands."""
        answer = self._holder.resume(read_status)
        self._cursor.position, self._cursor.unconfirmed = answer.current, None
        self.standing = Standing.PLACED
        return answer

    def _place_at(self, target: int | Edge) -> Position:
        if not isinstance(target, Edge):
            self._cursor.position = target
            return self._place_at_position()
        answer = run(self._cursor.seek(_EDGES[target]))
        self.standing = Standing.PLACED
        return answer

    def _place_at_once(self, offset: int) -> None:
        """Register at an offset where the partition stood; if that fails, the next fetch does."""
        self._cursor.position = offset
        with contextlib.suppress(TubeMQError):
            run(self._cursor.seek(offset))
            self.standing = Standing.PLACED

    def _follow_reset(self) -> None:
        before = self._cursor.position
        self._place_at(Edge.LATEST)
        self._reset_wanted = False
        logger.warning(
            "%s continues at offset %d, not at %d, as an administrator wants",
            self.partition,
            self._cursor.position,
            before,
        )

    def _accept(self, step: Step) -> Steps[None]:
        if self.own_store and not step.dense:
            # The broker passed over records without a word (MsgFileStore.getMessages).
            missing = rows_between(step.start, step.next) - step.fetched.count
            yield from self._reporting(Loss.SKIPPED, step.start, step.next, missing)

    def _report_damage(self, fetched: Fetched) -> Steps[None]:
        if damaged := len(fetched.corrupt):
            yield from self._reporting(
                Loss.CORRUPT, self.position, self._cursor.counted_end(fetched), damaged
            )

    def _rows(self, start: int, end: int) -> int | None:
        return rows_between(start, end) if self.own_store else None

    def _reporting(self, loss: Loss, start: int, end: int, rows: int | None) -> Steps[None]:
        """Tell ``on_loss``, which may take its time, as a step."""
        yield from wait_for(Blocking(functools.partial(self._report, loss, start, end, rows)))

    def _report(self, loss: Loss, start: int, end: int, rows: int | None) -> None:
        self._reader.on_loss(LossRecord(loss, self.partition, start, end, rows))
