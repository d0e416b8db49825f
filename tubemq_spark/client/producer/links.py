"""The brokers of one producer, and which of them messages without key and partition pass over.

Whether a broker that failed answers again, a *probe* asks, for which no message waits. A frozen broker takes
connections, and stores what was sent to it when it is resumed. So the probe stores nothing: it is the
heartbeat of a consumer that holds no partition. Every answer will do, a refusal too.
"""

import asyncio
import collections
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.runs import Run
from tubemq_spark.client.producer.statistics import BrokerCounts, BrokerStatistics
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.byte_connection import LookUp, look_up
from tubemq_spark.net.connection import connect
from tubemq_spark.net.send_stream import SendStream
from tubemq_spark.protocol.constants import Method, ReadStatus, ServiceType
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_connection import SendConnection

_AVOID_S: Final = 3.0
_AVOID_AT_MOST_S: Final = 48.0
_OWN_BYTES: Final = 256
"""About what a message takes in memory besides its payload."""
_LONGEST_RUN: Final = 32
"""Messages that one partition gets before the next one: choosing a partition and keeping account of it costs
as much for one message as for a run of them. Longer turns save little more, and a task of few messages would
reach few partitions."""
_GATHER_S: Final = 0.02
"""So long the kernel collects answers. To read each by itself costs more than all else that a sender does."""
_SILENT_S: Final = 0.5
"""A broker that has said nothing for so long while messages wait for it is not waited for by the others."""
_LEAST_ANSWER_BYTES: Final = 16
"""A quarter of what a short answer has: about so many of those in flight are reported together."""


