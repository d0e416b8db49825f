"""One producer that many senders share, each with a lane of its own: batches in, one outcome for each.

**States of the sender.**

- *At rest*: nothing waits and nothing is under way; there is no thread, and the connections stay.
- *Running*: the thread moves messages. It ends when nothing was there to do for ``_REST_S``.
- *Ended*: ``close`` was called, or an error concerned all messages (``error``). Nothing is accepted.

**States of a delivery**, which is one batch on its way. It *waits* in its lane; it is *first* there while its
messages enter the window, as many at a time as there is room for; it is *under way* when all of them have; it
has *ended* when each is stored or has an error. Then ``on_end`` is told, once, in the thread.

**Invariants.**

- The batches of a lane enter the window in the order of ``put``; lanes take turns.
- A lane whose next message can only go to a broker whose share is full waits for it; the others go on.
- Nothing here waits for a master: who puts a batch has looked up its places before (``places``), and says
  which topics and partitions are refused.
- The window is as wide as those of all lanes that have something to send, together, up to a limit.
- What a lane that has ended had put is given up: what has not entered the window at once, the rest within
  half a second. What is on its way to a broker by then may be stored.

**Who changes what.** ``_lock`` guards the lanes' batches, which lanes have some, and the thread. The thread
alone drives the window, chooses partitions and ends deliveries; it calls ``on_end`` without the lock.
"""

import collections
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.forks import abandon_in_child
from tubemq_spark.client.producer.batch_outcome import BatchOutcome
from tubemq_spark.client.producer.outcomes import unplaceable
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch, refused_message
from tubemq_spark.client.producer.placing import Placing
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Sleep
from tubemq_spark.net.waker import Waker, or_exhausted
from tubemq_spark.protocol.send_batch import SendBatch

logger = logging.getLogger(__name__)

_REST_S: Final = 1.0
"""The thread ends when there was nothing to do for so long: to start one costs more than a small batch."""
_IDLE_S: Final = 3600.0
"""How long the thread sleeps while messages are under way; every event wakes it."""
_SENT: Final = "it may be stored"

Refusals = Mapping[str | TopicPartition, TubeMQError]
"""Why messages to topics or partitions are refused."""


class Delivery:
    """One batch on its way; its lane's thread changes it, and ``on_end`` may read it."""

    __slots__ = ("broken", "lane", "make", "on_end", "outcome", "put_at", "refusals", "row", "stops")

    def __init__(
        self,
        lane: "Lane",
        make: Callable[[], SendBatch],
        refusals: Refusals,
        on_end: "Callable[[Delivery], object]",
    ) -> None:
        self.lane = lane
        self.make = make
        """Returns the messages; called once, in the thread."""
        self.refusals = refusals
        self.on_end = on_end
        self.put_at = time.monotonic()
        self.broken: Exception | None = None
        """Why there are no messages: what ``make`` raised."""
        self.outcome: BatchOutcome | None = None
        """What became of the messages; None until the batch is first in its lane."""
        self.row = 0
        """The first message that has not entered the window."""
        self.stops: collections.deque[int] = collections.deque()
        """The rows of messages that are refused from the start, and the end of the batch."""


class Lane:
    """The batches of one sender, in order; any thread may put some."""

    def __init__(self, sender: "SharedSender", name: str) -> None:
        self._sender = sender
        self.name = name
        """How errors call the sender of the messages."""
        self.waiting: collections.deque[Delivery] = collections.deque()
        """The batches that have not entered the window as a whole."""
        self.ended = False

    def put(
        self, make: Callable[[], SendBatch], refusals: Refusals, on_end: Callable[[Delivery], object]
    ) -> None:
        """Send a batch after those that were put before.

        Args:
            make: returns its messages; called in the sender's thread. What it raises is the outcome.
            refusals: why messages to topics or partitions are refused; the places of all others are known to
                the sender.
            on_end: called in the sender's thread when each message is stored or has an error.

        Raises:
            TubeMQError: the sender or this lane has ended.
        """
        self._sender.put(Delivery(self, make, refusals, on_end))

    def end(self) -> None:
        """Give up what is not stored; doing it twice is harmless."""
        self._sender.end_lane(self)


