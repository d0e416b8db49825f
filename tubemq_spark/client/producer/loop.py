"""The thread of a producer, and the queue in front of it.

**States of the loop.**

- *New*: no message was accepted yet, and there is no thread.
- *Running*: the thread moves messages.
- *Ending*: ``close`` was called, or an error concerned all messages (``error``). Nothing is accepted, and the
  thread tells all messages that are left that they were abandoned.
- *Ended*: every message has been told of; the thread is gone or about to go.
- *Inherited*: this process is a fork of the one that the loop belongs to. Nothing is accepted or told here.

**States of a message.** *Waiting* in ``_waiting`` from ``put`` on; *under way* from when the thread takes it,
as a row of a batch in ``_open``, which the send window then holds; *ended* when its outcome was told. That
happens once, and the thread does it.

**Invariants.**

- Messages are numbered in the order of ``put``. ``_taken`` is the number of the last one that was taken;
  those that wait follow it. The keys of ``_open`` are the numbers of the batches' first messages, ascending.
- ``put`` lets no more wait than ``max_in_flight`` messages and ``max_in_flight_bytes``; as many again are
  under way. Messages that can only go to brokers in ``_full`` wait in ``put``, and the thread for none of
  them. Callbacks may exceed that: they are never made to wait, since only their thread makes room.
- Messages leave when they are enough to be written together, when the oldest has waited for ``linger_ms``,
  or when ``flush`` waits for them. The thread is woken for the first that waits, and when they are enough.
- ``_woken`` is true while a byte in the waker is unread. What the loop must see is changed under
  ``_lock``, and then it is woken; ``_on_wake`` looks, wherever the thread waits.

**Who changes what.** ``_lock`` guards all of the above. The thread alone drives the window, chooses
partitions and tells outcomes; it never does that under ``_lock``, so callbacks may call ``put``. Once it
runs, no other thread touches the window, the links and the pipelines.
"""

import atexit
import collections
import logging
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.forks import abandon_in_child
from tubemq_spark.client.producer.gathered import ENOUGH, ENOUGH_BYTES, MOST, OutgoingMessage, gathered_batch
from tubemq_spark.client.producer.outcomes import Outcomes, tell_outcome, unplaceable
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.net.waker import Waker, or_exhausted

logger = logging.getLogger(__name__)

_IDLE_S: Final = 3600.0
"""How long the thread sleeps when there is nothing to do; every event wakes it."""
_EXIT_S: Final = 5.0
"""How long the end of the process waits for a thread that was not closed."""
_SENT: Final = "it may be stored, so look for it in the topic before you send it again"
_NOT_SENT: Final = "it was not sent, so send it again with a new producer"


class Window(Protocol):
    """What holds the messages under way; ``SendWindow`` sends them to brokers."""

    @property
    def error(self) -> TubeMQError | None:
        """The first error of its own; nothing is sent after it."""

    @property
    def full(self) -> frozenset[int]:
        """The ids of brokers whose shares are full."""

    def room(self, ends: Sequence[int], first: int = 0) -> int:
        """Return how many messages may be submitted now, at least 1; wait while there is no room."""

    def submit(self, runs: Sequence[Run]) -> None:
        """Accept messages, as many as there was room for."""

    def wait(self, at_most_s: float) -> None:
        """Move messages; wait for something to do, or for a waker."""

    def break_off(self, error: BaseException) -> None:
        """Fail for good, unless that is so already."""

    def abandon(self, error: ProduceError) -> None:
        """Drop every connection without closing it, for another process that shares it; fail for good."""

    def close(self) -> None:
        """Close every connection; what is not acknowledged is forgotten."""


