"""Runs of messages, the partitions they go to, and the brokers that they are sent to.

**One owner.** A message that a producer has accepted is a row of an ``OutgoingBatch``, which never changes,
and belongs to exactly one ``Run``. Only when its fate becomes its own, because it is to be sent again, it
becomes a run of one.
"""

import collections
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Final

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.statistics import BrokerCounts, BrokerStatistics
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.send_stream import SendStream
from tubemq_spark.protocol.send_batch import Int64s
from tubemq_spark.protocol.send_connection import Details, SendConnection
from tubemq_spark.protocol.send_frames import Places, SendCredentials
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

_GATHER_S: Final = 0.02
"""So long the kernel collects answers. To read each by itself costs more than all else that a sender does."""
_SILENT_S: Final = 0.5
"""A broker that has said nothing for so long while messages wait for it is not waited for by the others."""
_LEAST_ANSWER_BYTES: Final = 16
"""A quarter of what a short answer has: about so many of those in flight are reported together."""


class Troubles:
    """What went wrong with one message."""

    __slots__ = ("failures", "kept_by", "parked", "server_errors", "token_of", "unanswered", "what")

    def __init__(self) -> None:
        self.failures = 0
        """How often an attempt to send it, or to connect for it, came to nothing."""
        self.unanswered = 0
        """Attempts that may or may not have stored the message."""
        self.server_errors = 0
        """How often a broker failed inside while storing it."""
        self.token_of = -1
        """The heartbeat that brings a newer token than the one a broker refused; -1: none was refused."""
        self.what = ("", "")
        """What delays it, and what to do about that."""
        self.kept_by: BrokerLink | None = None
        """The broker whose share it takes while it waits for its next attempt."""
        self.parked = False
        """Whether it then waits for a partition that the master does not list."""


class Run:
    """Messages of one batch that go to one broker and have had the same fate so far.

    ``rows`` is a range when they follow one another in the batch, which keeps a run as cheap as a message.
    """

    __slots__ = (
        "_troubles",
        "attempts",
        "batch",
        "credentials",
        "destinations",
        "due_by",
        "handed_at",
        "rows",
        "sent_at",
        "size",
    )

    def __init__(
        self, batch: OutgoingBatch, rows: Sequence[int], destinations: Sequence["Destination"]
    ) -> None:
        self.batch = batch
        self.rows = rows
        self.destinations = destinations
        """Where each of them goes, for now; or one place for all."""
        self.size = batch.size_of(rows)
        """The length of all payloads together."""
        self.attempts = 0
        """How often they were handed to a connection."""
        self.credentials: SendCredentials | None = None
        """What they were sent with last."""
        self.handed_at = 0.0
        """When that was done last, in the window's time."""
        self.sent_at = 0.0
        """When their last bytes left, in the window's time; set with each attempt."""
        self.due_by = 0.0
        """Their deadline, in the window's time; set when the window accepts them."""
        self._troubles: Troubles | None = None

    @property
    def give_up_at(self) -> float:
        """When they are given up, in the window's time: at their deadline, or when their batch is."""
        return min(self.due_by, self.batch.give_up_at)

    @property
    def destination(self) -> "Destination":
        """Where the (first) message goes."""
        return self.destinations[0]

    @property
    def troubles(self) -> Troubles:
        """What went wrong with a run of one message; most have no troubles, so this is made late."""
        if self._troubles is None:
            self._troubles = Troubles()
        return self._troubles

    @property
    def unanswered(self) -> int:
        """Attempts that may or may not have stored the message."""
        return 0 if self._troubles is None else self._troubles.unanswered

    @property
    def key(self) -> bytes | None:
        """The key of a run of one message."""
        return self.batch.key(self.rows[0])

    @property
    def value(self) -> bytes:
        """The body of a run of one message."""
        return self.batch.value(self.rows[0])

    @property
    def named(self) -> bool:
        """Whether the caller named the partition, so that no other will do."""
        return self.batch.partition(self.rows[0]) is not None

    @property
    def is_bound(self) -> bool:
        """Whether a run of one message has a key or a named partition, which say where it goes."""
        return self.named or self.key is not None

    @property
    def has_time(self) -> bool:
        """Whether a run of one message has a message time."""
        return self.batch.has_time(self.rows[0])

    def size_of(self, positions: Sequence[int]) -> int:
        """Return the length of some payloads together."""
        if len(positions) == len(self.rows):
            return self.size
        return self.batch.size_of(self._rows_at(positions))

    def messages(self, positions: Sequence[int]) -> "list[Run]":
        """Return some of the messages, each a run of its own from now on."""
        if len(self.rows) == 1:
            return [self] if positions else []
        return [self._message(position) for position in positions]

    def describe(self, sender: str) -> str:
        """Return words that let the user find the (first) message."""
        return self.batch.describe(self.rows[0], sender)

    def places(self) -> Places:
        """Return where the messages go, as requests say it."""
        if len(self.destinations) == 1:
            return [(self.destination.place, len(self.rows))]
        by_destination = itertools.groupby(self.destinations)
        return [(destination.place, len(list(same))) for destination, same in by_destination]

    def acknowledge(self, positions: Sequence[int], offsets: Int64s) -> None:
        """Count stored messages, each for its partition."""
        batch, rows, stored = self.batch, self._rows_at(positions), offsets.tolist()
        history = self.attempts, self.unanswered
        if len(self.destinations) == 1:
            self.destination.acknowledge(stored, batch.bytes_of(rows), batch.checksum_of(rows), *history)
            return
        places: dict[Destination, list[int]] = collections.defaultdict(list)
        for place, position in enumerate(positions):
            places[self.destinations[position]].append(place)
        sizes, checksums = batch.body_sizes(rows), batch.checksums(rows)
        for destination, some in places.items():
            pick = _picker(some)
            checksum = None if checksums is None else sum(pick(checksums))
            destination.acknowledge(pick(stored), sum(pick(sizes)), checksum, *history)

    def tell_stored(self, positions: Sequence[int], offsets: Int64s, details: Details | None) -> None:
        """Tell those who asked where stored messages are."""
        if self.batch.outcomes is not None:
            self.batch.outcomes.stored(
                self._rows_at(positions),
                self._partitions_at(positions),
                offsets,
                details,
                self.attempts,
                self.unanswered,
            )

    def tell_failed(self, error: ProduceError) -> bool:
        """Tell the callback of a run of one message that it will not be sent again; False: it has none."""
        outcomes = self.batch.outcomes
        if outcomes is None or not outcomes.asked(self.rows[0]):
            return False
        outcomes.failed(self.rows[0], error)
        return True

    def _rows_at(self, positions: Sequence[int]) -> Sequence[int]:
        if len(positions) == len(self.rows):
            return self.rows
        if isinstance(positions, range):
            return self.rows[positions.start : positions.stop]
        return [self.rows[position] for position in positions]

    def _partitions_at(self, positions: Sequence[int]) -> Sequence[TopicPartition]:
        if len(self.destinations) == 1:
            return (self.destination.partition,)
        return [self.destinations[position].partition for position in positions]

    def _message(self, position: int) -> "Run":
        destination = self.destinations[position if len(self.destinations) > 1 else 0]
        run = Run(self.batch, (self.rows[position],), (destination,))
        run.attempts = self.attempts
        run.credentials = self.credentials
        run.sent_at = self.sent_at
        run.due_by = self.due_by
        return run


