"""The messages of one producer that are under way: sent ahead of their answers, retried, counted.

The window is moved by events of one loop: messages that are accepted, what its streams bring, and a timer,
which is set to the moment at which something is due next. With each event all is done that is due.

**States of a message.** Between ``submit`` and its acknowledgement a message is in exactly one place:

- *queued* in ``BrokerLink.queue``: waits for its broker's connection to take it;
- *in flight* in ``BrokerLink.connection``: handed to a stream, and while its run is in ``writing`` as
  well, not all of its bytes have left; only then its answer is due after ``rpc_timeout_ms``;
- *waiting* in ``Resending``: an attempt came to nothing, and the next one comes after a pause; or its
  partition is not listed, or the user's partitioner is asked;
- *in line* in ``PartitionLines``, only with ``keep_order``: an older message of its partition has not ended.

``submit`` queues, or lets wait what is for a partition that is not listed; ``_encode`` puts in flight; an
answer ends it or, like a lost connection, nonsense or a time-out, makes it wait; ``Resending.take_due`` gives
it back to be queued again, perhaps for another broker, or makes it wait on while its topic has no partition
for it. Messages are queued and put in flight by runs; one that waits is a run of its own.

**Invariants.**

- ``_messages`` and ``_bytes`` count the messages in all places. ``submit`` is given no more than
  ``room`` allowed, so neither grows above its limit, except that a message longer than the window goes alone,
  and that messages *aside* (``BrokerLinks``) do not count to the limit of messages: their brokers are not
  expected to answer now, and others go on.
- A broker that is stalled has no more in flight than when it was last heard of; after a failure, one run.
- Who submits passes over brokers whose shares are ``full``, or waits for them (``other_shares``).
- A queue is in the order of acceptance but for what was sent again, which stands before younger messages.
- With ``retry_ambiguous`` off, a message that may have been stored is given to no connection again. Every
  place where an attempt ends without a clear answer tells ``Resending``, which raises then.
- No message is under way for longer than ``delivery_timeout_ms``, for any reason: what comes to
  nothing earlier is tried again, and then it fails for good. Where its batch has ``outcomes``,
  the message ends alone. Otherwise its error is the window's: ``error`` is set once; from then on nothing is
  sent and nothing changes.
- ``_now`` is the window's time, of which all due times are. A pause of the whole process counts for at most
  ``_PAUSE_COUNTS_S``, so that it does not find its messages timed out.
- When the window fails, or is closed, each message that it has is told to be abandoned.

**Who changes what.** Everything happens in the thread of the loop. Only the window moves messages between the
places. Only ``Destinations`` changes ``run.destinations`` and ``destination.link``, inside ``follow`` and
``redirect``, and ``Resending.chosen``; it may change them for a message in any place, which stays where it is
until its attempt ends. A batch's outcomes are told when the message is in no place any more; they never call
the window.
"""

