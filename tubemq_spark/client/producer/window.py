"""The messages of one producer that are under way: sent ahead of their answers, retried, counted.

**States of a message.** Between ``submit`` and its acknowledgement a message is in exactly one place:

- *queued* in ``BrokerLink.queue``: waits for its broker's connection to take it;
- *in flight* in ``BrokerLink.connection``: handed to a connection, and while its run is in ``writing`` as
  well, not all of its bytes have left; only then its answer is due after ``rpc_timeout_ms``;
- *waiting* in ``Resending``: an attempt came to nothing, and the next one comes after a pause; or its
  partition is not listed;
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
- Who submits passes over brokers whose shares are ``full``, or waits for them (``make_room_at``).
- A queue is in the order of acceptance but for what was sent again, which stands before younger messages.
- With ``retry_ambiguous`` off, a message that may have been stored is given to no connection again. Every
  place where an attempt ends without a clear answer tells ``Resending``, which raises then.
- No message is under way for longer than ``delivery_timeout_ms``, for any reason: what comes to
  nothing earlier is tried again, and then it fails for good. Where a callback takes that (``Outcomes``),
  the message ends alone. Otherwise its error is the window's: ``error`` is set once; from then on nothing is
  sent and nothing changes.
- ``_now`` is the time spent inside the window's methods. All due times are of this clock. A pause of the
  caller between calls counts for at most ``_IDLE_COUNTS_S``, so that it does not find its messages timed out.

**Who changes what.** Everything happens in the thread that calls the window: no thread of its own, no lock.
Only the window moves messages between the places. Only ``Destinations`` changes ``run.destinations`` and
``destination.link``, inside ``follow`` and ``redirect``; it may change them for a message in any place, which
stays where it is until its attempt ends. Callbacks of users run inside ``_receive`` and wherever messages are
given up, when the message is in no place any more; they never call the window.
"""

import contextlib
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.ordering import PartitionLines
from tubemq_spark.client.producer.resending import IS_BROKER_THERE, LOOK_AT_BROKER, Reaction, Resending
from tubemq_spark.client.producer.runs import BrokerLink, Run, release_kept
from tubemq_spark.client.producer.statistics import BrokerCounts
from tubemq_spark.errors import ProduceError, RemoteProtocolError, TlsError, TubeMQConnectionError
from tubemq_spark.net.pipeline import Pipeline, Pipelines
from tubemq_spark.protocol.send_connection import Stored

_MESSAGES_PER_RUN: Final = 128
"""Messages accepted together: what brokers do in between changes which broker the next ones go to."""
_WRITE_BYTES: Final = 1 << 18
"""A piece of data for one connection is encoded up to this length, then written."""
_REFILL_AT: Final = 4
"""A full window is waited on until a quarter of it is free: answers are then read in batches."""
_IDLE_COUNTS_S: Final = 1.0
_FOLLOW_EVERY_S: Final = 0.1
"""Heartbeats bring routes every 13 s; looking at each topic each time would cost more than sending."""
_GIVE_UP_EVERY_S: Final = 0.5
"""How often all messages are looked through for those whose time is over."""
_LONGEST_WAIT_S: Final = 1.0


