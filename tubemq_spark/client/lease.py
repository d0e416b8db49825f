"""Borrowing a partition for reading, under any free name of a small pool.

A broker lets one client of a group hold a partition. Readers must not disturb the user's group, nor each
other (task retries, speculative tasks, several queries), so they hold partitions under *reader groups*: a
fixed pool of names, of which each reader takes one that is free for its partition.
"""

import logging
import random
import time
from typing import Final, Self

from tubemq_spark.client import ids
from tubemq_spark.client.broker import BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer_session import fresh_visit_token
from tubemq_spark.errors import LocalProtocolError, RpcError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.channel import RpcChannel
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 100
_LONGEST_PAUSE_MS: Final = 2_000
_UNREGISTER_TIMEOUT_MS: Final = 3_000
"""Giving a lease back is a courtesy: it ends by itself after 30 s."""


class Lease:
    """A partition's lease; a context manager that gives it back."""

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        partition: TopicPartition,
        endpoint: Endpoint,
        visit_token: int,
        *,
        query_priority: int | None = None,
        wait: Wait = time.sleep,
    ) -> None:
        """Hold nothing yet.

        Args:
            config: the settings.
            pool: the channels.
            partition: what to lease.
            endpoint: the partition's broker; it may be changed before the next ``take``.
            visit_token: the proof that a master knows us.
            query_priority: what the lease may see; by default what the cluster is set to.
            wait: how to wait; also called, with 0 seconds, while a request is not answered.
        """
        self._config = config
        self._pool = pool
        self._partition = partition
        self.endpoint = endpoint
        self._visit_token = visit_token
        self._query_priority = query_priority
        self._wait = wait
        self._held: tuple[BrokerSession, Claim] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None and not self._held[0].channel.closed:
            self._give_back(self._held[0].channel)

    @property
    def held(self) -> tuple[BrokerSession, Claim]:
        """The session and the claim to read with, after ``take``."""
        if self._held is None:
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"{self._partition} is not leased")
        return self._held

    def take(self, offset: int) -> Position:
        """Lease the partition at an offset, under a new name; what was held before is given back.

        A new name each time, because a request of the old one whose answer never came may still be
        carried out, and must not move the new position.

        Returns:
            Where the broker stands; not ``offset`` when that lies outside the store.

        Raises:
            TubeMQTimeoutError: ``TUBEMQ_LEASES_TAKEN``: all reader groups are taken for ``lease_wait_ms``.
            RpcError: the broker refuses for another reason.
            TubeMQError: the broker cannot be reached.
        """
        channel = self._pool.get(self.endpoint, self._config.connect_timeout_ms)
        self._give_back(channel)
        deadline = Deadline.after_ms(self._config.lease_wait_ms)
        backoff = Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, wait=self._wait)
        groups = list(self._config.reader_groups)
        while True:
            # At random, so that readers that start together do not ask for the same names in turn.
            random.shuffle(groups)
            for group in groups:
                position = self._try_group(channel, group, offset)
                if position is not None:
                    return position
            if not backoff.wait(deadline):
                raise TubeMQTimeoutError(
                    "TUBEMQ_LEASES_TAKEN",
                    count=len(groups),
                    partition=self._partition,
                    waited_ms=self._config.lease_wait_ms,
                )

    def renew(self) -> Position:
        """Register again as what we are: the position stays, and what is in flight is dropped.

        Raises:
            TubeMQError: the broker refuses, or cannot be reached.
        """
        session, claim = self.held
        return session.register(claim, None, query_priority=self._query_priority)

    def _try_group(self, channel: RpcChannel, group: str, offset: int) -> Position | None:
        """Register; return None when the group is taken."""
        claim = Claim(self._partition, group, ids.consumer_id(group))
        try:
            return self._register_with_valid_token(channel, claim, offset)
        except RpcError as error:
            if error.code != ErrCode.PARTITION_OCCUPIED:
                raise
            self._held = None
            return None

    def _register_with_valid_token(self, channel: RpcChannel, claim: Claim, offset: int) -> Position:
        try:
            return self._register(channel, claim, offset)
        except RpcError as error:
            if error.code != ErrCode.CERTIFICATE_FAILURE:
                raise
        # Brokers accept a token for 16 minutes or so; a task may begin long after it was planned.
        self._visit_token = fresh_visit_token(self._config, self._pool)
        return self._register(channel, claim, offset)

    def _register(self, channel: RpcChannel, claim: Claim, offset: int) -> Position:
        session = BrokerSession(channel, self._config, self._visit_token, self._wait)
        # Noted before the answer: a register that fails, or whose answer is lost, may leave a lease.
        self._held = session, claim
        return session.register(claim, offset, query_priority=self._query_priority)

    def _give_back(self, channel: RpcChannel) -> None:
        if self._held is None:
            return
        _, claim = self._held
        self._held = None
        session = BrokerSession(channel, self._config, self._visit_token, self._wait)
        timeout_ms = min(_UNREGISTER_TIMEOUT_MS, self._config.rpc_timeout_ms)
        try:
            session.unregister(claim, timeout_ms=timeout_ms)
        except TubeMQError as error:
            logger.debug("could not give %s back: %s", claim.partition, error)
