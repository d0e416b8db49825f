"""Runs of messages, the partitions they go to, and the order of those of one partition.

**One owner.** A message that a producer has accepted is a row of an ``OutgoingBatch``, which never changes,
and belongs to exactly one ``Run``. Only when its fate becomes its own, because it is to be sent again, it
becomes a run of one.

**Order.** An answer may refuse any request, and a connection may be lost at any of them. So what is sent
behind a message that has no outcome may be stored before it, and only a partition with a single message under
way keeps the order (``PartitionLines``). Which message that is depends on nothing that happens to it: it
stays the first of its line while it is queued, in flight, or waits for another attempt.
"""

import collections
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_batch import Int64s
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.protocol.send_frames import Places, SendCredentials
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

if TYPE_CHECKING:
    from tubemq_spark.client.producer.links import BrokerLink


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
        if outcomes is None or outcomes.has_ended(self.rows[0]):
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
    """Return a function that takes the numbers at some places from a column: faster than a loop."""
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


class PartitionLines:
    """A line for each partition, whose first message is under way; the others wait here.

    Every message here is a run of one, and keeps its partition until it has ended.
    """

    def __init__(self) -> None:
        self._lines: dict[Destination, collections.deque[Run]] = {}

    def begin(self, message: Run) -> bool:
        """Add a message to the line of its partition; return whether it may leave now."""
        line = self._lines.get(message.destination)
        if line is None:
            self._lines[message.destination] = collections.deque((message,))
            return True
        line.append(message)
        return False

    def end(self, message: Run) -> Run | None:
        """Take a message that has ended out of its line, if it has one; return the next that may leave."""
        line = self._lines.get(message.destination)
        if line is None or message not in line:
            return None
        was_first = line[0] is message
        line.remove(message)
        if not line:
            del self._lines[message.destination]
            return None
        return line[0] if was_first else None

    def waiting(self, now: float) -> list[Run]:
        """Return the messages that wait in lines and whose time is over."""
        lines = [line for line in self._lines.values() if len(line) > 1 and line[1].give_up_at <= now]
        return [message for line in lines for message in list(line)[1:] if message.give_up_at <= now]
