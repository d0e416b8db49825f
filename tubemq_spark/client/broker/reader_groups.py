"""Holding a partition for reading, under any free name of a small pool.

Readers must not disturb the user's group, nor each other (task retries, speculative tasks, several queries).
So they hold partitions under *reader groups*: a fixed pool of names, of which each reader uses one that is
free for its partition.

Invariants:

- At most one lease is claimed at a time; the last one is released before the next one is made.
- Every lease has a client id of its own. A request under an old id whose answer never came may still be
  carried out, and must not move the new position.
"""

import random
from collections.abc import Callable, Sequence
from typing import Self

from tubemq_spark.client.broker.lease import Lease, LeaseHolder
from tubemq_spark.client.broker.session import BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import fresh_visit_token
from tubemq_spark.errors import RpcError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint, Route, TopicPartition
from tubemq_spark.net.call import Channel
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import FREE_READER_GROUP, SLEEP, Backoff, Wait
from tubemq_spark.offsets.notation import listed
from tubemq_spark.protocol.errcodes import ErrCode


class ReaderGroupHolder(LeaseHolder):
    """Holds one partition for one reader; a context manager that releases it at the end."""

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        partition: TopicPartition,
        route: Route,
        *,
        query_priority: int | None = None,
        message_types: Sequence[str] = (),
        wait: Wait = SLEEP,
        connect: Callable[[Endpoint], Channel] | None = None,
    ) -> None:
        """Create a holder without a lease; ``acquire`` registers one.

        Args:
            config: the settings, which name the reader groups.
            pool: the channels.
            partition: what to hold.
            route: the partition's broker and a visit token.
            query_priority: see ``Lease``.
            message_types: see ``Lease``.
            wait: how to wait.
            connect: how to get a channel to a broker; by default that of the pool.
        """
        super().__init__(partition)
        self._config = config
        self._pool = pool
        self.endpoint = route.endpoint
        """The partition's broker; it may be changed before the next ``acquire``."""
        self._visit_token = route.visit_token
        self._query_priority = query_priority
        self._message_types = message_types
        self._wait = wait
        self._connect = connect or self._shared

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None and not self._lease.session.channel.closed:
            self._lease.release()

    def acquire(self, offset: int) -> Position:
        """Register the partition at an offset, under a new name; the lease before it is released.

        Returns:
            Where the broker stands; not ``offset`` when that lies outside the store.

        Raises:
            TubeMQTimeoutError: ``TUBEMQ_LEASES_TAKEN``: no reader group was free for ``lease_wait_ms``.
            RpcError: the broker refuses for another reason.
            TubeMQError: the broker cannot be reached.
        """
        channel = self._connect(self.endpoint)
        self._release(channel)
        wait_ms = min(self._config.lease_wait_ms, self._config.fetch_timeout_ms)
        deadline = Deadline.after_ms(wait_ms)
        backoff = Backoff(FREE_READER_GROUP, wait=self._wait)
        groups = list(self._config.reader_groups)
        while True:
            # At random, so that readers that start together do not ask for the same names in turn.
            random.shuffle(groups)
            for group in groups:
                position = self._acquire_under(group, channel, offset)
                if position is not None:
                    return position
            if not backoff.wait(deadline):
                raise TubeMQTimeoutError(
                    "TUBEMQ_LEASES_TAKEN",
                    count=len(groups),
                    groups=listed(sorted(groups)),
                    partition=self._partition,
                    waited_ms=wait_ms,
                )

    def _acquire_under(self, group: str, channel: Channel, offset: int) -> Position | None:
        """Make the lease under a reader group; return None when another reader holds the partition."""
        claim = Claim(self._partition, group, identity.consumer_id(group))
        lease = self._lease = Lease(
            self._session(channel),
            claim,
            query_priority=self._query_priority,
            message_types=self._message_types,
        )
        try:
            return self._register_with_valid_token(lease, offset)
        except RpcError as error:
            if error.code != ErrCode.PARTITION_OCCUPIED:
                raise
            self._lease = None
            return None

    def _register_with_valid_token(self, lease: Lease, offset: int) -> Position:
        try:
            return lease.register(offset)
        except RpcError as error:
            if error.code != ErrCode.CERTIFICATE_FAILURE:
                raise
        # Brokers accept a token for 16 minutes or so; a task may begin long after it was planned.
        self._visit_token = fresh_visit_token(self._config, self._pool)
        lease.session = self._session(lease.session.channel)
        return lease.register(offset)

    def _release(self, channel: Channel) -> None:
        if self._lease is None:
            return
        # The channel of the lease may have been lost since.
        self._lease.session = self._session(channel)
        self._lease.release()
        self._lease = None

    def _session(self, channel: Channel) -> BrokerSession:
        return BrokerSession(channel, self._config, self._visit_token, self._wait)

    def _shared(self, endpoint: Endpoint) -> Channel:
        return self._pool.get(endpoint, self._config.connect_timeout_ms, self._config.tls)