import asyncio
import contextlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.links import BrokerLink, BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.partitioner import RunUserCode
from tubemq_spark.client.producer.resending import IS_BROKER_THERE, LOOK_AT_BROKER, Reaction, Resending
from tubemq_spark.client.producer.routing import Destinations
from tubemq_spark.client.producer.runs import Destination, PartitionLines, Run, release_kept
from tubemq_spark.client.producer.statistics import BrokerCounts
from tubemq_spark.errors import (
    ProduceError,
    RemoteProtocolError,
    TlsError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.net.send_stream import SendStream, SendStreams
from tubemq_spark.protocol.send_connection import StoredMessages

_MESSAGES_PER_RUN: Final = 128
"""Messages accepted together: what brokers do in between changes which broker the next ones go to."""
_WRITE_BYTES: Final = 1 << 18
"""A piece of data for one stream is encoded up to this length, then written."""
_REFILL_AT: Final = 4
"""A full window is waited on until a quarter of it is free: answers are then read in batches."""
_PAUSE_COUNTS_S: Final = 1.0
_FOLLOW_EVERY_S: Final = 0.1
"""Heartbeats bring routes every 13 s; looking at each topic each time would cost more than sending."""
_GIVE_UP_EVERY_S: Final = 0.5
"""How often all messages are looked through for those whose time is over."""
_ROUNDING_S: Final = 1e-6
"""The timer is set so much later: the window's time is a sum, and may be a little less than the loop's."""


class SendWindow:
    """Bounded by messages and bytes over all brokers, and for one that does not answer by its share of bytes.

    It fails for good at the first error of its own.
    """

    def __init__(
        self,
        config: ClientConfig,
        destinations: Destinations,
        links: BrokerLinks,
        streams: SendStreams,
        log: SendLog,
        run_user_code: RunUserCode,
    ) -> None:
        """Open no stream; own ``streams``. May be called in any thread."""
        self._timeout_s = config.rpc_timeout_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._destinations = destinations
        self._streams = streams
        self._links = links
        links.on_answer = self._move
        self._log = log
        self._owners: dict[SendStream, BrokerLink] = {}
        self._retry_ambiguous = config.retry_ambiguous
        self._resending = Resending(
            destinations, links, log, self._ask_user, retry_ambiguous=config.retry_ambiguous
        )
        self._run_user_code = run_user_code
        self._lines = PartitionLines() if config.keep_order else None
        self._limit = self._max_messages
        self._messages = 0
        self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved_at = 0.0
        self._now = 0.0
        self._follow_at = 0.0
        self._give_up_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._moves_soon = False
        self._writes_soon = False
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        """What callers wait for, looked at after each event."""
        self._full: frozenset[int] = frozenset()
        self.on_change: Callable[[], object] = lambda: None
        """Called when ``full`` or ``error`` has changed."""
        self.room_wait_s = 0.0
        """How long messages waited because the window was full."""
        self.error: TubeMQError | None = None
        """The first error; nothing is sent after it."""

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged."""
        return self._messages

    @property
    def retried(self) -> int:
        """Messages handed to a stream again, each time counted."""
        return sum([link.counts.retries for link in self._links.all])

    @property
    def full(self) -> frozenset[int]:
        """The ids of brokers whose shares are full: messages that can only go there should wait outside."""
        return self._links.full

    async def room(self, ends: Sequence[int], first: int = 0) -> int:
        """Return how many messages may be submitted now; while the window is full, wait for answers first."""
        if self.error is not None:
            raise self.error
        self._pass_time()
        self._follow()
        size = ends[first + 1] - ends[first]
        if self._moving >= self._limit or self._bytes + size > self._max_bytes:
            await self._wait_for_room(size)
        most_bytes = min(self._max_bytes - self._bytes, _WRITE_BYTES)
        fitting = bisect_right(ends, ends[first] + most_bytes, first + 1) - first - 1
        return max(1, min(fitting, self._limit - self._moving, _MESSAGES_PER_RUN))

    async def other_shares(self) -> None:
        """Wait until the set of brokers whose share is full changes."""
        full = self._links.full
        await self._count_wait(lambda: self._links.full != full)

    def submit(self, runs: Sequence[Run]) -> None:
        """Accept messages, as many as there was room for."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._moved_at = self._loop.time()
        if self.error is not None:
            return
        with self._breaking_off():
            self._pass_time()
            self._accept(runs)
            self._links.share_out(self._limit, self._max_bytes)
        if not self._moves_soon:
            # What is submitted without a pause leaves together.
            self._moves_soon = True
            self._loop.call_soon(self._on_submitted)

    async def flush(self) -> None:
        """Wait until every accepted message is acknowledged."""
        await self._until(lambda: self._messages == 0)

    def widen(self, messages: int, size: int) -> None:
        """Hold so many messages and bytes from now on, instead of what the settings say."""
        if self._limit in (self._max_messages, messages) or self._limit > messages:
            self._limit = messages
        self._max_messages, self._max_bytes = messages, size

    def give_up_soon(self) -> None:
        """Give up now the messages whose time is over."""
        self._give_up_at = self._now
        self._move()

    def break_off(self, error: BaseException, cause: object = None) -> None:
        """Fail for good, unless that is so already; messages under way are told that, or another cause."""
        if self.error is not None:
            return
        if not isinstance(error, TubeMQError):
            error = ProduceError("TUBEMQ_PRODUCER_BROKEN", cause=repr(error), unacknowledged=self._messages)
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        messages = self._resending.messages()
        if self._lines is not None:
            messages += self._lines.waiting(math.inf)
        self._resending.clear()
        for stream in list(self._owners):
            stream.close()
        self._owners.clear()
        for link in self._links.all:
            ambiguous, unsent = link.detach()
            messages += ambiguous + unsent
        for message in messages:
            message.batch.fail_abandoned(message.rows[0], self._log.sender, cause or error)
        self._look_at_waiting()

    def forget_counts(self) -> None:
        """Set all counts to zero; nothing is under way."""
        self.room_wait_s = 0.0
        for link in self._links.all:
            link.counts = BrokerCounts()

    def abandon(self, error: ProduceError) -> None:
        """Drop every stream without closing it for another process that shares it; fail for good."""
        self.error = error
        self._streams.abandon()
        self._timer = None

    async def close(self) -> None:
        """Wait until the streams are closed; call ``break_off`` before."""
        await self._links.close()
        await self._streams.close()

    # What the streams bring.

    def stream_received(self, stream: SendStream, data: bytes) -> None:
        """Take what a broker has sent."""
        if stream in self._owners:
            self._move(self._receive, stream, data)

    def stream_lost(self, stream: SendStream, error: TubeMQError) -> None:
        """Note that a stream has ended."""
        link = self._owners.pop(stream, None)
        if link is None:
            return
        if self._messages == 0:
            # It says nothing about its broker: both sides close those that are idle.
            link.detach()
        else:
            self._move(self._lost, link, error)

    def stream_writable(self, stream: SendStream) -> None:
        """Write more."""
        if stream in self._owners:
            self._move()

    # Waiting.

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, which each event looks at again."""
        while self.error is None:
            if holds():
                return
            looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((holds, looked))
            await looked
        raise self.error

    async def _count_wait(self, holds: Callable[[], bool]) -> None:
        began = self._now
        try:
            await self._until(holds)
        finally:
            self.room_wait_s += self._now - began

    async def _wait_for_room(self, size: int) -> None:
        """Wait until there is room for ``size`` bytes; a message longer than the window goes alone."""

        def is_there() -> bool:
            return self._messages == 0 or (
                self._moving <= self._limit - max(1, self._limit // _REFILL_AT)
                and self._bytes + size <= self._max_bytes
            )

        await self._count_wait(is_there)

    def _look_at_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for holds, looked in waiting:
                if looked.done():
                    continue  # its caller was cancelled
                if self.error is not None or holds():
                    looked.set_result(None)
                else:
                    self._waiting.append((holds, looked))
        if self._full != self._links.full or self.error is not None:
            self._full = self._links.full
            self.on_change()

    @property
    def _moving(self) -> int:
        """How many messages count among those that the window may hold."""
        return self._messages - self._links.aside

    # Moving messages.

    def _move(self, event: Callable[..., object] | None = None, *arguments: Any) -> None:  # noqa: ANN401
        """Take in an event; write and time out what is due; plan the next look."""
        if self.error is not None:
            return
        with self._breaking_off():
            self._pass_time()
            if event is not None:
                event(*arguments)
            self._do_what_is_due()
            self._links.share_out(self._limit, self._max_bytes)
            if self._retry_ambiguous:
                self._write_all()
            else:
                self._write_soon()
            for link in self._links.all:
                if link.connection or link.writing:  # its messages may have been given up
                    self._time_out(link)
            self._links.look(self._now)
            self._set_timer()
        if self.error is None:
            self._look_at_waiting()

    @contextlib.contextmanager
    def _breaking_off(self) -> Iterator[None]:
        """Fail for good at any error: which messages it caught between two places is unknown."""
        try:
            yield
        except BaseException as error:
            self.break_off(error)
            if not isinstance(error, Exception):
                raise

    def _pass_time(self) -> None:
        if self._loop is None:
            return
        now = self._loop.time()
        passed = now - self._moved_at
        self._moved_at = now
        self._now += min(passed, _PAUSE_COUNTS_S) if self._messages else passed

    def _accept(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.due_by = self._now + self._delivery_s - run.batch.waited_s
            self._messages += len(run.rows)
            self._bytes += run.size
            if self._lines is None or run.batch.is_free:
                self._start(run)
            else:
                self._stand_in_line(self._lines, run)

    def _stand_in_line(self, lines: PartitionLines, run: Run) -> None:
        """Start the messages whose partitions have none under way; the others wait for that."""
        for message in run.messages(range(len(run.rows))):
            if not message.is_bound or lines.begin(message):
                self._start(message)
            else:
                message.destination.link.keep(message)

    def _ended(self, run: Run) -> None:
        """Start the message that waited for the (only) one of a run."""
        if self._lines is not None and (following := self._lines.end(run)) is not None:
            release_kept(following)
            self._start(following)

    def _start(self, run: Run) -> None:
        if run.destination.listed:
            self._queue(run)
        else:
            self._hold(run)

    def _queue(self, run: Run) -> None:
        link = run.destination.link
        link.add(run)
        if link.troubles:
            self._links.crowd(link)

    def _hold(self, run: Run) -> None:
        """Keep messages back until the master lists their partition again, which may be so by now."""
        for message in run.messages(range(len(run.rows))):
            with self._alone(message):
                if self._resending.redirect(message, self._now):
                    self._queue(message)

    def _do_what_is_due(self) -> None:
        self._follow()
        if self._now >= self._give_up_at:
            self._give_up_late()
            self._give_up_at = self._now + _GIVE_UP_EVERY_S
        due: dict[BrokerLink, list[Run]] = {}
        for message in self._resending.take_due(self._now):
            with self._alone(message):
                if self._resending.redirect(message, self._now):
                    due.setdefault(message.destination.link, []).append(message)
        for link, messages in due.items():
            link.requeue(messages)

    def _follow(self) -> None:
        if self._now >= self._follow_at:
            self._destinations.follow()
            self._follow_at = self._now + _FOLLOW_EVERY_S

    def _ask_user(self, message: Run, choose: Callable[[], Destination]) -> None:
        loop = asyncio.get_running_loop()

        def ask() -> None:
            choice: Destination | ProduceError
            try:
                choice = choose()
            except ProduceError as error:
                choice = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._move, self._take_choice, message, choice)

        self._run_user_code(ask)

    def _take_choice(self, message: Run, choice: Destination | ProduceError) -> None:
        if isinstance(choice, Destination):
            if self._resending.chosen(message, choice):
                choice.link.requeue([message])
        elif self._resending.forget_question(message):
            with self._alone(message):
                raise choice

    def _set_timer(self) -> None:
        """Wake up when something is due by time alone; to wake up too early does no harm."""
        looks = [link.gather_answers(self._now) for link in self._links.all]
        if not self._messages or self._loop is None:
            return
        due = [self._give_up_at, *(look for look in looks if look is not None)]
        if self._resending.next_due is not None:
            due.append(self._resending.next_due)
        for link in self._links.all:
            if oldest := link.oldest:
                due.append(oldest.sent_at + self._timeout_s)
            if link.writing:
                due.append(link.moved_at + self._timeout_s)
            if not link.silent:
                due.append(link.silent_at)
            if link.queue and link.stream is None:
                due.append(link.reconnect_at)
        at = self._moved_at + max(0.0, min(due) - self._now) + _ROUNDING_S
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._on_time)

    def _on_submitted(self) -> None:
        self._moves_soon = False
        self._move()

    def _on_time(self) -> None:
        self._timer = None
        self._move()

    # Writing.

    def _write_all(self) -> None:
        for link in self._links.all:
            if link.queue:
                self._write(link)

    def _write_soon(self) -> None:
        """Read before writing: what is written to a stream that the broker has ended may be stored."""
        if self._writes_soon or self._loop is None or not any(link.queue for link in self._links.all):
            return
        self._writes_soon = True
        # What has come by now is handed over before the second of two calls.
        self._loop.call_soon(self._loop.call_soon, self._write_now)

    def _write_now(self) -> None:
        self._writes_soon = False
        if self.error is None:
            with self._breaking_off():
                self._write_all()
                self._set_timer()

    def _write(self, link: BrokerLink) -> None:
        if link.stream is None:
            if link.reconnect_at > self._now:
                return
            stream = self._streams.connect(link.endpoint, self)
            link.attach(stream, self._now)
            self._owners[stream] = link
        while link.queue and link.stream is not None and link.stream.writable and link.takes_more:
            runs, data = self._encode(link)
            link.stream.write(data)
            if link.stream.unsent_bytes:
                link.hold(runs, self._now)

    def _encode(self, link: BrokerLink) -> tuple[list[Run], bytes]:
        """Encode what is queued for a broker, up to a piece, and count it as in flight."""
        runs = []
        frames = []
        size = 0
        credentials = self._destinations.credentials
        if not link.connection:
            link.last_heard = self._now
        while link.queue and size < _WRITE_BYTES:
            run = link.queue.popleft()
            run.handed_at = run.sent_at = self._now
            run.attempts += 1
            run.credentials = credentials
            backs = run.batch.backs(credentials)
            frames.append(link.connection.send(run, run.batch.payloads, backs, run.rows, run.places()))
            runs.append(run)
            link.counts.sent(len(run.rows), len(frames[-1]), again=run.attempts > 1)
            size += len(frames[-1])
            if link.stalled:
                break
        return runs, b"".join(frames)

    # Answers.

    def _receive(self, stream: SendStream, data: bytes) -> None:
        link = self._owners[stream]
        link.counts.received_bytes += len(data)
        try:
            stored, not_stored = link.connection.receive_data(data)
        except RemoteProtocolError as error:
            self._lost(link, stream.fail(f"its answer makes no sense ({error.parameters['what']})"))
            return
        link.last_heard = self._now
        link.failures = 0
        link.refuses = not stored and (link.refuses or bool(not_stored))
        for outcome in stored:
            self._acknowledge(link, outcome)
        for run, position, answer in not_stored:
            link.counts.not_stored(answer)
            for message in run.messages((position,)):
                link.release(1, message.size)
                with self._alone(message):
                    if self._resending.refused(link, message, answer, self._now) is Reaction.SLOWER:
                        self._slow_down_for(link)
        if not stored:
            return
        if link.troubles:
            self._links.recovered(link)
        self._log.back(link.name)
        if self._limit < self._max_messages:
            self._limit = min(self._max_messages, self._limit + 1 + self._limit // 16)

    def _acknowledge(self, link: BrokerLink, stored: StoredMessages[Run]) -> None:
        run, positions, offsets, details = stored
        size = run.size_of(positions)
        link.release(len(positions), size)
        link.counts.acknowledged(len(positions), size, self._now - run.handed_at)
        run.acknowledge(positions, offsets)
        self._messages -= len(positions)
        self._bytes -= size
        run.tell_stored(positions, offsets, details)
        self._ended(run)

    @contextlib.contextmanager
    def _alone(self, message: Run) -> Iterator[None]:
        """Report the final failure of a message to its own future or callback; without one it is raised."""
        try:
            yield
        except ProduceError as error:
            if not message.tell_failed(error):
                raise
            self._messages -= 1
            self._bytes -= message.size
            self._ended(message)

    def _slow_down_for(self, link: BrokerLink) -> None:
        """Halve the window because a broker did not answer, or was full, unless others go on without it."""
        if (link.stalled or link.refuses) and self._links.aside:
            return
        if self._moving <= self._limit:  # once for all messages that overflowed together
            self._limit = max(1, self._moving // 2)

    def _lost(self, link: BrokerLink, error: TubeMQError) -> None:
        """A stream failed, or brought nonsense: whether its broker stored what was in flight is unknown."""
        if isinstance(error, TlsError) or not isinstance(error, TubeMQConnectionError):
            raise error
        cause = f"the connection to {link.endpoint} failed: {error.parameters['cause']}"
        if link.stream is not None:
            self._owners.pop(link.stream, None)
        ambiguous, unsent = link.detach()
        link.counts.unanswered += len(ambiguous)
        runs = []
        for message in ambiguous:
            with self._alone(message):
                self._resending.count_ambiguous(message, cause, IS_BROKER_THERE)
                runs.append(message)
        runs += unsent
        self._resending.avoid(link, cause, sum(not message.troubles.failures for message in runs), self._now)
        failures = max([link.failures, *(message.troubles.failures for message in runs)])
        pause_s = self._resending.retries.pause_s(failures)
        link.reconnect_at = self._now + pause_s
        link.failures += 1
        for message in runs:  # all at one time, so that they keep their order
            with self._alone(message):
                self._resending.again(message, cause, IS_BROKER_THERE, self._now, pause_s)

    def _time_out(self, link: BrokerLink) -> None:
        """Give up waiting for answers that are overdue; a broker that says nothing at all is gone."""
        if link.writing and link.stood_still_s(self._now) >= self._timeout_s and link.stream is not None:
            self._slow_down_for(link)
            self._lost(link, link.stream.fail(f"it took no bytes for {self._timeout_s:g} s"))
            return
        cause = f"no answer within {self._timeout_s:g} s"
        connection = link.connection
        while (flight := connection.oldest) is not None and flight.run.sent_at + self._timeout_s <= self._now:
            self._slow_down_for(link)
            if link.last_heard <= flight.run.sent_at and link.stream is not None:
                self._lost(link, link.stream.fail(cause))
                return
            for message in flight.run.messages(connection.give_up(flight)):
                link.release(1, message.size)
                link.counts.unanswered += 1
                self._log.event("no answer", f"{link}: {cause}")
                with self._alone(message):
                    self._resending.count_ambiguous(message, cause, LOOK_AT_BROKER)
                    self._resending.again(message, cause, LOOK_AT_BROKER, self._now)

    def _give_up_late(self) -> None:
        """Give up the messages whose time is over, wherever they are."""
        for message in self._lines.waiting(self._now) if self._lines is not None else ():
            release_kept(message)
            self._give_up(message, "the message before it in its partition has no outcome", IS_BROKER_THERE)
        for link in self._links.all:
            for message, ambiguous in link.take_late(self._now):
                cause, hint = message.troubles.what
                message.troubles.unanswered += ambiguous
                link.counts.unanswered += ambiguous
                cause = cause or f"{link} {'did not answer' if ambiguous else 'took no messages'} in time"
                self._give_up(message, cause, hint or IS_BROKER_THERE)
        for message in self._resending.take_late(self._now):
            self._give_up(message, *message.troubles.what)

    def _give_up(self, message: Run, cause: str, hint: str) -> None:
        with self._alone(message):
            raise self._resending.failed(message, cause, hint)