class SendLoop:
    """Moves messages in a thread of its own, which ``put`` starts and ``close`` ends."""

    def __init__(self, config: ClientConfig) -> None:
        """Create a loop without a thread; call ``own`` first."""
        self._linger_s = config.linger_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._checksums = config.checksums
        self._process = os.getpid()
        self._begin_locks()
        self._thread: threading.Thread | None = None
        self._waiting: collections.deque[OutgoingMessage] = collections.deque()
        self._waiting_bytes = 0
        self._full: frozenset[int] = frozenset()
        """The ids of brokers whose shares of the send window are full."""
        self._taken = 0
        self._flush_to = 0
        self._open: dict[int, Outcomes] = {}
        self._woken = False
        self.inherited = False
        """Whether this process is a fork of the one that the loop belongs to."""
        self._closing = False
        self._ended = False
        self._abandoned = 0
        self._gives_up = False
        """Whether messages are being abandoned: one after the other, each as if it had ended well."""
        self.error: TubeMQError | None = None
        """Why the loop has ended by itself."""
        self.room_wait_s = 0.0
        """How long senders waited because too many messages waited, in seconds, added up over them."""
        self.on_change: Callable[[], object] = _nothing
        """Called whenever a thread that waits here would look again; ``_lock`` is held, so it must only note
        that. For senders that are not threads: see ``put`` and ``is_flushed``."""

    def own(
        self,
        name: str,
        window: Window,
        add_waker: Callable[[Waker], object],
        on_end: Callable[[float], object],
    ) -> None:
        """Take what the thread drives, before the first message.

        Args:
            name: the sender, for errors and for the thread's name.
            window: what holds the messages under way.
            add_waker: ends the waits of the window when a waker is woken, in any thread.
            on_end: called once, with ``room_wait_s``, when all messages have ended: by the thread; by
                ``close`` if there is none.

        Raises:
            TubeMQConnectionError: there is no descriptor left.
        """
        self.name = name
        self._waker = Waker(self._on_wake)
        self._window = window
        self._on_end = on_end
        add_waker(self._waker)
        _loops.add(self)
        abandon_in_child(self)

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages have not ended, or were abandoned."""
        with self._lock:
            return (
                len(self._waiting) + sum(outcomes.left for outcomes in self._open.values()) + self._abandoned
            )

    def refuse_if_ended(self) -> None:
        """Return while messages are accepted.

        Raises:
            TubeMQError: they no longer are; the error that ended the producer.
            ProduceError: this is another process.
        """
        if self.inherited:
            raise self._forked()
        if self.error is not None:
            raise self.error
        if self._closing:
            raise self._closed()

    def put(self, message: OutgoingMessage, *, block: bool) -> bool:
        """Accept a message; wait while there is no room for it, or return False if not told to ``block``.

        ``on_change`` tells when there may be room again.

        Raises:
            ProduceError: as ``refuse_if_ended``.
        """
        with self._lock:
            if self._has_no_room(message) and not self.in_thread() and not self._is_ending():
                if not block:
                    return False
                self._wait_for_room(message)
            self._append(message)
            return True

    def full_brokers(self, message: OutgoingMessage) -> frozenset[int]:
        """Return the ids of the brokers that a message has to wait for, whose shares are full; often none."""
        full = self._full
        return brokers if full and (brokers := message.brokers()) <= full else frozenset()

    def add_room_wait(self, seconds: float) -> None:
        """Count the time that a sender has waited before ``put`` accepted its message."""
        with self._lock:
            self.room_wait_s += seconds

    def _wait_for_room(self, message: OutgoingMessage) -> None:
        began = time.monotonic()
        while self._has_no_room(message) and not self._is_ending():
            self._room.wait()
        self.room_wait_s += time.monotonic() - began

    def _append(self, message: OutgoingMessage) -> None:
        self.refuse_if_ended()
        if self._thread is None:
            self._start()
        self._waiting.append(message)
        self._waiting_bytes += message.size
        if len(self._waiting) in (1, ENOUGH) or self._waiting_bytes >= ENOUGH_BYTES:
            self._wake()

    def flush(self, timeout: float | None = None) -> None:
        """Return when every message that was accepted before has ended, and its callback has returned.

        Raises:
            ProduceError: as ``refuse_if_ended``, but not after ``close`` when all messages had ended by then;
                messages have not ended after ``timeout`` seconds; or a callback calls this.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self.in_thread():
                raise ProduceError("TUBEMQ_PRODUCER_IN_CALLBACK", method="flush")
            target = self.start_flush()
            while not self.is_flushed(target):
                remaining = until - time.monotonic()
                if remaining <= 0:
                    raise self.flush_timeout(timeout)
                self._settled.wait(None if remaining == math.inf else remaining)

    def flush_timeout(self, timeout: float | None) -> ProduceError:
        """Return the error for a flush that has taken too long."""
        return ProduceError("TUBEMQ_FLUSH_TIMEOUT", unacknowledged=self.unacknowledged, seconds=timeout)

    def start_flush(self) -> int:
        """Send everything that was accepted at once; return what ``is_flushed`` asks for."""
        with self._lock:
            target = self._taken + len(self._waiting)
            if self._oldest() <= target:
                self._flush_to = max(self._flush_to, target)
                self._wake()
            return target

    def is_flushed(self, target: int) -> bool:
        """Whether every message up to that of ``start_flush`` has ended; ``on_change`` tells of changes.

        Raises:
            ProduceError: as ``flush``.
        """
        with self._lock:
            if (self._oldest() <= target or self._gives_up) and not self._ended:
                return False
            if not self._closing or self._abandoned:
                self.refuse_if_ended()
            return True

    def wait(self, seconds: float) -> None:
        """Wait, in a thread that asks masters; not longer than until the end.

        Raises:
            ProduceError: as ``refuse_if_ended``.
        """
        with self._lock:
            self._room.wait_for(self._is_ending, seconds)
            self.refuse_if_ended()

    def close(self, join_s: float | None = None) -> None:
        """End the thread; messages that have not ended are told that they were abandoned.

        Doing it twice is harmless, and so is doing it in a callback, which ends the thread afterwards.

        Args:
            join_s: how long to wait for the thread; None: as long as it takes.
        """
        if self.inherited:
            return
        with self._lock:
            first, self._closing = not self._closing, True
            thread, unacknowledged = self._thread, self.unacknowledged
            self._room.notify_all()
            self.on_change()
            self._wake()
        if first and unacknowledged and self.error is None:
            logger.warning(
                "%s closed with %d messages not acknowledged; some may be stored", self.name, unacknowledged
            )
        if thread is not None and not self.in_thread():
            thread.join(join_s)
        elif thread is None and first:
            self._end(self._closed())

    def drop(self) -> None:
        """Close what its user forgot to close, without waiting: the garbage collector calls this anywhere."""
        if not self._closing and not self.inherited:
            self.close(join_s=0.0)
            warnings.warn(f"{self.name} was not closed", ResourceWarning, stacklevel=2)

    def abandon(self) -> None:
        """Become inherited: threads and connections belong to the parent, and a lock may be held forever."""
        self.inherited = True
        self._begin_locks()
        self._waiting.clear()
        self._open.clear()
        self._window.abandon(self._forked())
        self._waker.close()

    def _begin_locks(self) -> None:
        # Reentrant: the garbage collector may run ``drop`` in a thread that holds it.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        """Notified when fewer messages wait, and at the end."""
        self._settled = threading.Condition(self._lock)
        """Notified when a batch has ended, and at the end."""

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"tubemq-send-{self.name}", daemon=True)
        with or_exhausted():
            thread.start()
        self._thread = thread

    def in_thread(self) -> bool:
        """Whether the caller is the loop's thread, in which callbacks run."""
        return threading.current_thread() is self._thread

    def _has_no_room(self, message: OutgoingMessage) -> bool:
        waiting = len(self._waiting)
        return (
            waiting >= self._max_messages
            or (waiting > 0 and self._waiting_bytes + message.size > self._max_bytes)
            or bool(self._full and self.full_brokers(message))
        )

    def _is_ending(self) -> bool:
        return self._closing or self.error is not None

    def _oldest(self) -> int:
        """Return the number of the oldest message that has not ended, or about to be its batch's."""
        return next(iter(self._open), self._taken + 1)

    def _forked(self) -> ProduceError:
        return ProduceError("TUBEMQ_PRODUCER_FORKED", owner=self._process, process=os.getpid())

    def _closed(self) -> ProduceError:
        return ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.unacknowledged)

    def _wake(self) -> None:
        if not self._woken and not self._ended:
            self._woken = True
            self._waker.wake()

    # What follows runs in the thread; ``_end`` also in the one that closes a loop without thread.

    def _on_wake(self) -> None:
        with self._lock:
            self._woken = False
            if self._closing:
                raise self._closed()

    def _run(self) -> None:
        try:
            while True:
                while (batch := self._take()) is not None:
                    self._send(*batch)
                    self._see_full()
                self._window.wait(self._patience_s())
                self._see_full()
        except TubeMQError as error:
            # As it is: a certificate that is not accepted says what to do.
            self._window.break_off(error)
            self._end(error)
        except BaseException as error:
            # Any error: a caller waits for each of the messages.
            logger.warning("%s ends with an error", self.name, exc_info=True)
            self._window.break_off(error)
            self._end(self._window.error)

    def _see_full(self) -> None:
        """Take over which brokers' shares are full; messages for others may go on."""
        if self._window.full != self._full:
            with self._lock:
                self._full = self._window.full
                self._room.notify_all()
                self.on_change()

    def _take(self) -> tuple[list[OutgoingMessage], Outcomes] | None:
        """Take messages that wait, if it is time for them."""
        with self._lock:
            if not self._waiting or self._patience_s() > 0:
                return None
            messages: list[OutgoingMessage] = []
            size = 0
            while self._waiting and len(messages) < MOST and size < ENOUGH_BYTES:
                messages.append(self._waiting.popleft())
                size += messages[-1].size
            self._waiting_bytes -= size
            outcomes = Outcomes([message.tell for message in messages], self._taken + 1, self._batch_ended)
            self._open[outcomes.first_row] = outcomes
            self._taken += len(messages)
            self._room.notify_all()
            self.on_change()
            return messages, outcomes

    def _patience_s(self) -> float:
        """Return for how long the messages that wait need not be sent."""
        with self._lock:
            if not self._waiting:
                return _IDLE_S
            if (
                len(self._waiting) >= ENOUGH
                or self._waiting_bytes >= ENOUGH_BYTES
                or self._flush_to > self._taken
            ):
                return 0.0
            return max(0.0, self._waiting[0].accepted_at + self._linger_s - time.monotonic())

    def _send(self, accepted: Sequence[OutgoingMessage], outcomes: Outcomes) -> None:
        """Hand messages to the window as it has room for them."""
        messages: list[OutgoingMessage] = []
        destinations: list[Destination] = []
        for message in accepted:
            try:
                destination = message.destination or message.published.choose(message.key, message.value)
            except Exception as error:  # noqa: BLE001 (it concerns this message, and not those of others)
                outcomes.refuse(len(messages), unplaceable(error))
            else:
                messages.append(message)
                destinations.append(destination)
        if not messages:
            return
        batch = gathered_batch(messages, destinations, outcomes.first_row, checksums=self._checksums)
        batch.outcomes = outcomes
        first = 0
        while first < len(batch):
            after = first + self._window.room(batch.ends, first)
            batch.waited_s = time.monotonic() - accepted[0].accepted_at
            self._window.submit(runs(batch, first, destinations[first:after]))
            first = after

    def _batch_ended(self, outcomes: Outcomes) -> None:
        with self._lock:
            del self._open[outcomes.first_row]
            self._settled.notify_all()
            self.on_change()

    def _end(self, error: TubeMQError | None) -> None:
        """Tell of all messages that are left, and release everything."""
        if self.inherited:
            return
        with self._lock:
            if not self._closing:
                self.error = error
            unacknowledged = self.unacknowledged
            self._gives_up = unacknowledged > 0
            waiting, self._waiting = self._waiting, collections.deque()
            under_way = list(self._open.values())
            self._room.notify_all()
            self.on_change()
        try:
            self._tell_abandoned(under_way, waiting)
            self._window.close()
            self._on_end(self.room_wait_s)
        finally:
            with self._lock:
                self._abandoned = unacknowledged
                self._ended = True
                self._waker.close()
                self._settled.notify_all()
                self.on_change()

    def _tell_abandoned(self, under_way: Iterable[Outcomes], waiting: Iterable[OutgoingMessage]) -> None:
        for outcomes in under_way:
            outcomes.abandon(lambda number: self._abandoned_error(number, _SENT))
        for number, message in enumerate(waiting, self._taken + 1):
            if message.tell is not None:
                tell_outcome(message.tell, None, self._abandoned_error(number, _NOT_SENT))

    def _abandoned_error(self, number: int, fate: str) -> ProduceError:
        return ProduceError(
            "TUBEMQ_MESSAGE_ABANDONED",
            message=f"message {number} of {self.name}",
            cause=self.error or "the producer was closed",
            fate=fate,
            unanswered=int(fate is _SENT),
        )


def _nothing() -> None:
    pass


_loops: "weakref.WeakSet[SendLoop]" = weakref.WeakSet()


def _at_exit() -> None:
    for loop in list(_loops):
        loop.close(_EXIT_S)


atexit.register(_at_exit)
