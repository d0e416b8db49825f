"""Taking partitions and giving them up, as the user of an assigned consumer or the master says.

For each partition there is one lock of *intent*: of two threads that connect to it, or of which one connects
and one disconnects, the second waits for the first. It is taken before the partition's own lock.
"""

import logging
import threading
import time
from typing import Final

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.broker.session import Position
from tubemq_spark.client.consumer.assigned.session import AssignedSession
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer.values import ConsumedPosition
from tubemq_spark.client.master.balance import Layout
from tubemq_spark.client.steps import Pause, Steps, run, wait_for
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQError
from tubemq_spark.model import TopicPartition, alone_in_store
from tubemq_spark.net.deadline import Clock, Deadline
from tubemq_spark.net.retry import REGISTER_MS, SLEEP, FixedPauses, Wait, with_retries
from tubemq_spark.offsets.units import require_aligned
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 2
_LOOK_S: Final = 0.1
"""How often what gives a partition up in the background looks whether another one still does."""
_QUIET_MS: Final = 5_000
"""How long a partition is not asked for again after a refusal that another attempt does not mend."""
_LASTING: Final = frozenset({ErrCode.PARTITION_OCCUPIED, ErrCode.CERTIFICATE_FAILURE})


class Connecting:
    """Connects a consumer to partitions."""

    def __init__(
        self,
        state: ConsumerState,
        reader: Reader,
        session: AssignedSession,
        *,
        follow_resets: bool = False,
        wait: Wait = SLEEP,
        clock: Clock = time.monotonic,
    ) -> None:
        """Create it for one consumer, with no partition connected.

        Args:
            state: the consumer's partitions.
            reader: what they share.
            session: tells of partitions and of resets.
            follow_resets: whether an administrator may move the group behind the last messages.
            wait: how to wait between two attempts to register.
            clock: for the quiet time after a refusal.
        """
        self._state = state
        self._reader = reader
        self._session = session
        self._follow_resets = follow_resets
        self._wait = wait
        self._clock = clock
        self._intents: dict[TopicPartition, threading.Lock] = {}
        self._giving_up: InBackground | None = None
        self._refused: dict[TopicPartition, tuple[float, TubeMQError]] = {}

    def connect(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition:
        """Register a partition at its broker; see ``AssignedConsumer.connect``."""
        if offset is not None:
            require_aligned(offset, str(partition))
        with self._intent(partition):
            connected = self._connected_at(partition, offset)
            if connected is not None:
                return connected
            self._check_quiet(partition)
            new = self._make(partition)
            with new.lock:
                try:
                    position = self._register(new, offset)
                    self._state.add(new, position)
                except BaseException:
                    # Also after Ctrl-C and after errors: the broker may have carried the request out.
                    run(self._state.releasing(new))
                    raise
            return ConsumedPosition(position.current, position.latest, time.time())

    def disconnect(self, partition: TopicPartition) -> bool:
        """Give a partition up, after its batch was confirmed or ``rebalance_wait_ms`` have passed.

        Returns:
            Whether it was connected.
        """
        return run(self.disconnecting(partition))

    def disconnecting(self, partition: TopicPartition) -> Steps[bool]:
        """Give a partition up, as ``disconnect`` does."""
        intent = self._intent(partition)
        yield from _taken(intent)
        try:
            yield from self._state.waiting_for_batches([partition])
            return (yield from self._give_up(partition))
        finally:
            intent.release()

    def ending(self) -> Steps[None]:
        """Give everything up, when the consumer is closed; then wait for connects that are under way.

        They find it closed and give back what their brokers answer with, or are at the end of their time.
        """
        yield from self._state.releasing_all()
        with self._state.changed:
            intents = list(self._intents.values())
        for intent in intents:
            yield from _taken(intent)
            intent.release()

    def follow_master(self) -> None:
        """Give up what cannot be read any more, and follow resets: whenever the master has answered.

        Returns at once: batches, and brokers that are told, are waited for in the background.
        """
        if self._session.take_reset():
            self._reset()
        if self._giving_up is not None and not self._giving_up.ended.done():
            return
        layout = self._session.known_layout
        unsubscribable = [p for p in self._state.held() if not is_subscribable(layout, p)]
        if unsubscribable:
            name = f"giving up partitions of {self._state.client_id}"
            self._giving_up = InBackground(self._release_unsubscribable(unsubscribable), name).start()

    def _release_unsubscribable(self, unsubscribable: list[TopicPartition]) -> Steps[None]:
        """Give up partitions that the master does not list as subscribable any more."""
        yield from self._state.waiting_for_batches(unsubscribable)
        for partition in unsubscribable:
            intent = self._intent(partition)
            yield from _taken(intent)
            try:
                reason = self._not_subscribable(partition)
                if (yield from self._give_up(partition, reason)):
                    logger.warning("%s is given up: %s", partition, reason)
            finally:
                intent.release()

    def _reset(self) -> None:
        """Continue with the latest messages, because an administrator wants that."""
        if not self._follow_resets:
            logger.warning(
                "an administrator wants group %s to continue with the latest messages; ignored, since "
                "follow_resets is not set",
                self._reader.config.group,
            )
            return
        with self._state.changed:
            partitions = list(self._state.connected.values())
        for partition in partitions:
            partition.reset()

    def _intent(self, partition: TopicPartition) -> threading.Lock:
        with self._state.changed:
            return self._intents.setdefault(partition, threading.Lock())

    def _connected_at(self, partition: TopicPartition, offset: int | None) -> ConsumedPosition | None:
        """Return the position of a partition that is connected."""
        with self._state.changed:
            self._state.check_open()
            connected = self._state.connected.get(partition)
            if connected is None:
                return None
            position = self._state.cache.position(partition)
        if offset not in (None, connected.position):
            raise ConsumeError(
                "TUBEMQ_CONNECT.ELSEWHERE",
                code=int(ErrCode.BAD_REQUEST),
                partition=partition,
                current=connected.position,
                asked=offset,
            )
        return position

    def _check_quiet(self, partition: TopicPartition) -> None:
        refused_at, cause = self._refused.get(partition, (None, None))
        if refused_at is None:
            return
        ago_ms = int((self._clock() - refused_at) * 1000)
        if ago_ms < _QUIET_MS:
            raise ConsumeError(
                "TUBEMQ_CONNECT.TOO_EARLY",
                code=int(ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST),
                partition=partition,
                ago_ms=ago_ms,
                cause=cause,
                wait_ms=_QUIET_MS - ago_ms,
            )
        del self._refused[partition]

    def _make(self, partition: TopicPartition) -> ConsumerPartition:
        layout = self._session.known_layout
        if partition not in layout.partitions:
            raise ConsumeError("TUBEMQ_CONNECT.UNKNOWN", code=int(ErrCode.NOT_FOUND), partition=partition)
        if not is_subscribable(layout, partition):
            raise self._not_subscribable(partition)
        return ConsumerPartition(
            self._reader,
            partition,
            layout.partitions[partition],
            self._state.subscription.message_types[partition.topic],
            own_store=partition.store_id in alone_in_store(layout.partitions),
        )

    def _register(self, new: ConsumerPartition, offset: int | None) -> Position:
        # It only counts without an offset, and goes out only then: a broker would follow it.
        status = ReadStatus.STORED_OR_EARLIEST
        if not self._state.cache.registered(new.partition):
            status = self._state.config.consumer.consume_position.read_status
        pauses = FixedPauses(REGISTER_MS, _ATTEMPTS, self._wait)
        deadline = Deadline.after_ms(self._state.config.rpc_timeout_ms)
        try:
            return with_retries(lambda: new.connect(offset, status), pauses, deadline, is_transient=_may_pass)
        except TubeMQError as error:
            if isinstance(error, RpcError) and error.code in _LASTING:
                self._refused[new.partition] = self._clock(), error
            raise

    def _give_up(self, partition: TopicPartition, reason: TubeMQError | None = None) -> Steps[bool]:
        """Give a partition up; return whether it was connected. Hold its intent."""
        connected = self._state.connected.get(partition)
        if connected is None:
            return False
        yield from self._state.taking(connected)
        try:
            yield from self._state.releasing(connected, reason)
        finally:
            connected.lock.release()
        return True

    def _not_subscribable(self, partition: TopicPartition) -> ConsumeError:
        return ConsumeError(
            "TUBEMQ_CONNECT.NOT_SUBSCRIBABLE",
            code=int(ErrCode.PARTITION_UNSUBSCRIBABLE),
            partition=partition,
            group=self._state.config.group,
        )


def is_subscribable(layout: Layout, partition: TopicPartition) -> bool:
    """Whether the master lists a partition and says that it can be read."""
    return partition in layout.partitions and partition not in layout.not_subscribable


def _taken(intent: threading.Lock) -> Steps[None]:
    while not intent.acquire(blocking=False):
        yield from wait_for(Pause(_LOOK_S))


def _may_pass(error: TubeMQError) -> bool:
    return error.retriable and not (isinstance(error, RpcError) and error.code in _LASTING)
