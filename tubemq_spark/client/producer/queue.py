"""The queue of a producer's single messages, which its event loop takes together and hands to the pipeline.

**States of the queue.**

- *New*: no message was accepted; there is no task.
- *Running*: a task of the pipeline's loop hands messages over.
- *Ended*: it was closed, or an error concerned all messages (``error``). Nothing is accepted. What was left
  has been told that it was abandoned.
- *Inherited*: this process is a fork of the one that the queue belongs to. Nothing is accepted or told here.

**States of a message.** A message is *checked*, which asks no server; then *placed*: its topic, and its
partition if named, are looked up, which may have to ask a server. *Waiting* from ``put`` on; *taken* when it
stands as a row of a batch in ``_open``, where it waits for room in the pipeline, and then belongs to that;
*ended* when its outcome was told. That happens once, in the loop.

**Invariants.**

- Messages are numbered in the order of ``put``. ``_taken`` is the number of the last one that was taken;
  those that wait follow it. The keys of ``_open`` are the numbers of the batches' first messages, ascending.
- ``put`` lets no more wait than ``max_in_flight`` messages and ``max_in_flight_bytes``; as many again are
  under way. Messages that can only go to brokers in ``_full`` are not put, and callers wait. Callbacks may
  exceed that: they are never made to wait.
- The task never waits for a single broker: a message whose broker's share became full after ``put`` stands in
  a line of its own (``_lines``), and a task for each line waits. While there is a line, its brokers count as
  full, and messages that were put before stand in it, too: so a partition's order is kept.
- Messages leave when they are enough to be written together, when the oldest has waited for ``linger_ms``,
  or when ``flush`` waits for them. The task is woken for the first that waits, and when they are enough; one
  that hands messages over looks for more by itself.

**Who changes what.** ``_lock`` guards what waits, ``_open`` and ``_full``; it is held shortly. Threads that
wait for room wait for its condition, coroutines of the loop for ``changes``. All else is for the loop.
"""

import asyncio
import collections
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tubemq_spark.client.producer.futures import BatchOutcome, MessageFuture, follow
from tubemq_spark.client.producer.messages import (
    ENOUGH,
    ENOUGH_BYTES,
    MOST,
    MessageFields,
    MinuteClock,
    PendingMessage,
    checked_message,
    message_batch,
)
from tubemq_spark.client.producer.outgoing import OutgoingBatch, refused_message
from tubemq_spark.client.producer.pipeline import Pipeline, Place, RunUserCode
from tubemq_spark.client.registry import abandon_in_child
from tubemq_spark.client.tasks import Changes
from tubemq_spark.errors import OptionError, ProduceError, TubeMQError
from tubemq_spark.model import excerpt

logger = logging.getLogger(__name__)

_NOT_SENT: Final = "it was not sent, so send it again with a new producer"
_ABANDONED: Final = "TUBEMQ_MESSAGE_ABANDONED"


CallSoon = Callable[..., object]
"""Has a function called with some arguments in a pipeline's loop, and returns at once; for any thread."""