class BrokerLink:
    """One broker: the runs that wait to be written to it, and those in flight.

    A message is in at most one of ``queue`` and ``connection``, of one link. Only the send window moves
    messages in and out. Those that wait for another attempt are elsewhere, and are counted here.
    """

    def __init__(
        self, broker_id: int, endpoint: Endpoint, timeout_ms: int, *, detailed: bool = False
    ) -> None:
        """Create it without messages; ``detailed``: whether stored messages are told of with details."""
        self.broker_id = broker_id
        self.endpoint = endpoint
        self.queue: collections.deque[Run] = collections.deque()
        self._timeout_ms = timeout_ms
        self._detailed = detailed
        self.connection = self._connection()
        """What is in flight; nothing as long as there is no stream."""
        self.writing: list[Run] = []
        """Those in flight whose bytes have not all left: no answer is due for them."""
        self.held = 0
        """How many messages are here."""
        self.held_bytes = 0
        """The length of their payloads."""
        self.waiting = 0
        """How many messages wait for another attempt, the last of which was to be here."""
        self.waiting_bytes = 0
        """The length of their payloads."""
        self.parked = 0
        """How many of them wait for a partition that the master does not list."""
        self.stream: SendStream | None = None
        self.failures = 0
        """Connections lost, or not made, since the last answer."""
        self.reconnect_at = 0.0
        self.last_heard = 0.0
        self.moved_at = 0.0
        """When bytes that waited to be written were last seen to get fewer."""
        self._unsent_bytes = 0
        self.troubles = 0
        """How often it was avoided since it last stored a message."""
        self.refuses = False
        """Whether it has stored nothing since it refused a message."""
        self.crowded = False
        """Whether it holds its share of the window; see ``BrokerLinks``."""
        self.silent = False
        """Whether it was silent for too long when that was looked at last."""
        self.full = False
        """Whether more messages for it have to wait outside the window; see ``BrokerLinks``."""
        self.counts = BrokerCounts()

    def __str__(self) -> str:
        return f"broker {self.broker_id} ({self.endpoint})"

    @property
    def name(self) -> str:
        """The broker, wherever it is."""
        return f"broker {self.broker_id}"

    @property
    def stalled(self) -> bool:
        """Whether nothing is to be expected of it now: it is silent, or has not answered since a failure."""
        return self.silent or self.failures > 0

    @property
    def messages(self) -> int:
        """How many messages are here, or wait for another attempt here."""
        return self.held + self.waiting

    @property
    def silent_at(self) -> float:
        """When it will have been silent for too long; infinite when nothing is expected of it."""
        if self.stream is None or not self.held:
            return math.inf
        return (max(self.last_heard, self.moved_at) if self.writing else self.last_heard) + _SILENT_S

    @property
    def takes_more(self) -> bool:
        """Whether to write to it: one that is stalled gets a run at a time, of which copies may be stored."""
        return not (self.stalled and self.connection)

    @property
    def oldest(self) -> Run | None:
        """The run in flight that was sent first."""
        flight = self.connection.oldest
        return None if flight is None else flight.run

    def take_late(self, now: float) -> list[tuple[Run, bool]]:
        """Take the messages whose time is over, those in flight first; return whether each may be stored."""
        untouched = self._untouched()
        late: list[tuple[Run, bool]] = []
        for flight in self.connection.flights:
            run = flight.run
            if run.give_up_at <= now:
                ambiguous = run not in untouched or run.batch.outcomes is not None
                late += [(message, ambiguous) for message in run.messages(self.connection.give_up(flight))]
        for run in [run for run in self.queue if run.give_up_at <= now]:
            self.queue.remove(run)
            late += [(message, False) for message in run.messages(range(len(run.rows)))]
        for message, _ in late:
            self.release(1, message.size)
        return late

    def keep(self, message: Run, *, parked: bool = False) -> None:
        """Count a message that waits for another attempt."""
        message.troubles.kept_by, message.troubles.parked = self, parked
        self.waiting += 1
        self.waiting_bytes += message.size
        self.parked += parked

    def add(self, run: Run) -> None:
        """Append a run to those that wait to be sent to the broker."""
        self.queue.append(run)
        self.held += len(run.rows)
        self.held_bytes += run.size

    def gather_answers(self, now: float) -> float | None:
        """Ask for a report when many answers are there; return when to look for fewer."""
        missing = max(1, len(self.connection))
        look_at = self.last_heard + _GATHER_S
        gathers = missing > 1 and now < look_at
        if self.stream is not None:
            # Less than what is sure to come: of one answer, the beginning may have been read.
            self.stream.report_at(1 + (missing - 1) * _LEAST_ANSWER_BYTES if gathers else 1)
        return look_at if gathers else None

    def requeue(self, runs: list[Run]) -> None:
        """Take runs before all others."""
        self.queue.extendleft(reversed(runs))
        self.held += sum(len(run.rows) for run in runs)
        self.held_bytes += sum(run.size for run in runs)

    def release(self, count: int, size: int) -> None:
        """Count messages as gone that were in flight."""
        self.held -= count
        self.held_bytes -= size

    def hold(self, runs: list[Run], now: float) -> None:
        """Suspend the answer time-out of runs whose bytes are not all written."""
        self.writing = runs
        self._unsent_bytes = self._left_to_write()
        self.moved_at = now
        for run in runs:
            run.sent_at = math.inf

    def stood_still_s(self, now: float) -> float:
        """Return for how long no byte has left; when all have, the time for the answers begins."""
        unsent = self._left_to_write()
        if not unsent:
            for run in self.writing:
                run.sent_at = now
            self.writing = []
            return 0.0
        if unsent != self._unsent_bytes:
            self._unsent_bytes = unsent
            self.moved_at = now
        return now - self.moved_at

    def _untouched(self) -> list[Run]:
        """Return the runs in flight of which no byte has left."""
        return self.writing if self.stream is not None and self.stream.untouched else []

    def _connection(self) -> SendConnection[Run]:
        return SendConnection(self._timeout_ms, detailed=self._detailed)

    def _left_to_write(self) -> int:
        return 0 if self.stream is None else self.stream.unsent_bytes

    def attach(self, stream: SendStream, now: float) -> None:
        """Begin a new connection: serial numbers and half-read answers belonged to the old one."""
        self.stream = stream
        self.last_heard = now
        self.connection = self._connection()

    def detach(self) -> tuple[list[Run], list[Run]]:
        """Forget the connection and give up every message; return what may have been stored and what not.

        A message that was in flight may have been stored unless no byte of it has left. Each message is a run
        of its own from now on, and each list begins with the oldest.
        """
        untouched = self._untouched()
        ambiguous: list[Run] = []
        unsent: list[Run] = []
        for run, positions in self.connection.give_up_all():
            (unsent if run in untouched else ambiguous).extend(run.messages(positions))
        for run in self.queue:
            unsent += run.messages(range(len(run.rows)))
        self.stream = None
        self.queue.clear()
        self.writing = []
        self.held = self.held_bytes = 0
        return ambiguous, unsent