class SendWindow:
    """Bounded by messages and bytes over all brokers, and for one that does not answer by its share of bytes.

    It fails for good at the first error of its own.
    """

    def __init__(
        self,
        config: ClientConfig,
        destinations: Destinations,
        links: BrokerLinks,
        pipelines: Pipelines,
        log: SendLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open no connection; own ``pipelines``; ``clock`` is monotonic and counts seconds."""
        self._timeout_s = config.rpc_timeout_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._destinations = destinations
        self._clock = clock
        self._pipelines = pipelines
        self._links = links
        self._log = log
        self._owners: dict[Pipeline, BrokerLink] = {}
        self._retry_ambiguous = config.retry_ambiguous
        self._resending = Resending(destinations, links, log, retry_ambiguous=config.retry_ambiguous)
        self._lines = PartitionLines() if config.keep_order else None
        self._limit = self._max_messages
        self._messages = 0
        self._bytes = 0
        self._driven_at = clock()
        self._now = 0.0
        self._follow_at = 0.0
        self._give_up_at = 0.0
        self.room_wait_s = 0.0
        """How long messages waited because the window was full."""
        self.error: ProduceError | None = None
        """The first error; nothing is sent after it."""

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged."""
        return self._messages

    @property
    def retried(self) -> int:
        """Messages handed to a connection again, each time counted."""
        return sum([link.counts.retries for link in self._links.all])

    def room(self, ends: Sequence[int], first: int = 0) -> int:
        """Return how many messages may be submitted now; while the window is full, wait for answers first.

        Args:
            ends: the size of all payloads before each message, and of all together at the end.
            first: the first message that was not submitted yet.

        Returns:
            At least 1, and not more than are there.

        Raises:
            ProduceError: an earlier message could not be stored.
        """
        if self.error is not None:
            raise self.error
        self._pass_time(_IDLE_COUNTS_S)
        size = ends[first + 1] - ends[first]
        if self._moving >= self._limit or self._bytes + size > self._max_bytes:
            self._make_room(size)
        most_bytes = min(self._max_bytes - self._bytes, _WRITE_BYTES)
        fitting = bisect_right(ends, ends[first] + most_bytes, first + 1) - first - 1
        return max(1, min(fitting, self._limit - self._moving, _MESSAGES_PER_RUN))

    @property
    def full(self) -> frozenset[int]:
        """The ids of brokers whose shares are full: messages that can only go there should wait outside."""
        return self._links.full

    def make_room_at(self, link: BrokerLink) -> None:
        """Wait while a broker's share is full.

        Raises:
            ProduceError: an earlier message could not be stored.
        """
        began = self._now
        while link.full:
            self._drive(block=True)
        self.room_wait_s += self._now - began

    def submit(self, runs: Sequence[Run]) -> None:
        """Accept messages, as many as there was room for.

        Raises:
            ProduceError: one of these or an earlier message could not be stored.
        """
        self._drive(block=False, runs=runs)

    def flush(self) -> None:
        """Return when every accepted message is acknowledged.

        Raises:
            ProduceError: a message could not be stored.
        """
        if self.error is not None:
            raise self.error
        while self._messages > 0:
            self._drive(block=True)

    def wait(self, at_most_s: float) -> None:
        """Write, read and time out what is due; wait for the first of it, or for a waker of the pipelines.

        Raises:
            ProduceError: a message could not be stored.
        """
        if self.error is not None:
            raise self.error
        if self._messages:
            self._drive(block=True, at_most_s=at_most_s)
        else:
            self._look_after_connections(at_most_s)

    def work(self) -> None:
        """Write, read and time out what is due now, without waiting; for a caller that waits elsewhere.

        Raises:
            ProduceError: a message could not be stored.
        """
        if self.error is None and self._messages:
            self._drive(block=False)

    def widen(self, messages: int, size: int) -> None:
        """Hold so many messages and bytes from now on, instead of what the settings say."""
        if self._limit in (self._max_messages, messages) or self._limit > messages:
            self._limit = messages
        self._max_messages, self._max_bytes = messages, size

    def give_up_soon(self) -> None:
        """Look for messages that are to be given up when the window is driven next."""
        self._give_up_at = self._now

    def break_off(self, error: BaseException, unsubmitted: int = 0) -> None:
        """Fail for good, unless that is so already; ``unsubmitted`` messages did not even come here."""
        if self.error is None:
            unacknowledged = self._messages + unsubmitted
            self._break(
                ProduceError("TUBEMQ_PRODUCER_BROKEN", cause=repr(error), unacknowledged=unacknowledged)
            )

    def forget_counts(self) -> None:
        """Set all counts to zero; nothing is under way."""
        self.room_wait_s = 0.0
        for link in self._links.all:
            link.counts = BrokerCounts()

    def resume(self) -> None:
        """Begin again after a long pause without messages: connections that have ended are made again.

        Their brokers have not failed, and nothing was in flight.
        """
        self._pass_time(None)
        while self._look_after_connections(0.0):
            pass

    def abandon(self, error: ProduceError) -> None:
        """Drop every connection without closing it for another process that shares it; fail for good."""
        self.error = error
        self._pipelines.abandon()
        self._links.abandon()

    def close(self) -> None:
        """Close every connection; what is not acknowledged is forgotten."""
        self._pipelines.close()
        self._links.close()
        for link in self._links.all:
            link.detach()
        self._owners.clear()
        self._resending.clear()

    @property
    def _moving(self) -> int:
        """How many messages count among those that the window may hold."""
        return self._messages - self._links.aside

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

    def _make_room(self, size: int) -> None:
        """Wait until there is room for ``size`` bytes; a message longer than the window goes alone."""
        began = self._now
        while self._messages and (
            self._moving > self._limit - max(1, self._limit // _REFILL_AT)
            or self._bytes + size > self._max_bytes
        ):
            self._drive(block=True)
        self.room_wait_s += self._now - began

    def _look_after_connections(self, timeout_s: float) -> bool:
        """Read while nothing is under way; return whether there was something.

        A connection that ends now says nothing about its broker: both sides close those that are idle.
        """
        self._gather_answers()
        arrivals = self._pipelines.drive(timeout_s)
        self._pass_time(None)
        for pipeline, arrival in arrivals:
            if isinstance(arrival, TubeMQConnectionError):
                self._owners.pop(pipeline).detach()
            else:
                self._receive(pipeline, arrival)
        return bool(arrivals)

    def _accept(self, runs: Sequence[Run]) -> None:
        for run in runs:
            run.due_by = self._now + self._delivery_s - run.batch.waited_s
            self._messages += len(run.rows)
            self._bytes += run.size
            if self._lines is None or run.batch.is_free:
                self._start(run)
            else:
                self._stand_in_line(self._lines, run)

    def _drive(self, *, block: bool, at_most_s: float = _LONGEST_WAIT_S, runs: Sequence[Run] = ()) -> None:
        """Accept messages; write, read and time out what is due; with ``block`` wait until something is."""
        try:
            self._pass_time(_IDLE_COUNTS_S)
            self._accept(runs)
            if not self._retry_ambiguous:
                self._find_ended_connections()
            self._do_what_is_due()
            self._links.share_out(self._limit, self._max_bytes)
            for link in self._links.all:
                if link.queue:
                    self._write(link)
            look_at = self._gather_answers()
            arrivals = self._pipelines.drive(min(at_most_s, self._time_to_wait(look_at)) if block else 0.0)
            self._pass_time(None)
            for pipeline, arrival in arrivals:
                self._receive(pipeline, arrival)
            # After reading: an answer that waited while the caller paused is not late.
            for link in self._links.all:
                if link.connection:
                    self._time_out(link)
            self._links.look(self._now)
        except ProduceError as error:
            self._break(error)
            raise
        except BaseException as error:
            # Also an interrupt: which messages it caught between two places is unknown.
            self.break_off(error)
            raise

    def _break(self, error: ProduceError) -> None:
        self.error = error
        self.close()

    def _pass_time(self, at_most_s: float | None) -> None:
        now = self._clock()
        passed = now - self._driven_at
        self._driven_at = now
        self._now += passed if at_most_s is None else min(passed, at_most_s)

    def _find_ended_connections(self) -> None:
        """Read before writing: what is written to a connection that the broker has ended may be stored."""
        for pipeline, arrival in self._pipelines.drive(0.0):
            self._receive(pipeline, arrival)

    def _do_what_is_due(self) -> None:
        if self._now >= self._follow_at:
            self._destinations.follow()
            self._follow_at = self._now + _FOLLOW_EVERY_S
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

    def _gather_answers(self) -> float:
        """Collect each broker's answers in the kernel; return when to look for those that are there."""
        looks = [link.gather_answers(self._now) for link in self._links.all]
        return min([look for look in looks if look is not None], default=math.inf)

    def _time_to_wait(self, look_at: float) -> float:
        """Seconds until something is due by time alone."""
        due = [self._now + _LONGEST_WAIT_S, look_at]
        if self._resending.next_due is not None:
            due.append(self._resending.next_due)
        for link in self._links.all:
            if oldest := link.oldest:
                due.append(oldest.sent_at + self._timeout_s)
            if link.writing:
                due.append(link.moved_at + self._timeout_s)
            if not link.silent:
                due.append(link.silent_at)
            if link.queue and link.pipeline is None:
                due.append(link.reconnect_at)
        return max(0.0, min(due) - self._now)

    def _write(self, link: BrokerLink) -> None:
        if link.pipeline is None and link.reconnect_at > self._now:
            return
        if link.pipeline is None:
            try:
                pipeline = self._pipelines.connect(link.endpoint)
            except TubeMQConnectionError as error:
                self._lost(link, error)
                return
            link.attach(pipeline, self._now)
            self._owners[pipeline] = link
        while link.queue and link.pipeline is not None and link.pipeline.writable and link.takes_more:
            runs, data = self._encode(link)
            link.pipeline.write(data)
            if link.pipeline.unsent_bytes:
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

    def _receive(self, pipeline: Pipeline, arrival: bytes | TubeMQConnectionError) -> None:
        link = self._owners.get(pipeline)
        if link is None:
            return  # closed in the meantime, and its messages are on their way again
        if isinstance(arrival, TubeMQConnectionError):
            self._lost(link, arrival)
            return
        link.counts.received_bytes += len(arrival)
        try:
            stored, not_stored = link.connection.receive_data(arrival)
        except RemoteProtocolError as error:
            self._lost(link, pipeline.fail(f"its answer makes no sense ({error.parameters['what']})"))
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
        if stored:
            self._stored_again(link)

    def _acknowledge(self, link: BrokerLink, stored: Stored[Run]) -> None:
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
        """Report the final failure of a message to its own future or callback, if it has one.

        Raises:
            ProduceError: it has none, so its failure ends the sender.
        """
        try:
            yield
        except ProduceError as error:
            if not message.tell_failed(error):
                raise
            self._messages -= 1
            self._bytes -= message.size
            self._ended(message)

    def _stored_again(self, link: BrokerLink) -> None:
        """A broker has stored messages."""
        if link.troubles:
            self._links.recovered(link)
        self._log.back(link.name)
        if self._limit < self._max_messages:
            self._limit = min(self._max_messages, self._limit + 1 + self._limit // 16)

    def _slow_down(self) -> None:
        """Halve the window, once for all messages that overflowed together."""
        if self._moving <= self._limit:
            self._limit = max(1, self._moving // 2)

    def _slow_down_for(self, link: BrokerLink) -> None:
        """Halve the window because a broker did not answer, or was full, unless others go on without it."""
        if not ((link.stalled or link.refuses) and self._links.aside):
            self._slow_down()

    def _lost(self, link: BrokerLink, error: TubeMQConnectionError) -> None:
        """A connection failed, or brought nonsense: whether its broker stored what was in flight is unknown.

        Raises:
            TlsError: that is the cause, and another attempt would fail as well.
            ProduceError: a message may have been stored and must not be sent again, or its time is over.
        """
        if isinstance(error, TlsError):
            raise error
        cause = f"the connection to {link.endpoint} failed: {error.parameters['cause']}"
        if link.pipeline is not None:
            self._owners.pop(link.pipeline, None)
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
        pause_s = self._resending.pause_s(failures)
        link.reconnect_at = self._now + pause_s
        link.failures += 1
        for message in runs:  # all at one time, so that they keep their order
            with self._alone(message):
                self._resending.again(message, cause, IS_BROKER_THERE, self._now, pause_s)

    def _time_out(self, link: BrokerLink) -> None:
        """Give up waiting for answers that are overdue; a broker that says nothing at all is gone."""
        if link.writing and link.stood_still_s(self._now) >= self._timeout_s and link.pipeline is not None:
            self._slow_down_for(link)
            self._lost(link, link.pipeline.fail(f"it took no bytes for {self._timeout_s:g} s"))
            return
        cause = f"no answer within {self._timeout_s:g} s"
        connection = link.connection
        while (flight := connection.oldest) is not None and flight.run.sent_at + self._timeout_s <= self._now:
            self._slow_down_for(link)
            if link.last_heard <= flight.run.sent_at and link.pipeline is not None:
                self._lost(link, link.pipeline.fail(cause))
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
