"""The messages of one producer that are under way: sent ahead of their answers, retried, counted.

**States of a message.** Between ``submit`` and its acknowledgement a message is in exactly one place:

- *queued* in ``BrokerLink.queue``: waits for its broker's connection to take it;
- *in flight* in ``BrokerLink.in_flight``: handed to a connection, and while it is in ``writing`` as well,
  not all of its bytes have left; only then its answer is due after ``rpc_timeout_ms``;
- *waiting* in ``SendWindow._waiting``: an attempt came to nothing, and the next one comes after a pause.

``submit`` queues; ``_encode`` puts in flight; an answer ends it or, like a lost connection or a time-out,
makes it wait; ``_send_retries`` queues it again, perhaps for another broker, or makes it wait on while its
topic has no partition for it.

**Invariants.**

- ``_messages`` and ``_bytes`` count the messages in all three places. ``submit`` lets neither grow above
  its limit, except that a message longer than the window goes alone.
- A queue is in the order of acceptance but for what was sent again, which stands before younger messages.
- No message is under way for longer than ``delivery_timeout_ms``, whatever delays it: what comes to
  nothing earlier is tried again, and then the first error is final. ``error`` is set once; from then on
  nothing is sent and nothing changes.
- ``_now`` is the time spent inside ``submit`` and ``flush``. All due times are of this clock. A pause of
  the caller between calls counts for at most ``_IDLE_COUNTS_S``, so that he does not find his messages
  timed out.

**Who changes what.** Everything happens in the thread that calls ``submit`` and ``flush``: no thread of its
own, no lock. Only the window moves messages between the places. Only
the routing changes ``message.destination`` and ``destination.link``, inside ``follow`` and ``redirect``; it
may change them for a message in any place, which stays where it is until its attempt ends.
"""

import dataclasses
import heapq
import itertools
import random
import time
from collections.abc import Callable
from typing import Final, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.outgoing import BrokerLink, BrokerLinks, OutgoingMessage
from tubemq_spark.client.send_log import SendLog
from tubemq_spark.client.send_verdicts import Reaction, Verdict, judge
from tubemq_spark.errors import ProduceError, RemoteProtocolError, TubeMQConnectionError
from tubemq_spark.net.pipeline import Pipeline, Pipelines
from tubemq_spark.protocol.rpc import Failure
from tubemq_spark.protocol.send_answers import Refusal

_WRITE_AHEAD: Final = 32
"""Messages put together before they are written: a system call costs as much as encoding several."""
_WRITE_AHEAD_BYTES: Final = 8192
"""A message this long is worth a system call of its own."""
_LINGER_S: Final = 0.001
"""After a pause this long the next message is written at once."""
_WRITE_BYTES: Final = 1 << 18
"""A piece of data for one connection is encoded up to this length, then written."""
_REFILL_AT: Final = 4
"""A full window is waited on until a quarter of it is free: answers are then read in batches."""
_FIRST_BACKOFF_S: Final = 0.05
_LONGEST_BACKOFF_S: Final = 2.0
_IDLE_COUNTS_S: Final = 1.0
_FOLLOW_EVERY_S: Final = 0.1
"""Heartbeats bring a routing every 13 s; looking at each topic each time would cost more than sending."""
_GIVE_UP_EVERY_S: Final = 0.5
"""How often all messages are looked through for those whose time is over."""
_REFRESH_EVERY_S: Final = 1.0
_SERVER_ERRORS: Final = 6
"""A broker that fails inside may have stored the message: so many copies at most."""
_FIRST_SERVER_ERROR_BACKOFF_S: Final = 0.5
_LONGEST_SERVER_ERROR_BACKOFF_S: Final = 8.0
_LOOK_AT_BROKER: Final = "look at the broker's log"
_IS_BROKER_THERE: Final = "check that the broker runs and can be reached"
_IS_TOPIC_THERE: Final = "check that the topic is open for publishing and its brokers run"
_LONGEST_WAIT_S: Final = 1.0


