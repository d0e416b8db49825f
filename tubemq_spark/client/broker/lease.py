"""Holding a partition at its broker: one lease, under one group and one client id.

A broker lets one client of a group hold a partition. Registering makes the lease, registering again under the
same name renews it and sets the position, and unregistering ends it; without requests it ends by itself after
30 s.

Invariants:

- A lease keeps its name (``claim``).
- Its holder keeps it from before the register is sent until it is released, or another client turns out to
  hold the partition: an answer that is lost may still leave a lease behind.
- The broker knows a lease by its name and not by its connection, so ``session`` may be replaced at any time.

Under which names to hold a partition is not decided here but by a ``LeaseHolder``: see ``ReaderGroupHolder``.
"""

import abc
import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import Final, Self

from tubemq_spark.client.broker.session import BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token
from tubemq_spark.errors import LocalProtocolError, RpcError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import Route, TopicPartition
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections, Private
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import CHECK_S, FREE_READER_GROUP, Backoff
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_RELEASE_TIMEOUT_MS: Final = 3_000
"""Releasing a lease is a courtesy: it ends by itself after 30 s."""


class Lease:
    """A partition at a broker, under one name.

    The broker passes over messages of other types than ``message_types``, as far as it can tell: it
    compares 32-bit hashes.
    """

    def __init__(
        self,
        session: BrokerSession,
        claim: Claim,
        *,
        query_priority: int | None = None,
        message_types: Sequence[str] = (),
    ) -> None:
        """Create a lease that is not registered; ``register`` does it."""
        self.session = session
        self.claim = claim
        self._query_priority = query_priority
        self._message_types = message_types

    async def register(
        self, offset: int | None, read_status: ReadStatus = ReadStatus.STORED_OR_EARLIEST
    ) -> Position:
        """Register the partition, for the first time or again; what is in flight is dropped.

        The answer is where the broker stands, which is not ``offset`` when that lies outside the store.
        Without an offset that is where the group stands or, for a group without a position, what
        ``read_status`` says.
        """
        return await self.session.start_register(
            self.claim,
            offset,
            read_status=read_status,
            filters=self._message_types,
            query_priority=self._query_priority,
        )

    async def release(self, *, consumed: bool = False) -> TubeMQError | None:
        """Give the partition back; return why the broker has not done it, if it has not.

        When the connection was lost it may be called again: a broker gives up only what we hold, and commits
        only once.
        """
        try:
            await self.session.start_unregister(self.claim, consumed=consumed, timeout_ms=_RELEASE_TIMEOUT_MS)
        except TubeMQError as error:
            logger.debug("could not release %s: %s", self.claim.partition, error)
            return error
        return None


class LeaseHolder(abc.ABC):
    """Decides under which name a partition is held. A cursor moves through one."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._lease: Lease | None = None

    @property
    def lease(self) -> Lease:
        """The lease that ``acquire`` made last."""
        if self._lease is None:
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"{self._partition} is not leased")
        return self._lease

    @abc.abstractmethod
    async def acquire(self, offset: int) -> Position:
        """Register the partition at an offset; what was fetched before and is not confirmed is dropped.

        The answer is where the broker stands; not ``offset`` when that lies outside the store.
        """


class ReaderGroupHolder(LeaseHolder):
    """Holds a partition for a reader, under a free name of a small pool; releases it as a context manager.

    Readers must not disturb the user's group, nor each other (task retries, speculative tasks, several
    queries). So they hold partitions under *reader groups*: a fixed pool of names, of which each reader uses
    one that is free for its partition.

    Invariants:

    - At most one lease is claimed at a time; the last one is released before the next one is made.
    - Every lease has a client id of its own. A request under an old id whose answer never came may still be
      carried out, and must not move the new position.
    """

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        partition: TopicPartition,
        route: Route,
        *,
        query_priority: int | None = None,
        message_types: Sequence[str] = (),
        private: Private | None = None,
    ) -> None:
        """Create a holder without a lease; ``acquire`` registers one."""
        super().__init__(partition)
        self._config = config
        self._connections = connections
        self.endpoint = route.endpoint
        """The partition's broker; it may be changed before the next ``acquire``."""
        self._visit_token = route.visit_token
        self._query_priority = query_priority
        self._message_types = message_types
        self._private = private

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._lease is None or self._lease.session.connection.closed:
            return
        # Who ends early does not wait for a broker that is frozen: it has been asked.
        ends_early = kind is not None and not issubclass(kind, Exception)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S if ends_early else None):
                await self._lease.release()

    async def acquire(self, offset: int) -> Position:
        """Register the partition at an offset, under a new name; the lease before it is released."""
        connection = await self._connect()
        await self._release(connection)
        wait_ms = min(self._config.lease_wait_ms, self._config.fetch_timeout_ms)
        deadline = Deadline.after_ms(wait_ms, asyncio.get_running_loop().time)
        backoff = Backoff(FREE_READER_GROUP)
        groups = list(self._config.reader_groups)
        while True:
            # At random, so that readers that start together do not ask for the same names in turn.
            random.shuffle(groups)
            for group in groups:
                position = await self._acquire_under(group, connection, offset)
                if position is not None:
                    return position
            pause_s = backoff.next_s(deadline)
            if pause_s is None:
                raise TubeMQTimeoutError(
                    "TUBEMQ_LEASES_TAKEN",
                    count=len(groups),
                    groups=listed(sorted(groups)),
                    partition=self._partition,
                    waited_ms=wait_ms,
                )
            await asyncio.sleep(pause_s)

    async def _acquire_under(self, group: str, connection: Connection, offset: int) -> Position | None:
        """Make the lease under a reader group; return None when another reader holds the partition."""
        claim = Claim(self._partition, group, identity.consumer_id(group))
        lease = self._lease = Lease(
            self._session(connection),
            claim,
            query_priority=self._query_priority,
            message_types=self._message_types,
        )
        try:
            return await self._register_with_valid_token(lease, offset)
        except RpcError as error:
            if error.code != ErrCode.PARTITION_OCCUPIED:
                raise
            self._lease = None
            return None

    async def _register_with_valid_token(self, lease: Lease, offset: int) -> Position:
        try:
            return await lease.register(offset)
        except RpcError as error:
            if error.code != ErrCode.CERTIFICATE_FAILURE:
                raise
        # Brokers accept a token for 16 minutes or so; a task may begin long after it was planned.
        self._visit_token = await fresh_visit_token(self._config, self._connections)
        lease.session = self._session(lease.session.connection)
        return await lease.register(offset)

    async def _release(self, connection: Connection) -> None:
        if self._lease is None:
            return
        # The connection of the lease may have been lost since.
        self._lease.session = self._session(connection)
        await self._lease.release()
        self._lease = None

    def _session(self, connection: Connection) -> BrokerSession:
        return BrokerSession(connection, self._config, self._visit_token)

    async def _connect(self) -> Connection:
        if self._private is not None:
            return await self._private.to(self.endpoint)
        config = self._config
        return await self._connections.get(self.endpoint, config.connect_timeout_ms, config.tls)
