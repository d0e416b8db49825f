"""What a consumer does each heartbeat period: it renews the leases of its partitions.

All brokers are asked side by side, so one that takes its time costs no lease elsewhere. The next heartbeat to
a broker begins only when the last one has ended.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.broker.session import BrokerSession
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader, Standing
from tubemq_spark.client.consumer.state import ConsumerState, is_taken
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error

logger = logging.getLogger(__name__)

_LONGEST_ANSWER_MS: Final = 5_000
"""A broker that takes longer is asked again before its leases end."""


class Upkeep:
    """Renews the leases of one consumer."""

    def __init__(
        self, state: ConsumerState, reader: Reader, after_leases: Callable[[], object] = lambda: None
    ) -> None:
        """Ask no broker. ``after_leases`` does what else is due in a period, and must return at once."""
        self._state = state
        self._reader = reader
        self._after_leases = after_leases
        self._heartbeats = OwnedTasks()
        self._under_way: dict[Endpoint, asyncio.Task[None]] = {}
        """The last heartbeat to each broker."""

    async def run(self) -> None:
        """Do each period what is due, until this is cancelled; then no heartbeat is left."""
        try:
            while True:
                await asyncio.sleep(self._reader.config.heartbeat_period_ms / 1000)
                try:
                    self.run_once()
                except Exception:
                    # The next period is another chance; leases last longer.
                    logger.warning("upkeep of %s failed", self._state.client_id, exc_info=True)
        finally:
            await self._heartbeats.cancel()

    def run_once(self) -> None:
        """Begin everything that is due in a period; waits for no server."""
        if self._state.cache.expire() or self._state.cache.wake():
            self._state.changes.note()
        self._keep_leases()
        self._after_leases()

    def _keep_leases(self) -> None:
        """Begin a heartbeat to each broker, except those whose last one has not ended."""
        by_broker: dict[Endpoint, list[ConsumerPartition]] = {}
        for partition in self._state.connected.values():
            by_broker.setdefault(partition.endpoint, []).append(partition)
        # At other brokers nothing is held any more.
        missed = self._state.missed
        self._state.missed = {broker: count for broker, count in missed.items() if broker in by_broker}
        self._under_way = {broker: task for broker, task in self._under_way.items() if not task.done()}
        for endpoint, partitions in by_broker.items():
            if endpoint not in self._under_way:
                self._under_way[endpoint] = self._heartbeats.start(
                    self._renew(endpoint, partitions), f"leases at {endpoint}", alone=True
                )

    async def _renew(self, endpoint: Endpoint, partitions: list[ConsumerPartition]) -> None:
        """Renew the leases at a broker. Without an answer nothing changes: the next fetch will find out."""
        config, session = self._reader.config, self._reader.session
        try:
            connect_ms = min(config.connect_timeout_ms, _LONGEST_ANSWER_MS)
            connection = await self._reader.connections.get(endpoint, connect_ms, config.tls)
            broker = BrokerSession(
                connection, config, session.visit_token, authorized_token=session.authorized_token
            )
            names = [partition.partition for partition in partitions]
            lost = await broker.start_heartbeat(
                config.group, session.client_id, names, timeout_ms=_LONGEST_ANSWER_MS
            )
        except TubeMQError as error:
            if self._state.life is Life.OPEN:
                self._state.note_missed(endpoint, error)
            if is_token_refused(error):
                session.refresh_soon()
            return
        self._state.note_answer(endpoint)
        for partition in partitions:
            if partition.partition in lost:
                await self._lose(endpoint, partition, lost[partition.partition])

    async def _lose(self, endpoint: Endpoint, partition: ConsumerPartition, code: int) -> None:
        """Register a partition again with its next fetch, or give it up when another consumer has it."""
        peer, during = f"broker {endpoint}", f"renewing the lease of {partition.partition}"
        error = rpc_error(code, "", peer=peer, during=during)
        # What uses it at this moment gets the same answer. The lock need not be taken: nothing here waits,
        # since a broker is not told of a partition that another consumer has taken.
        if partition.lock.locked() or partition.standing is Standing.RELEASED:
            return
        if is_taken(error):
            logger.warning("%s is given up: %s", partition.partition, error)
            await self._state.release(partition, error)
        elif code == ErrCode.HB_NO_NODE:
            logger.info("%s is registered again: its broker has forgotten us", partition.partition)
            partition.unplace()