class Routing(Protocol):
    """What the window asks of the producer, which knows the topics; nothing here waits."""

    @property
    def heartbeats(self) -> int:
        """How many heartbeats the master has answered; each brings routes and a token."""

    def encode(self, serial_no: int, message: OutgoingMessage) -> bytes:
        """Return the frame that sends a message to its destination."""

    def follow(self) -> None:
        """Take over changes of the routing that came by themselves."""

    def redirect(self, message: OutgoingMessage) -> str:
        """Choose the destination of a message that is to be sent again; it may stay.

        Returns:
            Nothing, or why there is no destination now.
        """

    def refresh(self) -> None:
        """Let the master be asked for the routing, in the background."""


@dataclasses.dataclass(order=True, slots=True)
class _Retry:
    due: float
    ticket: int
    message: OutgoingMessage = dataclasses.field(compare=False)


class SendWindow:
    """Bounded by messages and by bytes over all brokers; fails once and for all at the first error."""

    def __init__(
        self,
        config: ClientConfig,
        routing: Routing,
        links: BrokerLinks,
        pipelines: Pipelines,
        log: SendLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open no connection yet; own ``pipelines``; ``clock`` is monotonic and counts seconds."""
        self._timeout_s = config.rpc_timeout_ms / 1000
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._routing = routing
        self._clock = clock
        self._pipelines = pipelines
        self._links = links
        self._log = log
        self._owners: dict[Pipeline, BrokerLink] = {}
        self._waiting: list[_Retry] = []
        self._tickets = itertools.count()
        self._limit = self._max_messages
        self._share_messages = 1
        self._share_bytes = 1
        # Spreads many tasks that failed together; one number, so that pauses keep messages in order.
        self._spread = 1 - random.random() / 2  # noqa: S311 (keeps no secret)
        self._messages = 0
        self._bytes = 0
        self._unwritten = 0
        self._driven_at = clock()
        self._now = 0.0
        self._follow_at = 0.0
        self._refresh_at = 0.0
        self._give_up_at = 0.0
        self.retried = 0
        """Messages handed to a connection again, each time counted."""
        self.error: ProduceError | None = None
        """The first error; nothing is sent after it."""

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged."""
        return self._messages

    def submit(self, message: OutgoingMessage) -> None:
        """Accept a message; wait for answers first while the window is full.

        Raises:
            ProduceError: this or an earlier message could not be stored.
        """
        if self.error is not None:
            raise self.error
        paused = self._clock() - self._driven_at >= _LINGER_S
        if paused:
            self._pass_time(_IDLE_COUNTS_S)
        size = message.size
        if self._messages >= self._limit or self._bytes + size > self._max_bytes:
            self._make_room(size)
        message.give_up_at = self._now + self._delivery_s
        link = message.destination.link
        link.queue.append(message)
        link.held_bytes += size
        if link.troubles:
            self._links.crowd(link)
        self._messages += 1
        self._bytes += size
        self._unwritten += 1
        if paused or self._unwritten >= _WRITE_AHEAD or size >= _WRITE_AHEAD_BYTES:
            self._drive(block=False)

    def flush(self) -> None:
        """Return when every accepted message is acknowledged.

        Raises:
            ProduceError: a message could not be stored.
        """
        if self.error is not None:
            raise self.error
        while self._messages > 0:
            self._drive(block=True)

    def work(self) -> None:
        """Write, read and time out what is due now, without waiting; for a caller that waits elsewhere.

        Raises:
            ProduceError: a message could not be stored.
        """
        if self.error is None and self._messages:
            self._drive(block=False)

    def close(self) -> None:
        """Close every connection; what is not acknowledged is forgotten."""
        self._pipelines.close()
        for link in self._links.all:
            link.detach()
        self._owners.clear()
        self._waiting.clear()

    def _make_room(self, size: int) -> None:
        """Wait until there is room for ``size`` bytes; a message longer than the window goes alone."""
        while self._messages and (
            self._messages > self._limit - max(1, self._limit // _REFILL_AT)
            or self._bytes + size > self._max_bytes
        ):
            self._drive(block=True)

    def _drive(self, *, block: bool) -> None:
        """Write, read and time out whatever is due; with ``block`` wait until something is."""
        try:
            self._pass_time(_IDLE_COUNTS_S)
            self._unwritten = 0
            self._do_what_is_due()
            self._share_out()
            for link in self._links.all:
                if link.queue:
                    self._write(link)
            arrivals = self._pipelines.drive(self._time_to_wait() if block else 0.0)
            self._pass_time(None)
            for pipeline, arrival in arrivals:
                self._take(pipeline, arrival)
            # After reading: an answer that waited while the caller paused is not late.
            for link in self._links.all:
                if link.in_flight:
                    self._time_out(link)
                if link.crowded:
                    self._relieve(link)
        except ProduceError as error:
            self._break(error)
            raise
        except BaseException as error:
            # Also an interrupt: which messages it caught between two places nobody knows.
            self._break(
                ProduceError("TUBEMQ_PRODUCER_BROKEN", cause=repr(error), unacknowledged=self._messages)
            )
            raise

    def _break(self, error: ProduceError) -> None:
        self.error = error
        self.close()

    def _pass_time(self, at_most_s: float | None) -> None:
        now = self._clock()
        passed = now - self._driven_at
        self._driven_at = now
        self._now += passed if at_most_s is None else min(passed, at_most_s)

    def _do_what_is_due(self) -> None:
        if self._now >= self._follow_at:
            self._routing.follow()
            self._follow_at = self._now + _FOLLOW_EVERY_S
        if self._now >= self._give_up_at:
            self._give_up_late()
            self._give_up_at = self._now + _GIVE_UP_EVERY_S
        self._send_retries()

    def _share_out(self) -> None:
        """Let turns pass over brokers that hold their share of the window."""
        brokers = len(self._links.all)
        if brokers < 2:
            return
        self._share_messages = max(1, self._limit // brokers)
        self._share_bytes = max(1, self._max_bytes // brokers)
        for link in self._links.all:
            if link.held >= self._share_messages or link.held_bytes >= self._share_bytes:
                self._links.crowd(link)

    def _time_to_wait(self) -> float:
        """Seconds until something is due by time alone."""
        due = [self._waiting[0].due] if self._waiting else []
        for link in self._links.all:
            if link.in_flight:
                due.append(next(iter(link.in_flight.values())).sent_at + self._timeout_s)
            if link.writing:
                due.append(link.moved_at + self._timeout_s)
            if link.queue and link.pipeline is None:
                due.append(link.reconnect_at)
        return max(0.0, min([*due, self._now + _LONGEST_WAIT_S]) - self._now)

    def _write(self, link: BrokerLink) -> None:
        if link.pipeline is None and link.reconnect_at > self._now:
            return
        try:
            pipeline = link.pipeline or self._connect(link)
        except TubeMQConnectionError as error:
            self._lost(link, error)
            return
        while link.queue and pipeline.writable:
            messages, data = self._encode(link)
            pipeline.write(data)
            if pipeline.unsent_bytes:
                link.hold(messages, self._now)

    def _connect(self, link: BrokerLink) -> Pipeline:
        pipeline = link.attach(self._pipelines.connect(link.endpoint))
        self._owners[pipeline] = link
        return pipeline

    def _encode(self, link: BrokerLink) -> tuple[list[OutgoingMessage], bytes]:
        """Encode what is queued for a broker, up to a piece, and count it as in flight."""
        messages = []
        frames = []
        size = 0
        if not link.in_flight:
            link.last_heard = self._now
        while link.queue and size < _WRITE_BYTES:
            message = link.queue.popleft()
            message.sent_at = self._now
            message.attempts += 1
            if message.attempts > 1:
                self.retried += 1
            serial_no = link.next_serial_no()
            frame = self._routing.encode(serial_no, message)
            link.in_flight[serial_no] = message
            messages.append(message)
            frames.append(frame)
            size += len(frame)
        return messages, b"".join(frames)

    def _take(self, pipeline: Pipeline, arrival: bytes | TubeMQConnectionError) -> None:
        link = self._owners.get(pipeline)
        if link is None:
            return  # closed in the meantime, and its messages are on their way again
        if isinstance(arrival, TubeMQConnectionError):
            self._lost(link, arrival)
            return
        try:
            answers = link.reader.receive_data(arrival)
        except RemoteProtocolError as error:
            raise ProduceError(
                "TUBEMQ_SEND_ANSWER", endpoint=link.endpoint, what=error.parameters["what"]
            ) from error
        link.last_heard = self._now
        link.failures = 0
        stored = self._messages
        for serial_no, outcome in answers:
            message = link.in_flight.pop(serial_no, None)
            if message is None:
                continue  # the answer to a request that timed out
            link.held_bytes -= message.size
            if isinstance(outcome, int):
                message.destination.acknowledge(outcome, message)
                self._messages -= 1
                self._bytes -= message.size
            else:
                self._not_stored(link, message, outcome)
        if self._messages < stored:
            self._works(link)

    def _works(self, link: BrokerLink) -> None:
        """A broker has stored messages."""
        if link.troubles:
            self._links.works(link)
        self._log.back(link.name)
        if self._limit < self._max_messages:
            self._limit = min(self._max_messages, self._limit + 1 + self._limit // 16)

    def _relieve(self, link: BrokerLink) -> None:
        """Let turns come to a broker again that holds half of its share, or nothing after a failure."""
        if link.troubles:
            relieved = not link.held
        else:
            relieved = link.held * 2 <= self._share_messages and link.held_bytes * 2 <= self._share_bytes
        if relieved:
            self._links.uncrowd(link)

    def _not_stored(self, link: BrokerLink, message: OutgoingMessage, answer: Refusal | Failure) -> None:
        verdict = judge(answer, has_time=message.message_time is not None)
        if verdict.refresh:
            self._refresh()
        pause_s = None
        if verdict.reaction is Reaction.FINAL:
            raise self._failed(message, verdict.cause, verdict.hint)
        if verdict.reaction is Reaction.WITH_NEW_TOKEN:
            self._refuse_twice(message, verdict)
        elif verdict.reaction is Reaction.FEW_TIMES:
            pause_s = self._server_error(message, verdict)
        elif verdict.reaction is Reaction.SLOWER:
            self._slow_down()
        if verdict.reaction is Reaction.ELSEWHERE:
            self._avoid(link, verdict.cause, waiting=not message.troubles.failures)
        else:
            self._log.event(verdict.kind, f"{link}: {verdict.cause}")
        self._retry(message, verdict.cause, verdict.hint, pause_s)

    def _refuse_twice(self, message: OutgoingMessage, verdict: Verdict) -> None:
        """Raise when a broker refuses a newer token too; the second heartbeat from now surely brought one."""
        if message.troubles.heartbeats < 0:
            message.troubles.heartbeats = self._routing.heartbeats
        elif message.troubles.heartbeats + 2 <= self._routing.heartbeats:
            raise self._failed(message, verdict.cause, verdict.hint)

    def _server_error(self, message: OutgoingMessage, verdict: Verdict) -> float:
        """Return the pause before the next try; each is longer, and there are few, or raise."""
        troubles = message.troubles
        troubles.unanswered += 1
        troubles.server_errors += 1
        if troubles.server_errors >= _SERVER_ERRORS:
            raise self._failed(message, verdict.cause, verdict.hint)
        pause_s = _FIRST_SERVER_ERROR_BACKOFF_S * (1 << (troubles.server_errors - 1))
        return min(_LONGEST_SERVER_ERROR_BACKOFF_S, pause_s) * self._spread

    def _refresh(self) -> None:
        if self._now >= self._refresh_at:
            self._refresh_at = self._now + _REFRESH_EVERY_S
            self._routing.refresh()

    def _slow_down(self) -> None:
        """Halve the window, once for all messages that overflowed together."""
        if self._messages <= self._limit:
            self._limit = max(1, self._messages // 2)

    def _avoid(self, link: BrokerLink, cause: str, waiting: int) -> None:
        self._links.avoid(link, self._now)
        self._log.away(link.name, cause, waiting)

    def _lost(self, link: BrokerLink, error: TubeMQConnectionError) -> None:
        """A connection failed: whether its broker stored what was in flight nobody knows."""
        cause = f"the connection to {link.endpoint} failed: {error.parameters['cause']}"
        for message in link.in_flight.values():
            message.troubles.unanswered += 1
        if link.pipeline is not None:
            self._owners.pop(link.pipeline, None)
        left = link.detach()
        self._avoid(link, cause, waiting=sum(not message.troubles.failures for message in left))
        pause_s = self._backoff_s(max([link.failures, *(message.troubles.failures for message in left)]))
        link.reconnect_at = self._now + pause_s
        link.failures += 1
        for message in left:  # all at one time, so that they keep their order
            self._retry(message, cause, _IS_BROKER_THERE, pause_s)

    def _time_out(self, link: BrokerLink) -> None:
        """Give up waiting for answers that are overdue; a broker that says nothing at all is gone."""
        if link.writing and link.stood_still_s(self._now) >= self._timeout_s and link.pipeline is not None:
            self._slow_down()
            self._lost(link, link.pipeline.fail(f"it took no bytes for {self._timeout_s:g} s"))
            return
        cause = f"no answer within {self._timeout_s:g} s"
        for serial_no, message in list(itertools.takewhile(self._overdue, link.in_flight.items())):
            self._slow_down()
            if link.last_heard <= message.sent_at and link.pipeline is not None:
                self._lost(link, link.pipeline.fail(cause))
                return
            del link.in_flight[serial_no]
            link.held_bytes -= message.size
            message.troubles.unanswered += 1
            self._log.event("no answer", f"{link}: {cause}")
            self._retry(message, cause, _LOOK_AT_BROKER)

    def _overdue(self, item: tuple[int, OutgoingMessage]) -> bool:
        return item[1].sent_at + self._timeout_s <= self._now

    def _retry(self, message: OutgoingMessage, cause: str, hint: str, pause_s: float | None = None) -> None:
        due = self._now + (self._backoff_s(message.troubles.failures) if pause_s is None else pause_s)
        message.troubles.failures += 1
        message.troubles.what = (cause, hint)
        if due > message.give_up_at:
            raise self._failed(message, cause, hint)
        self._wait(message, due)

    def _wait(self, message: OutgoingMessage, due: float) -> None:
        heapq.heappush(self._waiting, _Retry(due, next(self._tickets), message))

    def _backoff_s(self, failures: int) -> float:
        """Return the pause before the next attempt: doubling, capped, other in each producer."""
        return min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * (1 << min(failures, 16))) * self._spread

    def _send_retries(self) -> None:
        """Queue the messages whose pause is over, before younger ones and in the order they failed."""
        self._links.forgive(self._now)
        due: dict[BrokerLink, list[OutgoingMessage]] = {}
        while self._waiting and self._waiting[0].due <= self._now:
            message = heapq.heappop(self._waiting).message
            if nowhere := self._routing.redirect(message):
                self._hold(message, nowhere)
            else:
                self._log.back(_place(message))
                link = message.destination.link
                due.setdefault(link, []).append(message)
                if link.troubles:
                    self._links.crowd(link)
        for link, messages in due.items():
            link.requeue(messages)

    def _hold(self, message: OutgoingMessage, nowhere: str) -> None:
        """Let a message wait until the master names a partition for it."""
        self._refresh()
        self._log.away(_place(message), nowhere, waiting=message.troubles.what[0] != nowhere)
        message.troubles.what = (nowhere, _IS_TOPIC_THERE)
        self._wait(message, self._now + _FOLLOW_EVERY_S)

    def _give_up_late(self) -> None:
        """Fail when the time of a message is over, wherever it is."""
        for link in self._links.all:
            for message in itertools.chain(link.in_flight.values(), link.queue):
                if message.give_up_at <= self._now:
                    raise self._failed(message, *self._what_delays(link, message))
        for retry in self._waiting:
            if retry.message.give_up_at <= self._now:
                raise self._failed(retry.message, *retry.message.troubles.what)

    def _what_delays(self, link: BrokerLink, message: OutgoingMessage) -> tuple[str, str]:
        if message.troubles.what[0]:
            return message.troubles.what
        return f"{link} took none for too long", _IS_BROKER_THERE

    def _failed(self, message: OutgoingMessage, cause: str, hint: str) -> ProduceError:
        return ProduceError(
            "TUBEMQ_SEND_FAILED",
            partition=message.destination.partition,
            message=message.describe(self._log.sender),
            attempts=message.attempts,
            cause=cause,
            hint=hint,
        )


def _place(message: OutgoingMessage) -> str:
    partition = message.destination.partition
    return f"partition {partition}" if message.named else f"topic {partition.topic}"