def _picker(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return what takes the numbers at some places out of a column: faster than a loop."""
    if len(places) == 1:
        (only,) = places
        return lambda column: (column[only],)
    return operator.itemgetter(*places)


def release_kept(message: Run) -> None:
    """Count a message as one that waits no longer for another attempt."""
    troubles = message.troubles
    if (link := troubles.kept_by) is not None:
        link.waiting -= 1
        link.waiting_bytes -= message.size
        link.parked -= troubles.parked
        troubles.kept_by = None


class Destination:
    """One partition that a producer sends to, and what it has acknowledged."""

    __slots__ = (
        "bytes",
        "checksum",
        "count",
        "first_offset",
        "last_offset",
        "link",
        "listed",
        "partition",
        "place",
        "retried",
        "unanswered",
    )

    def __init__(self, partition: TopicPartition, link: "BrokerLink", place: bytes) -> None:
        self.partition = partition
        self.link = link
        self.place = place
        """What all requests to this partition have in common (``encode_place``)."""
        self.listed = True
        """Whether the master lists it now; it keeps its broker's old address while it does not."""
        self.forget()

    def forget(self) -> None:
        """Begin as if nothing had been acknowledged."""
        self.count = 0
        self.first_offset = -1
        self.last_offset = -1
        self.retried = 0
        self.unanswered = 0
        self.bytes = 0
        self.checksum: int | None = None

    def acknowledge(
        self, offsets: Sequence[int], size: int, checksum: int | None, attempts: int, unanswered: int
    ) -> None:
        """Count stored messages; answers may come in any order."""
        first, last = min(offsets), max(offsets)
        self.last_offset = max(self.last_offset, last)
        if first < self.first_offset or not self.count:
            self.first_offset = first
        self.count += len(offsets)
        self.bytes += size
        if checksum is not None:
            self.checksum = ((self.checksum or 0) + checksum) % CHECKSUM_MODULUS
        if attempts > 1:
            self.retried += len(offsets)
            self.unanswered += unanswered

    def receipt(self) -> Receipt:
        """Return what was acknowledged so far."""
        return Receipt(
            self.partition,
            self.count,
            self.first_offset,
            self.last_offset,
            self.retried,
            self.unanswered,
            self.bytes,
            self.checksum,
        )


def runs(batch: OutgoingBatch, first: int, destinations: Sequence[Destination]) -> list[Run]:
    """Return a run for each broker that messages of a batch go to, from the first message on.

    Messages for a partition that is not listed now are a run of their own.
    """
    by_place: dict[BrokerLink | Destination, list[int]] = {}
    for position, destination in enumerate(destinations):
        place = destination.link if destination.listed else destination
        by_place.setdefault(place, []).append(position)
    if len(by_place) == 1:
        return [Run(batch, range(first, first + len(destinations)), destinations)]
    return [
        Run(batch, [first + position for position in some], [destinations[position] for position in some])
        for some in by_place.values()
    ]


class BrokerLink:
    """One broker: the runs that wait to be written to it, and those in flight.

    A message is in at most one of ``queue`` and ``connection``, of one link. Only the send window moves
    messages in and out. Those that wait for another attempt are elsewhere, and are counted here.
    """

    __slots__ = (
        "_detailed",
        "_timeout_ms",
        "_unsent_bytes",
        "broker_id",
        "connection",
        "counts",
        "crowded",
        "endpoint",
        "failures",
        "full",
        "held",
        "held_bytes",
        "last_heard",
        "moved_at",
        "parked",
        "queue",
        "reconnect_at",
        "refuses",
        "silent",
        "stream",
        "troubles",
        "waiting",
        "waiting_bytes",
        "writing",
    )

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
        """Those in flight whose bytes have not all left: they wait for no answer yet."""
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
        """Take a run behind all others."""
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

    def statistics(self) -> BrokerStatistics:
        """Return what was counted so far."""
        return self.counts.snapshot(self.broker_id, self.endpoint)

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