class BrokerLinks:
    """The brokers met so far, each *avoided*, *crowded*, or neither.

    A broker is passed over after a failure (*avoided*), until it answers a probe, which is sent after a
    while, each time twice as long, until the broker stores a message again; and while it holds its share of
    the window (*crowded*), so that one slow broker leaves the other shares alone. A broker that failed has a
    share of one message until it stores one.

    Messages with a key or a named partition cannot go elsewhere. While their broker is stalled, has stored
    nothing since it refused a message, or does not have their partition listed, they are *aside*: they do not
    count among the messages that the window may hold, so those for other brokers go on. Each broker has an
    equal share of the window's bytes for such messages, in which each also counts with what it takes besides
    its payload. A broker whose share is *full* takes no more of them into the window. When all brokers are
    stalled, or refuse, nothing is aside.
    """

    def __init__(
        self,
        timeout_ms: int,
        *,
        detailed: bool = False,
        probe: Callable[[Endpoint], Coroutine[Any, Any, bool]] | None = None,
    ) -> None:
        """Create it without brokers."""
        self._timeout_ms = timeout_ms
        self._detailed = detailed
        self._links: dict[tuple[int, Endpoint], BrokerLink] = {}
        self._avoided: dict[BrokerLink, float] = {}
        """Until when each is not asked whether it answers."""
        self._probe = probe
        self._probes: dict[BrokerLink, asyncio.Task[bool]] = {}
        self._probing: set[asyncio.Task[bool]] = set()
        """All probes that have not ended, also those that are not waited for any more."""
        self.on_answer: Callable[[], object] = lambda: None
        """Called when a probe has ended."""
        self._crowded: set[BrokerLink] = set()
        self._latest: dict[int, BrokerLink] = {}
        """The link of each broker at the address that was met last."""
        self._share_messages = 1
        self._share_bytes = 1
        self.longest_run = _LONGEST_RUN
        """How many messages a partition gets before the next one; few where a broker's share is small."""
        self.all: tuple[BrokerLink, ...] = ()
        self.passed_over: frozenset[int] = frozenset()
        """Ids of the brokers to pass over now."""
        self.failing: frozenset[int] = frozenset()
        """Ids of those to pass over even when no other is left: silent ones, and those that failed and stored
        nothing since."""
        self.aside = 0
        """How many messages are aside."""
        self.full: frozenset[int] = frozenset()
        """Ids of the brokers whose shares are full."""

    def to(self, broker_id: int, endpoint: Endpoint) -> BrokerLink:
        """Return the link to a broker, which all its partitions share."""
        link = self._links.get((broker_id, endpoint))
        if link is None:
            link = self._links[broker_id, endpoint] = BrokerLink(
                broker_id, endpoint, self._timeout_ms, detailed=self._detailed
            )
            self.all = tuple(self._links.values())
        self._latest[broker_id] = link
        return link

    def statistics(self) -> tuple[BrokerStatistics, ...]:
        """Return the counts of the brokers that were sent to, in the order of their ids."""
        used = [link for link in self.all if link.counts.requests]
        statistics = [link.counts.snapshot(link.broker_id, link.endpoint) for link in used]
        return tuple(sorted(statistics, key=lambda broker: (broker.broker_id, broker.endpoint)))

    def avoid(self, link: BrokerLink, now: float) -> None:
        """Pass over a broker that failed; failures that come together count as one."""
        if link not in self._avoided:
            link.troubles += 1
            pause_s = min(_AVOID_AT_MOST_S, _AVOID_S * (1 << min(link.troubles - 1, 16)))
            self._avoided[link] = now + pause_s
            self._update_passed_over()

    def forgive(self, now: float) -> None:
        """Turn again to brokers that were avoided long enough, and answer; wait for none."""
        if not self._avoided or min(self._avoided.values()) > now:
            return
        for link in [link for link, end in self._avoided.items() if end <= now]:
            answers = self._answers(link)
            if answers is not None:
                self._forget_failure(link)
                if not answers:
                    self.avoid(link, now)
        self._update_passed_over()

    def _answers(self, link: BrokerLink) -> bool | None:
        """Return whether a broker answers; None as long as that is not known."""
        # At an old address none is expected, and messages go to the new one.
        if self._probe is None or self._latest[link.broker_id] is not link:
            return True
        probe = self._probes.get(link)
        if probe is None:
            probe = self._probes[link] = asyncio.create_task(self._probe(link.endpoint))
            self._probing.add(probe)
            probe.add_done_callback(self._end_probe)
        return probe.result() if probe.done() else None

    def _end_probe(self, probe: "asyncio.Task[bool]") -> None:
        self._probing.discard(probe)
        if not probe.cancelled():
            self.on_answer()

    def _forget_failure(self, link: BrokerLink) -> None:
        self._avoided.pop(link, None)
        if (probe := self._probes.pop(link, None)) is not None:
            probe.cancel()

    def recovered(self, link: BrokerLink) -> None:
        """Forget a broker's failures: it has stored a message."""
        link.troubles = 0
        self._forget_failure(link)
        self._update_passed_over()

    async def close(self) -> None:
        """End the probes, and wait for their end."""
        self._probes.clear()
        for probe in self._probing:
            probe.cancel()
        await asyncio.gather(*self._probing, return_exceptions=True)

    def share_out(self, messages: int, size: int) -> None:
        """Give each broker its share of the window, and pass over those that hold it already."""
        brokers = len(self._latest)
        if brokers < 2:
            return
        self._share_messages = max(1, messages // brokers)
        self._share_bytes = max(1, size // brokers)
        self.longest_run = max(1, min(_LONGEST_RUN, self._share_messages // 2))
        for link in self.all:
            if link.held >= self._share_messages or link.held_bytes >= self._share_bytes:
                self.crowd(link)

    def look(self, now: float) -> None:
        """Note which brokers are stalled and how many messages are aside; use the others again."""
        several = len(self._latest) > 1
        aside = 0
        all_stalled = True
        for link in self.all:
            silent = link.silent_at <= now
            if silent is not link.silent:
                link.silent = silent
                if several and silent:
                    self.crowd(link)
                self._update_passed_over()
            if link.stalled or link.refuses:
                aside += link.messages
            else:
                aside += link.parked
                all_stalled = all_stalled and self._latest[link.broker_id] is not link
            if link.crowded:
                self.relieve(link)
        self.aside = 0 if all_stalled else aside
        if aside or self.full:
            for link in self.all:
                link.full = several and self._is_full(link)
            full = frozenset(link.broker_id for link in self.all if link.full)
            if full != self.full:
                self.full = full
                self._update_passed_over()

    def _is_full(self, link: BrokerLink) -> bool:
        size = link.held_bytes + link.waiting_bytes + _OWN_BYTES * link.messages
        return (link.stalled or link.refuses or link.parked > 0) and size >= self._share_bytes

    def relieve(self, link: BrokerLink) -> None:
        """Use a crowded broker again that holds half of its share, or nothing after a failure."""
        if link.silent:
            relieved = False
        elif link.troubles:
            relieved = not link.held
        else:
            relieved = link.held * 2 <= self._share_messages and link.held_bytes * 2 <= self._share_bytes
        if relieved:
            link.crowded = False
            self._crowded.discard(link)
            self._update_passed_over()

    def crowd(self, link: BrokerLink) -> None:
        """Pass over a broker that holds its share."""
        if not link.crowded:
            link.crowded = True
            self._crowded.add(link)
            self._update_passed_over()

    def _update_passed_over(self) -> None:
        """Set again which brokers fail, and which new messages pass over."""
        troubled = {link for link in self._crowded if link.troubles or link.silent} | self._avoided.keys()
        self.failing = frozenset(link.broker_id for link in troubled) | self.full
        self.passed_over = frozenset(link.broker_id for link in self._crowded) | self.failing


async def answers(
    config: ClientConfig, client_id: str, endpoint: Endpoint, look_up: LookUp = look_up
) -> bool:
    """Return whether a broker answers within ``rpc_timeout_ms``, on a connection of its own."""
    request = broker_pb2.HeartBeatRequestC2B(
        clientId=client_id, groupName=config.group, readStatus=ReadStatus.STORED_OR_EARLIEST
    )
    timeout_ms = config.rpc_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await connect(endpoint, config.connect_timeout_ms, config.tls, look_up=look_up)
            try:
                await connection.start(
                    ServiceType.BROKER_READ,
                    Method.PARTITION_HEARTBEAT,
                    request,
                    timeout_ms=timeout_ms,
                    during="looking whether it answers",
                )
                return connection.heard
            finally:
                connection.close()
    except (TubeMQError, TimeoutError):
        return False
