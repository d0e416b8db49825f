"""What a consumer does beside its user's calls: it keeps the leases of its partitions.

A thread begins heartbeats to all brokers at once, each period. It waits for none: the scheduler carries them
out (``client/background.py``), so a broker, a master or a batch that takes its time costs no lease elsewhere.

The same thread closes the consumer. Who wants that only leaves a note (``close``): a signal handler and the
garbage collector run in any thread at any moment, and must wait for no lock. ``SimpleQueue.put`` is made for
that.
"""

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.broker.session import BrokerSession
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader, Standing
from tubemq_spark.client.consumer.state import ConsumerState, Life, is_taken
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.steps import Steps, wait_for
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error

logger = logging.getLogger(__name__)

_LONGEST_ANSWER_MS: Final = 5_000
"""A broker that takes longer is asked again before its leases end."""


class Upkeep:
    """Runs every heartbeat period in a thread of its own, from ``start`` to ``close``."""

    def __init__(
        self,
        state: ConsumerState,
        reader: Reader,
        after_leases: Callable[[], object] = lambda: None,
        stop_others: Callable[[], object] = lambda: None,
    ) -> None:
        """Create the thread; neither it nor the functions may keep the consumer alive.

        Args:
            state: the consumer's partitions.
            reader: what they share.
            after_leases: does what else a consumer of its kind has to do in a period; it must return at once.
            stop_others: stops the consumer's other threads.
        """
        self._state = state
        self._reader = reader
        self._after_leases = after_leases
        self._stop_others = stop_others
        self._notes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """What ends the thread; True: and the consumer, too."""
        self._under_way: set[Endpoint] = set()
        """The brokers whose last heartbeat has not ended."""
        name = f"tubemq-upkeep-{reader.session.client_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Close the consumer in the thread of this; returns at once, takes no lock, and may be repeated."""
        self._notes.put(True)

    def join(self, timeout: float | None) -> bool:
        """Wait until the thread has ended, so many seconds at most; return whether it has."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def run_once(self) -> None:
        """Begin everything that is due in a period; waits for no server."""
        with self._state.changed:
            if self._state.cache.expire() or self._state.cache.wake():
                self._state.changed.notify_all()
        self._keep_leases()
        self._after_leases()

    def _run(self) -> None:
        while (is_end := self._next_note()) is None:
            try:
                self.run_once()
            except Exception:
                # The next period is another chance; leases last longer than two.
                logger.warning("%s could not keep its partitions", self._thread.name, exc_info=True)
        if is_end:
            self._state.end()
            self._stop_others()
            self._state.release_all()
            self._reader.session.close()

    def _next_note(self) -> bool | None:
        """Wait for a note; None: there was none for a period."""
        try:
            return self._notes.get(timeout=self._reader.config.heartbeat_period_ms / 1000)
        except queue.Empty:
            return None

    def _keep_leases(self) -> None:
        """Begin a heartbeat to each broker, except those whose last one has not ended."""
        state, by_broker = self._state, self._by_broker()
        with state.changed:
            # At other brokers nothing is held any more.
            state.missed = {broker: count for broker, count in state.missed.items() if broker in by_broker}
        for endpoint, partitions in by_broker.items():
            if endpoint not in self._under_way:
                self._under_way.add(endpoint)
                renewing = InBackground(self._renew(endpoint, partitions), f"leases at {endpoint}").start()
                renewing.when_done(functools.partial(self._under_way.discard, endpoint))

    def _by_broker(self) -> dict[Endpoint, list[ConsumerPartition]]:
        by_broker: dict[Endpoint, list[ConsumerPartition]] = {}
        with self._state.changed:
            for partition in self._state.connected.values():
                by_broker.setdefault(partition.endpoint, []).append(partition)
        return by_broker

    def _renew(self, endpoint: Endpoint, partitions: list[ConsumerPartition]) -> Steps[None]:
        """Renew the leases at a broker. Without an answer nothing changes: the next fetch will find out."""
        config, session = self._reader.config, self._reader.session
        try:
            connect_ms = min(config.connect_timeout_ms, _LONGEST_ANSWER_MS)
            channel = yield from wait_for(self._reader.pool.start(endpoint, connect_ms, config.tls))
            broker = BrokerSession(channel, config, session.visit_token, None, session.authorized_token)
            names = [partition.partition for partition in partitions]
            lost = yield from wait_for(
                broker.start_heartbeat(config.group, session.client_id, names, timeout_ms=_LONGEST_ANSWER_MS)
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
                self._lose(endpoint, partition, lost[partition.partition])

    def _lose(self, endpoint: Endpoint, partition: ConsumerPartition, code: int) -> None:
        """Register a partition again with its next fetch, or give it up when another consumer has it."""
        peer, during = f"broker {endpoint}", f"renewing the lease of {partition.partition}"
        error = rpc_error(code, "", peer=peer, during=during)
        # What uses it at this moment gets the same answer.
        if not partition.lock.try_take():
            return
        try:
            if partition.standing is Standing.RELEASED:
                return
            if is_taken(error):
                logger.warning("%s is given up: %s", partition.partition, error)
                self._state.release(partition, error)
            elif code == ErrCode.HB_NO_NODE:
                logger.info("%s is registered again: its broker has forgotten us", partition.partition)
                partition.unplace()
        finally:
            partition.lock.release()
