"""The messages of one producer that are under way: sent ahead of their answers, retried, counted.

Everything happens in the thread that calls ``submit`` and ``flush``: no thread of its own, no lock.
Between calls nothing moves, and time that passes there counts for no more than ``_IDLE_COUNTS_S``, so
that a caller who pauses does not find its messages timed out.
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
from tubemq_spark.errors import (
    ProduceError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.net.pipeline import Pipeline, Pipelines
from tubemq_spark.protocol.constants import Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS, ErrCode, lookup
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
_AVOID_S: Final = 3.0
"""How long round robin passes over a broker that failed, when there are others."""
_IDLE_COUNTS_S: Final = 1.0
_FOLLOW_EVERY_S: Final = 0.1
"""Heartbeats bring a routing every 13 s; looking at each topic each time would cost more than sending."""
_LOOK_AT_BROKER: Final = "look at the broker's log"
_LONGEST_WAIT_S: Final = 1.0


class Routing(Protocol):
    """What the window asks of the producer, which knows the topics."""

    def encode(self, serial_no: int, message: OutgoingMessage) -> bytes:
        """Return the frame that sends a message to its destination."""

    def follow(self) -> None:
        """Take over changes of the routing that came by themselves."""

    def redirect(self, message: OutgoingMessage) -> None:
        """Choose the destination of a message that is to be sent again; it may stay.

        Raises:
            ProduceError: the topic or the partition does not exist any more.
        """

    def refresh(self, message: OutgoingMessage) -> None:
        """Ask the master where the message's topic is now.

        Raises:
            TubeMQError: no master answered, or the topic is gone.
        """


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open no connection yet; own ``pipelines``; ``clock`` is monotonic and counts seconds."""
        self._timeout_s = config.rpc_timeout_ms / 1000
        self._retry_s = config.send_retry_ms / 1000
        self._max_messages = config.max_in_flight
        self._max_bytes = config.max_in_flight_bytes
        self._routing = routing
        self._clock = clock
        self._pipelines = pipelines
        self._links = links
        self._waiting: list[_Retry] = []
        self._tickets = itertools.count()
        self._limit = self._max_messages
        # Spreads many tasks that failed together; one number, so that pauses keep messages in order.
        self._share = 1 - random.random() / 2  # noqa: S311 (keeps no secret)
        self._messages = 0
        self._bytes = 0
        self._unwritten = 0
        self._driven_at = clock()
        self._follow_at = self._driven_at
        self._now = 0.0
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
        size = message.size
        if self._messages >= self._limit or self._bytes + size > self._max_bytes:
            self._make_room(size)
        message.give_up_at = self._now + self._retry_s
        message.destination.link.queue.append(message)
        self._messages += 1
        self._bytes += size
        self._unwritten += 1
        if (
            self._unwritten >= _WRITE_AHEAD
            or size >= _WRITE_AHEAD_BYTES
            or self._clock() - self._driven_at >= _LINGER_S
        ):
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

    def close(self) -> None:
        """Close every connection; what is not acknowledged is forgotten."""
        self._pipelines.close()
        for link in self._links.all:
            link.detach()
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
            if self._driven_at >= self._follow_at:
                self._routing.follow()
                self._follow_at = self._driven_at + _FOLLOW_EVERY_S
            self._send_retries()
            for link in self._links.all:
                if link.queue:
                    self._write(link)
            # Sending again may have asked the master, and answers waited meanwhile.
            self._pass_time(_IDLE_COUNTS_S)
            arrivals = self._pipelines.drive(self._time_to_wait() if block else 0.0)
            self._pass_time(None)
            for pipeline, arrival in arrivals:
                self._take(pipeline, arrival)
            # After reading: an answer that waited while the caller paused is not late.
            for link in self._links.all:
                if link.in_flight:
                    self._time_out(link)
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

    def _time_to_wait(self) -> float:
        """Seconds until something is due by time alone."""
        due = [self._waiting[0].due] if self._waiting else []
        for link in self._links.all:
            if link.in_flight:
                due.append(next(iter(link.in_flight.values())).answer_by)
            if link.queue and link.pipeline is None:
                due.append(link.reconnect_at)
        return max(0.0, min([*due, self._now + _LONGEST_WAIT_S]) - self._now)

    def _write(self, link: BrokerLink) -> None:
        if link.pipeline is None and link.reconnect_at > self._now:
            return
        try:
            pipeline = link.pipeline or link.attach(self._pipelines.connect(link.endpoint))
            while link.queue and pipeline.writable:
                pipeline.write(self._encode(link))
        except TubeMQConnectionError as error:
            self._lost(link, error)

    def _encode(self, link: BrokerLink) -> bytes:
        """Encode what is queued for a broker, up to a piece, and count it as in flight."""
        frames = []
        size = 0
        if not link.in_flight:
            link.last_heard = self._now
        answer_by = self._now + self._timeout_s
        while link.queue and size < _WRITE_BYTES:
            message = link.queue.popleft()
            message.answer_by = answer_by
            message.attempts += 1
            if message.attempts > 1:
                self.retried += 1
            serial_no = link.next_serial_no()
            frame = self._routing.encode(serial_no, message)
            link.in_flight[serial_no] = message
            frames.append(frame)
            size += len(frame)
        return b"".join(frames)

    def _take(self, pipeline: Pipeline, arrival: bytes | TubeMQConnectionError) -> None:
        link = self._links.to(pipeline.endpoint)
        if link.pipeline is not pipeline:
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
        for serial_no, outcome in answers:
            message = link.in_flight.pop(serial_no, None)
            if message is None:
                continue  # the answer to a request that timed out
            if isinstance(outcome, int):
                message.destination.acknowledge(outcome, retried=message.attempts > 1)
                self._messages -= 1
                self._bytes -= message.size
            elif isinstance(outcome, Refusal):
                self._refused(message, outcome)
            else:
                self._broke(message, outcome)
        if answers and self._limit < self._max_messages:
            self._limit = min(self._max_messages, self._limit + 1 + self._limit // 16)

    def _refused(self, message: OutgoingMessage, refusal: Refusal) -> None:
        """A broker answered that it did not store a message: the table of codes says what to do."""
        entry = lookup(refusal.code)
        cause = f"the broker answered {refusal.code} ({entry.name}): {refusal.text or entry.meaning}"
        if entry.refresh_metadata and not message.refreshed:
            self._refresh(message, cause)
        elif not entry.retriable:
            raise _failed(message, cause, entry.hint)
        if refusal.code == ErrCode.SERVER_RECEIVE_OVERFLOW:
            self._slow_down()
        elif refusal.code == ErrCode.SERVICE_UNAVAILABLE:
            self._avoid(message)
        self._retry(message, cause, entry.hint)

    def _broke(self, message: OutgoingMessage, failure: Failure) -> None:
        """A broker answered with an exception; FATAL says that it cannot make sense of the request."""
        cause = f"the broker failed with {failure.exception_class}: {failure.text or 'no text'}"
        if failure.status is Status.FATAL and failure.exception_class not in TEMPORARY_EXCEPTIONS:
            raise _failed(message, cause, _LOOK_AT_BROKER)
        self._retry(message, cause, _LOOK_AT_BROKER)

    def _refresh(self, message: OutgoingMessage, cause: str) -> None:
        message.refreshed = True
        try:
            self._routing.refresh(message)
        except TubeMQError as error:
            raise _failed(
                message, cause, f"asking the master for the routing then failed: {error}"
            ) from error

    def _slow_down(self) -> None:
        """Halve the window, once for all messages that overflowed together."""
        if self._messages <= self._limit:
            self._limit = max(1, self._messages // 2)

    def _avoid(self, message: OutgoingMessage) -> None:
        self._links.avoid(message.destination.partition.broker_id, self._now + _AVOID_S)

    def _lost(self, link: BrokerLink, error: TubeMQConnectionError) -> None:
        """A connection failed: whether its broker stored what was in flight nobody knows."""
        cause = f"the connection to {link.endpoint} failed: {error.parameters['cause']}"
        left = link.detach()
        pause_s = self._backoff_s(max([link.failures, *(message.failures for message in left)]))
        link.reconnect_at = self._now + pause_s
        link.failures += 1
        for message in left:  # all at one time, so that they keep their order
            self._avoid(message)
            self._retry(message, cause, "check that the broker runs and can be reached", pause_s)

    def _time_out(self, link: BrokerLink) -> None:
        """Give up waiting for answers that are overdue; a broker that says nothing at all is gone."""
        for serial_no, message in list(itertools.takewhile(self._overdue, link.in_flight.items())):
            if link.last_heard <= message.answer_by - self._timeout_s and link.pipeline is not None:
                self._lost(link, link.pipeline.fail(f"no answer within {self._timeout_s:g} s"))
                return
            del link.in_flight[serial_no]
            self._retry(message, f"no answer within {self._timeout_s:g} s", _LOOK_AT_BROKER)

    def _overdue(self, item: tuple[int, OutgoingMessage]) -> bool:
        return item[1].answer_by <= self._now

    def _retry(self, message: OutgoingMessage, cause: str, hint: str, pause_s: float | None = None) -> None:
        due = self._now + (self._backoff_s(message.failures) if pause_s is None else pause_s)
        message.failures += 1
        if due > message.give_up_at:
            raise _failed(message, cause, hint)
        heapq.heappush(self._waiting, _Retry(due, next(self._tickets), message))

    def _backoff_s(self, failures: int) -> float:
        """Return the pause before the next attempt: doubling, capped, other in each producer."""
        return min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * (1 << min(failures, 16))) * self._share

    def _send_retries(self) -> None:
        """Queue the messages whose pause is over, before younger ones and in the order they failed."""
        self._links.forgive(self._now)
        due: dict[BrokerLink, list[OutgoingMessage]] = {}
        while self._waiting and self._waiting[0].due <= self._now:
            message = heapq.heappop(self._waiting).message
            try:
                self._routing.redirect(message)
            except (TubeMQConnectionError, RpcError) as error:
                raise _failed(message, "its topic's routing is gone", str(error)) from error
            due.setdefault(message.destination.link, []).append(message)
        for link, messages in due.items():
            link.queue.extendleft(reversed(messages))


def _failed(message: OutgoingMessage, cause: str, hint: str) -> ProduceError:
    return ProduceError(
        "TUBEMQ_SEND_FAILED",
        partition=message.destination.partition,
        attempts=message.attempts,
        cause=cause,
        hint=hint,
    )
