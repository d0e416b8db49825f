"""Holding a partition at its broker: one lease, under one group and one client id.

A broker lets one client of a group hold a partition. Registering makes the lease, registering again under the
same name renews it and sets the position, and unregistering ends it; without requests it ends by itself after
30 s.

Invariants:

- A lease keeps its name (``claim``).
- Its holder keeps it from before the register is sent until it is released, or another client turns out to
  hold the partition: an answer that is lost may still leave a lease behind.
- The broker knows a lease by its name and not by its connection, so ``session`` may be replaced at any time.

Under which names to hold a partition is not decided here but by a ``LeaseHolder``: see ``reader_groups``.
"""

import abc
import logging
from collections.abc import Sequence
from typing import Final

from tubemq_spark.client.broker.session import BrokerSession, Claim, Position
from tubemq_spark.errors import LocalProtocolError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import ReadStatus

logger = logging.getLogger(__name__)

_RELEASE_TIMEOUT_MS: Final = 3_000
"""Releasing a lease is a courtesy: it ends by itself after 30 s."""


class Lease:
    """A partition at a broker, under one name."""

    def __init__(
        self,
        session: BrokerSession,
        claim: Claim,
        *,
        query_priority: int | None = None,
        message_types: Sequence[str] = (),
    ) -> None:
        """Create a lease that is not registered; ``register`` does it.

        Args:
            session: the partition's broker.
            claim: the partition, and the name to hold it under.
            query_priority: which records the lease may see; by default those the cluster is configured for.
            message_types: the broker passes over messages of other types, as far as it can tell: it compares
                32-bit hashes.
        """
        self.session = session
        self.claim = claim
        self._query_priority = query_priority
        self._message_types = message_types

    async def register(
        self, offset: int | None, read_status: ReadStatus = ReadStatus.STORED_OR_EARLIEST
    ) -> Position:
        """Register the partition, for the first time or again; what is in flight is dropped.

        Args:
            offset: where to stand; None: where the group stands, or stood before.
            read_status: where a group begins that has no position, or, with ``LATEST_ALWAYS``, any group;
                counts only without an offset.

        Returns:
            Where the broker stands; not ``offset`` when that lies outside the store.

        Raises:
            TubeMQError: as ``BrokerSession.start_register``.
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

        Args:
            consumed: whether what was fetched last is committed.
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
        """The lease that ``acquire`` made last.

        Raises:
            LocalProtocolError: there is none.
        """
        if self._lease is None:
            raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"{self._partition} is not leased")
        return self._lease

    @abc.abstractmethod
    async def acquire(self, offset: int) -> Position:
        """Register the partition at an offset; what was fetched before and is not confirmed is dropped.

        Returns:
            Where the broker stands; not ``offset`` when that lies outside the store.

        Raises:
            TubeMQError: the broker cannot be reached, or refuses.
        """
