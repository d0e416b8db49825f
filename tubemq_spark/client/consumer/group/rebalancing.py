"""Carrying out what the master wants of a member of a group: taking partitions, and giving them up.

Events come with answers to heartbeats, and are carried out one after the other by a rule in the background
(``client/background.py``): giving up waits for batches to be confirmed, and taking waits for brokers.
Partitions are registered by the threads that each broker has (``client/consumer/workers.py``), so no member
has a thread, and one broker that is away does not hold up the others.

Each event is answered once, also one that failed: the master looks at what is held then, and plans again.
That is all that events ask which neither give nor take: the answer tells what is held. There is nothing to
stop when one says so, because a master sends the next event only after the answer to the last one.

**Where a bound group starts.** In its first round a master gives each member the partitions for which it has
named offsets. They begin there, also those that cannot be taken at once and come again with a later event.
Others begin where the group stands: another member may have read on from there.

**The way back to a partition** is to register where the group stands, for the same reason: while its lease
was lost, another member may have read on.
"""

import collections
import functools
import logging
import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Final, NamedTuple

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.broker.cursor import Step
from tubemq_spark.client.broker.session import Fetched, Position
from tubemq_spark.client.consumer.callbacks import Callbacks
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer.partition import ConsumerPartition, Reader
from tubemq_spark.client.consumer.state import ConsumerState, is_taken
from tubemq_spark.client.consumer.workers import process_workers
from tubemq_spark.client.metadata.bounds import store_bounds
from tubemq_spark.client.steps import AtMost, Blocking, Steps, run, wait_for
from tubemq_spark.errors import (
    ConsumeError,
    RemoteProtocolError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import REGISTER_MS, FixedPauses, Sleep, Wait, with_retries
from tubemq_spark.net.scheduler import process_scheduler
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.partition_strings import PartitionInfo
from tubemq_spark.protocol.rebalance import CONNECTS, DISCONNECTS, EventType, RebalanceEvent

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 2


class _Move(NamedTuple):
    """That a partition goes on elsewhere than where this member stood, in index bytes."""

    expected: int
    actual: int
    held: bool
    """Whether this member held the lease, so that no other one can have read on."""


class GroupPartition(ConsumerPartition):
    """A partition of a member of a group, which sets the group's position at a bound start and by ``seek``.

    A broker moves the position of a group by itself when it lies outside the log. The fetch that finds that
    begins elsewhere, though this member held the lease; when its answer is lost, registering again does. What
    the log holds tells a loss from the act of an administrator, who may move the group at any time, and from
    another member that has read on.
    """

    _move: _Move | None = None
    """What is to be told of, until it is known why."""
    _verdict: BaseException | None = None
    """What ``on_loss`` raised last."""
    _failed: Future[None] | None = None
    """What the next fetch waits for: ``on_loss`` has raised an error, while none waited for messages."""

    def connect(self, offset: int | None, read_status: ReadStatus) -> Position:
        """Register the partition for the first time; see ``ConsumerPartition.connect``.

        What ``on_loss`` raises about the offset, the next fetch raises, as it does with every loss.
        """
        try:
            return super().connect(offset, read_status)
        except BaseException as error:
            if error is not self._verdict:
                raise
            self._failed = Future()
            self._failed.set_exception(error)
            return Position(self.position, None)

    def seek(self, target: int | Edge, wait: Wait) -> Position:
        """Register the partition elsewhere; see ``ConsumerPartition.seek``."""
        answer = super().seek(target, wait)
        self._move = None  # its user has said where it goes on
        return answer

    def fetch(self, *, confirms: bool, own_limits: bool) -> Steps[Fetched | Step]:
        """Fetch what comes next; see ``ConsumerPartition.fetch``."""
        failed, self._failed = self._failed, None
        if failed is not None:
            yield from wait_for(failed)
        if self._move is None:
            try:
                return (yield from super().fetch(confirms=confirms, own_limits=own_limits))
            except RemoteProtocolError as error:
                if error.condition != "TUBEMQ_POSITION_MOVED":
                    raise
                expected, actual = int(error.parameters["expected"]), int(error.parameters["actual"])
                self._move = _Move(expected, actual, held=True)
        self.unplace()
        yield from wait_for(Blocking(self._tell_why_moved))
        return (yield from super().fetch(confirms=False, own_limits=own_limits))

    def _tell_why_moved(self) -> None:
        """Report a loss, or log that the group was moved.

        Raises:
            DataLossError: records are gone, and ``on_loss`` does not tolerate it.
            TubeMQError: the broker does not say now what its log holds.
        """
        if self._move is None:
            return
        expected, actual, held = self._move
        reader, store = self._reader, self.partition.store_id
        connections, token = reader.pool.connections, reader.session.visit_token
        asked = loop.run(store_bounds(reader.config, connections, {store: self.endpoint}, token))
        span, failure = asked.by_store.get(store), asked.failures.get(store)
        if failure is not None and failure.retriable:
            raise failure
        self._move, self._cursor.position = None, actual
        # Where the broker refuses to say, a gap counts as a loss rather than as nothing.
        gone = held if span is None else span.earliest > expected and (held or actual <= span.earliest)
        if actual > expected and gone:
            self._report(Loss.EXPIRED, expected, actual if span is None else min(actual, span.earliest), None)
        elif actual < expected and held and (span is None or span.latest < expected):
            self._report(Loss.MOVED_BACK, actual, expected, None)
        elif held:
            logger.warning(
                "%s: the group was moved from offset %d to %d, by an administrator",
                self.partition,
                expected,
                actual,
            )

    def _report(self, loss: Loss, start: int, end: int, rows: int | None) -> None:
        try:
            super()._report(loss, start, end, rows)
        except BaseException as error:
            self._verdict = error
            raise

    def _place(self) -> Position:
        before = self.position
        answer = self._resume(ReadStatus.STORED_OR_EARLIEST)
        if answer.current != before:
            logger.info(
                "%s continues at offset %d, where the group stands, and not at %d",
                self.partition,
                answer.current,
                before,
            )
        if answer.current > before:
            self._move = _Move(before, answer.current, held=False)
            self._tell_why_moved()
        return answer


class Rebalancing:
    """Carries out events, from ``start`` to ``stop``."""

    def __init__(
        self, state: ConsumerState, reader: Reader, session: GroupSession, callbacks: Callbacks
    ) -> None:
        """Create it; ``start`` begins.

        Args:
            state: its partitions.
            reader: what they share.
            session: is told what became of events.
            callbacks: tells the user.
        """
        self._state = state
        self._reader = reader
        self._session = session
        self._callbacks = callbacks
        self._taken: list[TopicPartition] = []
        """What was taken since its user was told last; workers append to it."""
        self._events: collections.deque[RebalanceEvent] = collections.deque()
        self._under_way: InBackground | None = None
        """What carries events out; the last one, if it has ended."""
        self._is_started = False
        self._starts: dict[TopicPartition, int] = {}
        """Offsets at which partitions of the first round begin."""
        self._stopped = threading.Event()
        self._wait = Sleep(self._stopped.wait)
        self._name = f"rebalancing of {session.client_id}"

    def put(self, event: RebalanceEvent) -> None:
        """Take an event; returns at once."""
        start = self._state.subscription.start
        if start is not None and self._session.first_round and event.type in CONNECTS:
            named = {info.partition for info in event.partitions}
            self._starts |= {where: offset for where, offset in start.offsets.items() if where in named}
        self._events.append(event)
        if self._is_started:
            process_scheduler().after(0, self._begin, self._name)

    def start(self) -> None:
        """Begin."""
        self._is_started = True
        process_scheduler().after(0, self._begin, self._name)

    def stopping(self) -> Steps[None]:
        """Carry out no more events, and wait for the one that is under way, up to ``shutdown_wait_ms``.

        What it finds later, it finds closed, and gives back.
        """
        self._stopped.set()
        if self._under_way is not None:
            patience_s = self._reader.config.consumer.shutdown_wait_ms / 1000
            has_ended = yield from wait_for(AtMost(self._under_way.ended, patience_s))
            if not has_ended:
                logger.warning("%s closes in the middle of a rebalance", self._session.client_id)
        yield from wait_for(self._callbacks.revoked(self._state.held()))

    def carrying_out(self, event: RebalanceEvent) -> Steps[None]:
        """Do what an event says, and tell the master."""
        try:
            if event.type in DISCONNECTS:
                yield from self._giving_up([info.partition for info in event.partitions])
            elif event.type in CONNECTS:
                yield from self._taking(event.partitions)
            elif event.type is EventType.UNKNOWN:
                logger.warning("%s does not know what this event is: %s", self._session.client_id, event)
        finally:
            self._session.report(event)

    def _begin(self) -> None:
        """Carry out what has come, unless that is under way; in the scheduler's thread."""
        if self._events and (self._under_way is None or self._under_way.ended.done()):
            self._under_way = InBackground(self._carrying_out_all(), self._name).start()

    def _carrying_out_all(self) -> Steps[None]:
        while self._events and not self._stopped.is_set():
            event = self._events.popleft()
            try:
                yield from self.carrying_out(event)
            except Exception:
                # The master plans again by what is held.
                logger.warning("%s could not carry out: %s", self._session.client_id, event, exc_info=True)

    def _giving_up(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        yield from self._state.waiting_for_batches(partitions)
        yield from wait_for(self._callbacks.revoked(set(partitions) & set(self._state.held())))
        yield from self._state.releasing_all(partitions)

    def _taking(self, partitions: Collection[PartitionInfo]) -> Steps[None]:
        with self._state.changed:
            new = self._state.cache.new_ones(partitions)
        by_broker: dict[Endpoint, list[PartitionInfo]] = {}
        for info in new:
            by_broker.setdefault(info.endpoint, []).append(info)
        workers = process_workers()
        under_way = [
            # Not in the line of those that fetch: there callbacks of users may take their time.
            workers.start(("taking", endpoint), functools.partial(self._take_of_broker, infos))
            for endpoint, infos in by_broker.items()
        ]
        try:
            for taking in under_way:
                try:
                    yield from wait_for(taking)
                except Exception:
                    # Those of other brokers are taken all the same, and the master plans again.
                    logger.warning("%s could not take partitions", self._session.client_id, exc_info=True)
        finally:
            taken, self._taken = self._taken, []
            self._callbacks.assigned(taken)

    def _take_of_broker(self, partitions: list[PartitionInfo]) -> None:
        """Register partitions of one broker until it cannot be reached: the master plans the others again."""
        for info in partitions:
            if self._stopped.is_set():
                return
            try:
                self._connect(info)
            except ConsumeError:
                return  # the consumer was closed
            except Exception as error:
                is_ours = isinstance(error, TubeMQError)
                text = "%s could not be taken; the master will plan again: %s"
                logger.warning(text, info.partition, error, exc_info=not is_ours)
                if isinstance(error, TubeMQConnectionError | TubeMQTimeoutError):
                    return

    def _connect(self, info: PartitionInfo) -> None:
        types = self._state.subscription.message_types.get(info.topic, frozenset())
        # A member is not told which other partitions are in the store.
        new = GroupPartition(self._reader, info.partition, info.endpoint, types, own_store=False)
        pauses = FixedPauses(REGISTER_MS, _ATTEMPTS, self._wait)
        deadline = Deadline.after_ms(self._reader.config.rpc_timeout_ms)
        offset, status = self._beginning(info.partition)
        with new.lock:
            try:
                position = with_retries(
                    lambda: new.connect(offset, status), pauses, deadline, is_transient=_may_pass
                )
                self._state.add(new, position, held=self._callbacks.holds)
                self._taken.append(info.partition)
            except BaseException as error:
                if isinstance(error, TubeMQError) and is_taken(error):
                    new.abandon()
                else:
                    # The broker may have carried the request out.
                    run(new.releasing(consumed=False))
                raise
        logger.info("%s takes %s at offset %d", self._session.client_id, info.partition, position.current)

    def _beginning(self, partition: TopicPartition) -> tuple[int | None, ReadStatus]:
        """Return the offset to begin at, if there is one, and what counts for a group without a position."""
        if self._state.cache.registered(partition):
            return None, ReadStatus.STORED_OR_EARLIEST
        if partition in self._starts:
            return self._starts[partition], ReadStatus.STORED_OR_EARLIEST
        return None, self._reader.config.consumer.consume_position.read_status


def _may_pass(error: TubeMQError) -> bool:
    return error.retriable and not is_taken(error)
