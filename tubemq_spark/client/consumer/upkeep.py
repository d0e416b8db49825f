"""What a consumer does beside its user's calls: it keeps the leases of its partitions, and it closes.

It has no thread. The process's scheduler runs it each period, and carries out what it begins
(``client/background.py``): heartbeats to all brokers at once, so a broker, a master or a batch that takes its
time costs no lease elsewhere, and the end of the consumer.

=========  ==================================================================================================
state      meaning
=========  ==================================================================================================
*new*      until ``start``; a wish to close is remembered
*running*  the scheduler has its task
*closing*  the task is cancelled, and no heartbeat begins any more; a rule gives up what is held
*ended*    ``ended`` is done
=========  ==================================================================================================

Invariants:

- Who wants the consumer closed only leaves a mark and a note for the scheduler (``close``): a signal handler
  and the garbage collector run in any thread at any moment, and must wait for no lock.
- All else happens in the scheduler's thread, which waits for nothing.
- Closing needs nothing that may be refused: no thread, and no place in a line. It comes to its end also when
  brokers and masters are silent, after the time-outs of its requests.
"""

import functools
import logging
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Final

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.broker.session import BrokerSession
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader, Standing
from tubemq_spark.client.consumer.state import ConsumerState, Life, is_taken
from tubemq_spark.client.master.producers import is_token_refused
from tubemq_spark.client.steps import Steps, submit, wait_for
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.scheduler import Task, process_scheduler
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error

logger = logging.getLogger(__name__)

_LONGEST_ANSWER_MS: Final = 5_000
"""A broker that takes longer is asked again before its leases end."""


def _nothing() -> Steps[None]:
    yield from ()


class Upkeep:
    """Runs every heartbeat period in the process's scheduler, from ``start`` to ``close``; see the module."""

    def __init__(
        self,
        state: ConsumerState,
        reader: Reader,
        after_leases: Callable[[], object] = lambda: None,
        stopping_others: Callable[[], Steps[None]] = _nothing,
    ) -> None:
        """Create it in the state *new*; neither it nor the functions may keep the consumer alive.

        Args:
            state: the consumer's partitions.
            reader: what they share.
            after_leases: does what else a consumer of its kind has to do in a period; it must return at once.
            stopping_others: ends what else goes on for the consumer.
        """
        self.ended: Future[None] = Future()
        """Done when the consumer has closed."""
        self._state = state
        self._reader = reader
        self._after_leases = after_leases
        self._stopping_others = stopping_others
        self._task: Task | None = None
        self._is_unwanted = False
        """Whether the consumer is to close."""
        self._under_way: set[Endpoint] = set()
        """The brokers whose last heartbeat has not ended."""

    def start(self) -> None:
        """Begin."""
        period_ms, client_id = self._reader.config.heartbeat_period_ms, self._reader.session.client_id
        self._task = process_scheduler().every(period_ms, self._run, f"upkeep of {client_id}")
        if self._is_unwanted:  # since before there was a task to hasten
            self._task.hasten()

    def close(self) -> None:
        """Close the consumer in the background; returns at once, takes no lock, and may be repeated."""
        self._is_unwanted = True
        if self._task is not None:
            self._task.hasten()

    def join(self, timeout: float | None) -> bool:
        """Wait until the consumer has closed, so many seconds at most; return whether it has."""
        if self._task is None:
            return True
        futures.wait([self.ended], timeout)
        return self.ended.done()

    def run_once(self) -> None:
        """Begin everything that is due in a period; waits for no server."""
        with self._state.changed:
            if self._state.cache.expire() or self._state.cache.wake():
                self._state.changed.notify_all()
        self._keep_leases()
        self._after_leases()

    def _run(self) -> None:
        if not self._is_unwanted:
            # An error is logged by the scheduler. The next period is another chance; leases last longer.
            self.run_once()
        elif self._task is not None and self._task.active:
            self._task.cancel()
            self._reader.session.stop_heartbeats()
            closing = InBackground(self._closing(), f"closing {self._reader.session.client_id}")
            closing.start().when_done(functools.partial(self.ended.set_result, None))

    def _closing(self) -> Steps[None]:
        """Give everything up, and leave the master."""
        self._state.end()
        try:
            yield from self._stopping_others()
            yield from self._state.releasing_all()
        finally:
            yield from wait_for(submit(self._reader.session.close()))

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
                yield from self._lose(endpoint, partition, lost[partition.partition])

    def _lose(self, endpoint: Endpoint, partition: ConsumerPartition, code: int) -> Steps[None]:
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
                yield from self._state.releasing(partition, error)
            elif code == ErrCode.HB_NO_NODE:
                logger.info("%s is registered again: its broker has forgotten us", partition.partition)
                partition.unplace()
        finally:
            partition.lock.release()
