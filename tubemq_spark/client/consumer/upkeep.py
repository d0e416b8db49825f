"""What a consumer does beside its user's calls: it keeps the leases of its partitions.

It has a thread of its own, since it waits for brokers, and the thread of heartbeats to masters is shared by
the whole process. One broker that is away costs the others nothing: all are asked at once, and none for long.
"""

import abc
import logging
import threading
from typing import Final

from tubemq_spark.client.broker.channels import connect_to_all
from tubemq_spark.client.broker.session import BrokerSession, Started
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader
from tubemq_spark.client.consumer.state import ConsumerState, is_taken
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error

logger = logging.getLogger(__name__)

_LONGEST_ANSWER_MS: Final = 5_000
"""A broker that takes longer is asked again before its leases end."""


class LeaseUpkeep(abc.ABC):
    """Runs every heartbeat period in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, state: ConsumerState, reader: Reader) -> None:
        """Belong to a consumer.

        Args:
            state: its partitions.
            reader: what they share.
        """
        self._state = state
        self._reader = reader
        self._stopped = threading.Event()
        name = f"tubemq-upkeep-{reader.session.client_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def run_once(self) -> None:
        """Do everything that is due in a period."""
        with self._state.changed:
            if self._state.cache.expire() or self._state.cache.wake():
                self._state.changed.notify_all()
        self._keep_leases()
        self._after_leases()

    @abc.abstractmethod
    def _after_leases(self) -> None:
        """Do what else a consumer of this kind has to do in a period."""

    def _run(self) -> None:
        while not self._stopped.wait(self._reader.config.heartbeat_period_ms / 1000):
            try:
                self.run_once()
            except Exception:
                # The next period is another chance; leases last longer than two.
                logger.warning("%s could not keep its partitions", self._thread.name, exc_info=True)

    def _keep_leases(self) -> None:
        by_broker, missed = self._by_broker(), self._state.missed
        missed.keep(by_broker)
        if not by_broker:
            return
        channels, unreached = connect_to_all(self._reader.config, self._reader.pool, by_broker)
        for endpoint, error in unreached.items():
            missed.miss(endpoint, error)
        started = {}
        for endpoint, channel in channels.items():
            session = self._reader.session
            broker = BrokerSession(
                channel, self._reader.config, session.visit_token, None, session.authorized_token
            )
            try:
                started[endpoint] = broker.start_heartbeat(
                    self._reader.config.group,
                    session.client_id,
                    [partition.partition for partition in by_broker[endpoint]],
                    timeout_ms=_LONGEST_ANSWER_MS,
                )
            except TubeMQError as error:
                missed.miss(endpoint, error)
        for endpoint, heartbeat in started.items():
            self._collect(endpoint, heartbeat, by_broker[endpoint])

    def _by_broker(self) -> dict[Endpoint, list[ConsumerPartition]]:
        found: dict[Endpoint, list[ConsumerPartition]] = {}
        with self._state.changed:
            for partition in self._state.connected.values():
                found.setdefault(partition.endpoint, []).append(partition)
        return found

    def _collect(
        self,
        endpoint: Endpoint,
        heartbeat: Started[dict[TopicPartition, int]],
        asked: list[ConsumerPartition],
    ) -> None:
        """Look at a broker's answer. Without one nothing changes: whoever reads there will find out."""
        try:
            lost = heartbeat.result()
        except TubeMQError as error:
            self._state.missed.miss(endpoint, error)
            if is_token_refused(error):
                self._reader.session.refresh_token()
            return
        self._state.missed.answer(endpoint)
        for partition in asked:
            if partition.partition in lost:
                self._lose(endpoint, partition, lost[partition.partition])

    def _lose(self, endpoint: Endpoint, partition: ConsumerPartition, code: int) -> None:
        """Let a partition be registered again, or give it up when somebody else has it."""
        peer, during = f"broker {endpoint}", f"renewing the lease of {partition.partition}"
        error = rpc_error(code, "", peer=peer, during=during)
        # Whoever uses it at this moment gets the same answer.
        if not partition.lock.try_take():
            return
        try:
            if partition.released:
                return
            if is_taken(error):
                logger.warning("%s is given up: %s", partition.partition, error)
                self._state.release(partition, error)
            elif code == ErrCode.HB_NO_NODE:
                logger.info("%s is registered again: its broker has forgotten us", partition.partition)
                partition.unplace()
        finally:
            partition.lock.release()