class SendQueue:
    """Takes single messages of any threads, or of the coroutines of the loop, to a pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        call_soon: CallSoon,
        run_user_code: RunUserCode,
        in_callback: Callable[[], bool],
    ) -> None:
        """Take over a pipeline; start no task. A caller that is ``in_callback`` never waits for room."""
        config = pipeline.config
        self.pipeline = pipeline
        pipeline.on_change = self._look
        self._call_soon = call_soon
        self._run_user_code = run_user_code
        self._in_callback = in_callback
        self._linger_s = config.linger_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._clock = MinuteClock(config.message_time_zone) if config.stamp_message_time else None
        self._process = os.getpid()
        self._begin_locks()
        self._waiting: collections.deque[PendingMessage] = collections.deque()
        self._waiting_bytes = 0
        self._taken = 0
        self._flush_to = 0
        self._open: dict[int, BatchOutcome] = {}
        self._full: frozenset[int] = frozenset()
        """The ids of brokers whose messages are not put now."""
        self._lines: dict[frozenset[int], collections.deque[tuple[OutgoingBatch, int, BatchOutcome]]] = {}
        """Rows of batches that wait for their brokers' shares, by the ids of the brokers."""
        self._has_begun = False
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Those of lines, and one that asks for a place."""
        self._asking: asyncio.Task[None] | None = None
        self._event = asyncio.Event()
        self._is_woken = False
        self.changes = Changes()
        """Noted when messages have left the queue or have ended, and when brokers are full or no more."""
        self.inherited = False
        """Whether this process is a fork of the one that the queue belongs to."""
        self._is_closing = False
        self._abandoned = 0
        self._close_task: asyncio.Task[None] | None = None
        self.error: TubeMQError | None = None
        """Why the queue has ended by itself."""
        self.room_wait_s = 0.0
        """How long callers waited because too many messages waited, in seconds, added up over them."""
        abandon_in_child(self)

    @property
    def name(self) -> str:
        """How errors and the log call the producer."""
        return self.pipeline.log.sender

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages have not ended, or were abandoned."""
        with self._lock:
            open_rows = sum([outcome.left for outcome in self._open.values()])
            return len(self._waiting) + open_rows + self._abandoned

    def refuse_if_ended(self) -> None:
        """Return while messages are accepted; otherwise raise why they are not."""
        if self.inherited:
            raise self._forked()
        if self.error is not None:
            raise self.error
        if self._is_closing:
            raise ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)

    # The way of a message into the queue.

    def check(self, topic: str, value: bytes | str, fields: MessageFields) -> PendingMessage:
        """Return a message if it can be sent, as far as that can be said without its topic.

        A time that is missing is added to ``fields``.
        """
        self.refuse_if_ended()
        if self._clock is not None and "message_time" not in fields:
            fields["message_time"] = self._clock.text()
        try:
            return checked_message(topic, value, **fields)
        except OptionError as error:
            raise refused_message(error, self._describe(value)) from error

    def complete(self, message: PendingMessage, place: Place, future: MessageFuture) -> None:
        """Add what must be known of a message before it is put."""
        topic, message.destination = place
        if message.size > topic.max_message_bytes and (excess := topic.excess(message.prefix, message.size)):
            raise topic.too_long(excess, self._describe(message.value))
        if topic.custom is not None and message.partition is None:
            message.destination = topic.choose(message.key, message.value)
        message.published, message.future, message.accepted_at = topic, future, time.monotonic()

    def put(self, message: PendingMessage, *, block: bool) -> bool:
        """Accept a message; wait while there is no room for it, or return False if not told to ``block``."""
        with self._lock:
            if self._has_no_room(message) and not self._is_ending() and not self._in_callback():
                if not block:
                    return False
                self._wait_for_room(message)
            self.refuse_if_ended()
            waiting = self._waiting
            waiting.append(message)
            self._waiting_bytes += message.size
            if len(waiting) in (1, ENOUGH) or self._waiting_bytes >= ENOUGH_BYTES:
                self._wake()
            return True

    def full_brokers(self, message: PendingMessage) -> frozenset[int]:
        """Return the ids of the brokers that a message has to wait for, whose shares are full; often none."""
        full = self._full
        return brokers if full and (brokers := message.brokers()) <= full else frozenset()

    def would_wait(self, message: PendingMessage) -> ProduceError:
        """Return why a message is refused for which there is no room, and whose sender does not wait."""
        full = self.full_brokers(message)
        whose = f", the share of {', '.join(f'broker {id_}' for id_ in sorted(full))} is full" if full else ""
        cause = f"{self.unacknowledged} messages are under way{whose}"
        return ProduceError("TUBEMQ_SEND_WOULD_WAIT", topic=message.topic, cause=cause)

    def refuse_and_ask(self, message: PendingMessage, cause: str) -> ProduceError:
        """Return why a message is refused whose sender does not wait, and begin to ask where such ones go.

        A producer asks one question at a time that way; for the others, the next refusal asks.
        """
        self._call_soon(self._begin_to_ask, message.topic, message.partition)
        return ProduceError("TUBEMQ_SEND_WOULD_WAIT", topic=message.topic, cause=cause)

    def _has_no_room(self, message: PendingMessage) -> bool:
        waiting = len(self._waiting)
        return (
            waiting >= self._max_messages
            or (waiting > 0 and self._waiting_bytes + message.size > self._max_bytes)
            or bool(self._full and self.full_brokers(message))
        )

    def _wait_for_room(self, message: PendingMessage) -> None:
        began = time.monotonic()
        while self._has_no_room(message) and not self._is_ending():
            self._room.wait()
        self.room_wait_s += time.monotonic() - began

    # Flushing.

    def start_flush(self) -> int:
        """Send all that was accepted at once; return what ``is_flushed`` asks for."""
        with self._lock:
            target = self._taken + len(self._waiting)
            if target > self._taken:
                self._flush_to = target
                self._wake()
            return target

    def is_flushed(self, target: int) -> bool:
        """Whether every message up to that of ``start_flush`` has ended; raise why some never will."""
        with self._lock:
            if self.inherited or self.error is not None or (self._is_closing and self._abandoned):
                self.refuse_if_ended()
            return next(iter(self._open), self._taken + 1) > target

    def flush_timeout(self, timeout: float | None) -> ProduceError:
        """Return the error for a flush that has taken too long."""
        return ProduceError("TUBEMQ_FLUSH_TIMEOUT", unacknowledged=self.unacknowledged, seconds=timeout)

    # The end.

    def refuse_more(self) -> bool:
        """Accept no message from now on, since the queue is about to close; return whether that is new."""
        with self._lock:
            first, self._is_closing = not self._is_closing, True
            self._room.notify_all()
            return first

    async def close(self) -> None:
        """End the tasks and close the pipeline; messages that have not ended are abandoned, and told that."""
        await asyncio.shield(self.begin_to_close())

    def begin_to_close(self) -> "asyncio.Task[None]":
        """Do the same, and return the task."""
        self.refuse_more()
        if self._close_task is None:
            self._close_task = asyncio.create_task(self._close())
        return self._close_task

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has ended."""
        return self._close_task is not None and self._close_task.done()

    def warn_of_failures(self, count: int) -> None:
        """Tell the log of failed messages that were not asked about."""
        if count:
            what = "%s closed with %d failed messages of which its user has not asked"
            logger.warning(what, self.name, count)

    async def _close(self) -> None:
        tasks = [task for task in (self._task, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        left = self.unacknowledged
        if left and self.error is None:
            logger.warning("%s closed with %d messages not acknowledged; some may be stored", self.name, left)
        try:
            await self.pipeline.close(self.room_wait_s)
        finally:
            self._look()
            await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Become inherited: tasks and connections belong to the parent, and a lock may be held forever."""
        self.inherited = True
        self._begin_locks()
        self._waiting.clear()
        self._open.clear()
        self.pipeline.abandon(self._forked())

    def _begin_locks(self) -> None:
        # Reentrant: the garbage collector may drop a producer in a thread that holds it.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        """Notified when fewer messages wait, and at the end."""

    def _is_ending(self) -> bool:
        return self._is_closing or self.error is not None

    def _forked(self) -> ProduceError:
        return ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid())

    def _describe(self, value: object) -> str:
        shown = f" ({excerpt(value)})" if isinstance(value, bytes) else ""
        return f"a message of {self.name}{shown}"

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._call_soon(self._set_event)

    # What follows runs in the loop.

    def _set_event(self) -> None:
        if not self._has_begun and not self._is_ending():
            self._has_begun = True
            self._task = asyncio.create_task(self._guarded(self._run()))
        self._event.set()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work; an error of it is that of all messages."""
        try:
            await work
        except TubeMQError as error:
            # As it is: a certificate that is not accepted says what to do.
            self.pipeline.break_off(error)
        except Exception as error:
            # Any error: a caller waits for each of the messages.
            logger.warning("%s ends with an error", self.name, exc_info=True)
            self.pipeline.break_off(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            messages, patience_s = self._take()
            if messages:
                await self._send(messages)
                continue
            timer = None if patience_s is None else loop.call_later(patience_s, self._event.set)
            await self._event.wait()
            if timer is not None:
                timer.cancel()

    def _take(self) -> tuple[list[PendingMessage], float | None]:
        """Take messages that wait, if it is time for them; otherwise return how long there is until then."""
        with self._lock:
            waiting = self._waiting
            if not waiting:
                self._sleep()
                return [], None
            enough = len(waiting) >= ENOUGH or self._waiting_bytes >= ENOUGH_BYTES
            if not enough and self._flush_to <= self._taken:
                patience_s = waiting[0].accepted_at + self._linger_s - time.monotonic()
                if patience_s > 0:
                    self._sleep()
                    return [], patience_s
            messages: list[PendingMessage] = []
            size = 0
            while waiting and len(messages) < MOST and size < ENOUGH_BYTES:
                messages.append(waiting.popleft())
                size += messages[-1].size
            self._waiting_bytes -= size
            first_row = self._taken + 1
            self._open[first_row] = self._outcome(messages, first_row)
            self._taken += len(messages)
            self._room.notify_all()
        self.changes.note()
        return messages, None

    def _sleep(self) -> None:
        """Note that the task sleeps: one that hands messages over looks for more by itself."""
        self._is_woken = False
        self._event.clear()

    def _outcome(self, messages: list[PendingMessage], first_row: int) -> BatchOutcome:
        outcome = BatchOutcome(len(messages), lambda outcome: self._forget(first_row, outcome))
        follow(outcome, [message.future for message in messages], self._run_user_code)
        return outcome

    def _forget(self, first_row: int, outcome: BatchOutcome) -> None:
        """Remove a batch whose messages have ended."""
        with self._lock:
            del self._open[first_row]
            if outcome.errors and self.pipeline.error is not None:
                self._abandoned += sum(error.condition == _ABANDONED for error in outcome.errors.values())
        self.changes.note()

    async def _send(self, messages: list[PendingMessage]) -> None:
        """Hand messages to the pipeline as it has room for them."""
        first_row = self._taken + 1 - len(messages)
        outcome = self._open[first_row]
        batch = message_batch(messages, first_row, checksums=self.pipeline.config.checksums)
        batch.outcomes = outcome
        row = 0
        while row < len(messages):
            stop = len(messages)
            if self._lines:
                stop = row + 1
                if (brokers := messages[row].brokers()) in self._lines:
                    self._lines[brokers].append((batch, row, outcome))
                    row = stop
                    continue
            row = await self.pipeline.accept(batch, row, stop, outcome.failed, wait_for_share=False)
            if row < stop:
                self._begin_line(messages[row].brokers()).append((batch, row, outcome))
                row += 1

    def _begin_line(
        self, brokers: frozenset[int]
    ) -> collections.deque[tuple[OutgoingBatch, int, BatchOutcome]]:
        if brokers not in self._lines:
            self._lines[brokers] = collections.deque()
            self._keep(self._empty(brokers))
            self._look()
        return self._lines[brokers]

    async def _empty(self, brokers: frozenset[int]) -> None:
        """Hand over the messages of a line when the share of a broker has room for them."""
        line = self._lines[brokers]
        while line:
            batch, row, outcome = line[0]
            await self.pipeline.accept(batch, row, row + 1, outcome.failed)
            line.popleft()
        del self._lines[brokers]
        self._look()

    def _keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_to_ask(self, topic: str, partition: tuple[int, int] | None) -> None:
        if not self._is_ending() and (self._asking is None or self._asking.done()):
            self._asking = self._keep(self._ask(topic, partition))

    async def _ask(self, topic: str, partition: tuple[int, int] | None) -> None:
        """Ask a server once; who sends next finds the answer."""
        try:
            await self.pipeline.place_once(topic, partition)
        except TubeMQError as error:
            logger.info("%s cannot publish to %s now: %s", self.name, topic, error)

    def _look(self) -> None:
        """Take over which brokers are full, and whether all is over."""
        error = self.pipeline.error
        with self._lock:
            self._full = self.pipeline.full.union(*self._lines)
            if error is not None and not self._is_closing and self.error is None:
                self.error = error
            self._room.notify_all()
        if self.error is not None or (self._is_closing and error is not None):
            self._abandon_all()
        self.changes.note()

    def _abandon_all(self) -> None:
        """Tell the messages that the pipeline does not have that they are abandoned."""
        for task in (self._task, *self._tasks):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        cause = self.error or "the producer was closed"

        def error_of(first_row: int, row: int) -> ProduceError:
            what = f"message {first_row + row} of {self.name}"
            return ProduceError(_ABANDONED, message=what, cause=cause, fate=_NOT_SENT, unanswered=0)

        with self._lock:
            messages, self._waiting = list(self._waiting), collections.deque()
            self._waiting_bytes = 0
            if messages:
                self._open[self._taken + 1] = self._outcome(messages, self._taken + 1)
                self._taken += len(messages)
        for first_row, outcome in list(self._open.items()):
            outcome.abandon(functools.partial(error_of, first_row))
