"""Holding a partition for reading, under any free name of a small pool.

Readers must not disturb the user's group, nor each other (task retries, speculative tasks, several queries).
So they hold partitions under *reader groups*: a fixed pool of names, of which each reader uses one that is
free for its partition.

Invariants:

- At most one lease is claimed at a time; the last one is released before the next one is made.
- Every lease has a client id of its own. A request under an old id whose answer never came may still be
  carried out, and must not move the new position.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Self

from tubemq_spark.client.broker.lease import Lease, LeaseHolder
from tubemq_spark.client.broker.session import BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token
from tubemq_spark.errors import RpcError, TubeMQTimeoutError
from tubemq_spark.model import Route, TopicPartition
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections, Private
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import CHECK_S, FREE_READER_GROUP, Backoff
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol.errcodes import ErrCode


class ReaderGroupHolder(LeaseHolder):
    """Holds one partition for one reader; an asynchronous context manager that releases it at the end."""

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
        """Create a holder without a lease; ``acquire`` registers one.

        Args:
            config: the settings, which name the reader groups.
            connections: the connections.
            partition: what to hold.
            route: the partition's broker and a visit token.
            query_priority: see ``Lease``.
            message_types: see ``Lease``.
            private: opens the connection to the broker; None: the shared one serves.
        """
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
        """Register the partition at an offset, under a new name; the lease before it is released.

        Returns:
            Where the broker stands; not ``offset`` when that lies outside the store.

        Raises:
            TubeMQTimeoutError: ``TUBEMQ_LEASES_TAKEN``: no reader group was free for ``lease_wait_ms``.
            RpcError: the broker refuses for another reason.
            TubeMQError: the broker cannot be reached.
        """
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