class SharedSender:
    """Sends batches of many lanes in a thread of its own, while there are some."""

    kind = "shared sender"
    closes_at_exit = False

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        name: str = "",
        *,
        detailed: bool = False,
        most_messages: int = 1 << 14,
        most_bytes: int = 1 << 26,
    ) -> None:
        """Reach no server.

        Args:
            config: how to reach TubeMQ; bounds of the window of one lane, time-outs.
            pool: channels to the masters; the sender makes its own connections to brokers.
            name: how the sender calls itself in the log; by default its client id.
            detailed: whether stored messages are told of with ids and times.
            most_messages: how many messages may be under way for all lanes together.
            most_bytes: how many bytes of them.
        """
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._woken = False
        self._thread: threading.Thread | None = None
        self._busy: dict[Lane, None] = {}
        """The lanes with batches that wait, in the order in which they take turns."""
        self._open: dict[Delivery, None] = {}
        """The deliveries that have a batch and have not ended; the thread's."""
        self._rested_at = 0.0
        """When there was something to do last; the thread's."""
        self._closing = False
        self.error: TubeMQError | None = None
        """Why it has ended by itself."""
        self._config = config
        self._most = most_messages, most_bytes
        self._width = 0
        self.places = Placing(config, pool, name, Sleep(self._wait), self.refuse_if_ended, detailed=detailed)
        """Knows topics and partitions; other threads may ask masters by it."""
        self._waker = Waker(self._on_wake)
        self._window = self.places.window
        self.places.pipelines.add_waker(self._waker)
        abandon_in_child(self)
        process_registry().enter(self)

    @property
    def client_id(self) -> str:
        """The name under which servers know this sender."""
        return self.places.client_id

    def lane(self, name: str) -> Lane:
        """Return a new lane, which takes nothing until it is used; errors call its sender by this name."""
        return Lane(self, name or self.places.log.sender)

    def refuse_if_ended(self) -> None:
        """Return while batches are accepted.

        Raises:
            TubeMQError: the error that has ended the sender, or that it was closed.
        """
        if self.error is not None:
            raise self.error
        if self._closing:
            raise self._closed()

    def put(self, delivery: Delivery) -> None:
        """Take a batch; see ``Lane.put``."""
        with self._lock:
            self.refuse_if_ended()
            if delivery.lane.ended:
                raise self._closed()
            self._wake()
            delivery.lane.waiting.append(delivery)
            self._busy[delivery.lane] = None

    def end_lane(self, lane: Lane) -> None:
        """Give up what a lane has put; see ``Lane.end``."""
        with self._lock:
            if lane.ended:
                return
            lane.ended = True
            if not self._closing and self.error is None and (self._thread is not None or lane.waiting):
                self._busy[lane] = None
                self._wake()

    def close(self) -> None:
        """End the thread and leave the master; what is not stored is abandoned.

        Doing it twice is harmless.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            first, self._closing = not self._closing, True
            thread = self._thread
            self._changed.notify_all()
            if thread is not None:
                self._wake()
        process_registry().leave(self)
        if thread is not None:
            thread.join()
        elif first and self.error is None:
            self._end(self._closed())

    def abandon(self) -> None:
        """Drop the connections without closing them: in a forked child they belong to the parent."""
        self._closing = True
        self._window.abandon(ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid()))

    def _wait(self, seconds: float) -> None:
        """Wait, in a thread that asks masters; not longer than until the end."""
        with self._lock:
            self._changed.wait_for(lambda: self._closing or self.error is not None, seconds)
        self.refuse_if_ended()

    def _closed(self) -> ProduceError:
        return ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self._window.unacknowledged)

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name=f"tubemq-send-{self.places.log.sender}", daemon=True
            )
            with or_exhausted():
                thread.start()
            self._thread = thread
        elif not self._woken:
            self._woken = True
            self._waker.wake()

    # What follows runs in the thread; ``_end`` also in the one that closes a sender at rest.

    def _on_wake(self) -> None:
        with self._lock:
            self._woken = False
            if self._closing:
                raise self._closed()

    def _run(self) -> None:
        try:
            self._rested_at = time.monotonic()
            self._window.resume()
            while not self._rests():
                if not self._advance_all():
                    self._window.wait(_IDLE_S if self._open else _REST_S)
        except TubeMQError as error:
            self._window.break_off(error)
            self._end(error)
        except BaseException as error:
            # Any error: each of the deliveries is waited for.
            logger.warning("%s ends with an error", self.places.log.sender, exc_info=True)
            self._window.break_off(error)
            self._end(self._window.error or self._closed())

    def _rests(self) -> bool:
        """Whether there was nothing to do for a while; the thread is gone then."""
        if self._open or self._busy:
            self._rested_at = time.monotonic()
            return False
        with self._lock:
            if self._closing:
                raise self._closed()
            if self._busy or time.monotonic() < self._rested_at + _REST_S:
                return False
            self._thread = None
            return True

    def _advance_all(self) -> bool:
        """Give each lane a turn; return whether messages have moved."""
        with self._lock:
            lanes = list(self._busy)
        if len(lanes) != self._width:
            self._width = len(lanes)
            self._widen(max(1, self._width))
        moved = False
        for lane in lanes:
            ended = lane.ended
            if ended:
                self._give_up(lane)
                moved = True
            elif lane.waiting:
                moved |= self._advance(lane.waiting[0])
            with self._lock:
                self._busy.pop(lane, None)
                # One that has ended in its turn has something to give up.
                if lane.waiting or lane.ended is not ended:
                    self._busy[lane] = None
        return moved

    def _widen(self, lanes: int) -> None:
        messages, size = self._most
        config = self._config
        self._window.widen(
            min(config.max_in_flight * lanes, messages), min(config.max_in_flight_bytes * lanes, size)
        )

    def _advance(self, delivery: Delivery) -> bool:
        """Hand messages of a batch to the window, as it has room for them; return whether some have moved."""
        outcome = delivery.outcome or self._begin(delivery)
        if outcome is None:
            delivery.lane.waiting.popleft()
            return True
        batch = outcome.batch
        while delivery.stops and delivery.stops[0] == delivery.row:
            delivery.stops.popleft()
            delivery.row += delivery.row < len(batch)
        before = delivery.row
        if delivery.stops:
            after = min(delivery.stops[0], before + self._window.room(batch.ends, before))
            accepted = self._route(delivery, outcome, after)
            batch.waited_s = time.monotonic() - delivery.put_at
            if accepted:
                self._window.submit(accepted)
        if delivery.row >= len(batch):
            delivery.lane.waiting.popleft()
        return delivery.row > before or not delivery.stops

    def _begin(self, delivery: Delivery) -> BatchOutcome | None:
        """Read a batch and refuse what cannot be sent; return None if it is no batch."""
        try:
            messages = delivery.make()
            batch, unwritable = outgoing_batch(messages, checksums=self._config.checksums)
        except Exception as error:  # noqa: BLE001 (it concerns this batch, and none of the others)
            delivery.broken = error
            self._tell(delivery)
            return None
        batch.sender = delivery.lane.name
        refused: dict[int, TubeMQError] = {
            row: refused_message(error, batch.describe(row, "")) for row, error in unwritable.items()
        }
        for code, topic in enumerate(messages.topics.values):
            if (refusal := delivery.refusals.get(topic)) is not None:
                rows = np.flatnonzero(messages.topics.codes == code).tolist()
                refused.update((row, refusal) for row in rows if row not in refused)
        delivery.stops.extend((*sorted(refused), len(batch)))
        outcome = BatchOutcome(batch, refused, lambda _: self._ended(delivery))
        delivery.outcome = batch.outcomes = outcome
        self._open[delivery] = None
        outcome.begin()
        return outcome

    def _route(self, delivery: Delivery, outcome: BatchOutcome, after: int) -> list[Run]:
        """Choose where messages go, up to the first that has to wait; end those that cannot be sent."""
        batch = outcome.batch
        accepted: list[Run] = []
        topic = self.places.destinations.topics.get(batch.topic(delivery.row))
        if (
            topic is not None
            and batch.takes_turns
            and batch.longest <= topic.max_message_bytes
            and topic.custom is None
        ):
            while delivery.row < after:
                destination, count = topic.choose_run(after - delivery.row)
                if destination.link.full:
                    break
                rows = range(delivery.row, delivery.row + count)
                accepted.append(Run(batch, rows, (destination,)))
                delivery.row += count
            return accepted
        first = delivery.row
        destinations: list[Destination] = []
        while delivery.row < after:
            try:
                destination = self._destination(delivery, batch, delivery.row)
            except Exception as error:  # noqa: BLE001 (it concerns this message, and none of the others)
                accepted += runs(batch, first, destinations) if destinations else []
                outcome.failed(delivery.row, unplaceable(error))
                delivery.row += 1
                destinations, first = [], delivery.row
                continue
            if destination.link.full:
                break
            destinations.append(destination)
            delivery.row += 1
        return accepted + (runs(batch, first, destinations) if destinations else [])

    def _destination(self, delivery: Delivery, batch: OutgoingBatch, row: int) -> Destination:
        """Return where a message goes.

        Raises:
            ProduceError: it is too long, or its partition does not exist.
        """
        topic = self.places.destinations.topics[batch.topic(row)]
        size = batch.size(row)
        if size > topic.max_message_bytes and (excess := topic.excess(batch.prefix(row), size)):
            raise topic.too_long(excess, batch.describe(row, delivery.lane.name))
        named = batch.partition(row)
        if named is None:
            return topic.choose(batch.key(row), b"" if topic.custom is None else batch.value(row))
        destination = self.places.destinations.named(topic, *named)
        if destination is None:
            raise delivery.refusals[TopicPartition(topic.name, *named)]
        return destination

    def _ended(self, delivery: Delivery) -> None:
        self._open.pop(delivery, None)
        self._tell(delivery)

    def _tell(self, delivery: Delivery) -> None:
        try:
            delivery.on_end(delivery)
        except BaseException:
            # The thread serves all other lanes, too.
            logger.warning("%r raised an error, which ends nothing", delivery.on_end, exc_info=True)

    def _give_up(self, lane: Lane) -> None:
        """End what has not entered the window, and have the window give up the rest."""
        error = self._closed()
        for delivery in [*lane.waiting, *(delivery for delivery in self._open if delivery.lane is lane)]:
            outcome = delivery.outcome
            if outcome is None:
                delivery.broken = error
                self._tell(delivery)
                continue
            batch, first = outcome.batch, delivery.row
            batch.give_up_at, delivery.row = -math.inf, len(batch)
            for row in range(first, len(batch)):
                if outcome.asked(row):
                    outcome.failed(row, error)
        with self._lock:
            lane.waiting.clear()
        self._window.give_up_soon()

    def _end(self, error: TubeMQError) -> None:
        """Tell of all deliveries that are left, and release everything."""
        with self._lock:
            if not self._closing:
                self.error = error
            waiting = [delivery for lane in self._busy for delivery in lane.waiting]
            self._busy.clear()
            self._changed.notify_all()
        for delivery in list(self._open):
            if delivery.outcome is not None:
                delivery.outcome.abandon(
                    ProduceError(
                        "TUBEMQ_MESSAGE_ABANDONED",
                        message=f"a message of {delivery.lane.name}",
                        cause=error,
                        fate=_SENT,
                        unanswered=1,
                    )
                )
        for delivery in waiting:
            if delivery.outcome is None:
                delivery.broken = error
                self._tell(delivery)
        try:
            self._window.close()
            self.places.leave(self._window.room_wait_s)
        finally:
            with self._lock:
                self._thread = None
                self._waker.close()
