"""What a producer keeps of its brokers, its partitions, and the messages not acknowledged yet."""

import collections
import math
from typing import Final

from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pipeline import Pipeline
from tubemq_spark.protocol.payload import Payload
from tubemq_spark.protocol.send_connection import SendEncoder
from tubemq_spark.protocol.send_answers import SendAnswerReader
from tubemq_spark.receipts import Receipt, describe_message

_SERIAL_MIN: Final = -(1 << 31)
_SERIAL_MAX: Final = (1 << 31) - 1
_AVOID_S: Final = 3.0
_AVOID_AT_MOST_S: Final = 48.0


class Troubles:
    """What went wrong with one message."""

    __slots__ = ("failures", "heartbeats", "server_errors", "unanswered", "what")

    def __init__(self) -> None:
        self.failures = 0
        """How often an attempt to send it, or to connect for it, came to nothing."""
        self.unanswered = 0
        """Attempts of which nobody knows whether they stored the message."""
        self.server_errors = 0
        """How often a broker failed inside while storing it."""
        self.heartbeats = -1
        """Heartbeats that had been answered when a broker refused our token; -1: none did."""
        self.what = ("", "")
        """What delays it, and what to do about that."""


class OutgoingMessage:
    """A message the producer accepted and no broker has acknowledged yet."""

    __slots__ = (
        "_troubles",
        "attempts",
        "destination",
        "give_up_at",
        "key",
        "message_time",
        "message_type",
        "named",
        "number",
        "payload",
        "sent_at",
        "size",
    )

    def __init__(
        self,
        destination: "Destination",
        number: int,
        payload: Payload,
        message_type: str | None,
        message_time: str | None,
        key: bytes | None,
        named: bool,
    ) -> None:
        """Take a message and where it goes.

        Args:
            destination: where it goes first.
            number: how many messages the producer had accepted with this one.
            payload: what is stored.
            message_type: the type inside the payload's attributes.
            message_time: the time inside the payload's attributes.
            key: chooses the partition again when the routing changes.
            named: whether the caller named the partition, so that no other will do.
        """
        self.destination = destination
        self.number = number
        self.payload = payload
        self.size = len(payload.data)
        self.message_type = message_type
        self.message_time = message_time
        self.key = key
        self.named = named
        self.attempts = 0
        """How often it was handed to a connection."""
        self.sent_at: float
        """When its last bytes left, in the window's time; set with each attempt."""
        self.give_up_at: float
        """Its deadline, in the window's time; set when the window accepts it."""
        self._troubles: Troubles | None = None

    @property
    def troubles(self) -> "Troubles":
        """What went wrong with it; most messages have none, so this is made late."""
        if self._troubles is None:
            self._troubles = Troubles()
        return self._troubles

    @property
    def unanswered(self) -> int:
        """Attempts of which nobody knows whether they stored the message."""
        return 0 if self._troubles is None else self._troubles.unanswered

    def describe(self, sender: str) -> str:
        """Return words that let the user find it."""
        data = self.payload.data
        skip = 4 + int.from_bytes(data[:4], "big") if self.payload.flag else 0
        return describe_message(self.number, sender, data[skip:])


class BrokerLink:
    """One broker: what waits to be written to it, and what waits for its answer.

    Every message is in at most one of ``queue`` and ``in_flight``, of one link. Only the send window moves
    messages in and out, and keeps ``held_bytes`` right.
    """

    __slots__ = (
        "_unsent_bytes",
        "broker_id",
        "crowded",
        "endpoint",
        "failures",
        "held_bytes",
        "in_flight",
        "last_heard",
        "moved_at",
        "pipeline",
        "queue",
        "reader",
        "reconnect_at",
        "serial_no",
        "troubles",
        "writing",
    )

    def __init__(self, broker_id: int, endpoint: Endpoint) -> None:
        self.broker_id = broker_id
        self.endpoint = endpoint
        self.queue: collections.deque[OutgoingMessage] = collections.deque()
        self.in_flight: dict[int, OutgoingMessage] = {}
        """By serial number, in the order of sending, so the first one times out first."""
        self.writing: list[OutgoingMessage] = []
        """Those in flight whose bytes have not all left: they wait for no answer yet."""
        self.held_bytes = 0
        """Bytes of all messages here."""
        self.pipeline: Pipeline | None = None
        self.reader = SendAnswerReader()
        self.serial_no = 0
        self.failures = 0
        """Connections lost, or not made, since the last answer."""
        self.reconnect_at = 0.0
        self.last_heard = 0.0
        self.moved_at = 0.0
        """When bytes that waited to be written were last seen to get fewer."""
        self._unsent_bytes = 0
        self.troubles = 0
        """How often it was avoided since it last stored a message."""
        self.crowded = False
        """Whether it holds its share of the window; see ``BrokerLinks``."""

    def __str__(self) -> str:
        return f"broker {self.broker_id} ({self.endpoint})"

    @property
    def name(self) -> str:
        """The broker, wherever it is."""
        return f"broker {self.broker_id}"

    @property
    def held(self) -> int:
        """How many messages are here."""
        return len(self.queue) + len(self.in_flight)

    def requeue(self, messages: "list[OutgoingMessage]") -> None:
        """Take messages before all others."""
        self.queue.extendleft(reversed(messages))
        self.held_bytes += sum(message.size for message in messages)

    def hold(self, messages: "list[OutgoingMessage]", now: float) -> None:
        """Let no answer be due to messages whose bytes have not all left; there are such bytes."""
        self.writing = messages
        self._unsent_bytes = self._left_to_write()
        self.moved_at = now
        for message in messages:
            message.sent_at = math.inf

    def stood_still_s(self, now: float) -> float:
        """Return for how long no byte has left; when all have, the time for the answers begins."""
        unsent = self._left_to_write()
        if not unsent:
            for message in self.writing:
                message.sent_at = now
            self.writing = []
            return 0.0
        if unsent != self._unsent_bytes:
            self._unsent_bytes = unsent
            self.moved_at = now
        return now - self.moved_at

    def _left_to_write(self) -> int:
        return 0 if self.pipeline is None else self.pipeline.unsent_bytes

    def attach(self, pipeline: Pipeline) -> Pipeline:
        """Begin a new connection: serial numbers and half-read answers belonged to the old one."""
        self.pipeline = pipeline
        self.reader = SendAnswerReader()
        self.serial_no = 0
        return pipeline

    def detach(self) -> "list[OutgoingMessage]":
        """Forget the connection and give up every message, oldest first."""
        self.pipeline = None
        left = [*self.in_flight.values(), *self.queue]
        self.in_flight.clear()
        self.queue.clear()
        self.writing = []
        self.held_bytes = 0
        return left

    def next_serial_no(self) -> int:
        """Count on, as Java's int does: from the largest number to the smallest."""
        self.serial_no = self.serial_no + 1 if self.serial_no != _SERIAL_MAX else _SERIAL_MIN
        return self.serial_no


class BrokerLinks:
    """The brokers of one producer, and which of them messages without key and partition pass over.

    A broker is passed over for a while after a failure (*avoided*), each time twice as long, until it stores
    a message again; and while it holds its share of the window (*crowded*), so that one slow broker leaves
    the other shares alone. A broker that failed has a share of one message until it stores one.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[int, Endpoint], BrokerLink] = {}
        self._avoided: dict[BrokerLink, float] = {}
        self._crowded: set[BrokerLink] = set()
        self.all: tuple[BrokerLink, ...] = ()
        """Every broker met so far."""
        self.passed_over: frozenset[int] = frozenset()
        """Ids of the brokers to pass over now."""
        self.failing: frozenset[int] = frozenset()
        """Ids of those to pass over even when no other is left: they have failed and not stored since."""

    def to(self, broker_id: int, endpoint: Endpoint) -> BrokerLink:
        """Return what stands for a broker, one for all its partitions."""
        link = self._links.get((broker_id, endpoint))
        if link is None:
            link = self._links[broker_id, endpoint] = BrokerLink(broker_id, endpoint)
            self.all = tuple(self._links.values())
        return link

    def avoid(self, link: BrokerLink, now: float) -> None:
        """Pass over a broker that failed; failures that come together count as one."""
        if link not in self._avoided:
            link.troubles += 1
            pause_s = min(_AVOID_AT_MOST_S, _AVOID_S * (1 << min(link.troubles - 1, 16)))
            self._avoided[link] = now + pause_s
            self._update()

    def forgive(self, now: float) -> None:
        """Turn again to brokers that were avoided long enough."""
        if self._avoided and min(self._avoided.values()) <= now:
            self._avoided = {link: end for link, end in self._avoided.items() if end > now}
            self._update()

    def works(self, link: BrokerLink) -> None:
        """Forget a broker's failures: it has stored a message."""
        link.troubles = 0
        self._avoided.pop(link, None)
        self._update()

    def crowd(self, link: BrokerLink) -> None:
        """Pass over a broker that holds its share."""
        if not link.crowded:
            link.crowded = True
            self._crowded.add(link)
            self._update()

    def uncrowd(self, link: BrokerLink) -> None:
        """Turn to a broker again that has become able to take messages."""
        if link.crowded:
            link.crowded = False
            self._crowded.remove(link)
            self._update()

    def _update(self) -> None:
        troubled = {link for link in self._crowded if link.troubles} | self._avoided.keys()
        self.failing = frozenset(link.broker_id for link in troubled)
        self.passed_over = frozenset(link.broker_id for link in self._crowded) | self.failing


class Destination:
    """One partition that a producer sends to, and what it has acknowledged."""

    __slots__ = (
        "count",
        "encoder",
        "first_offset",
        "last_offset",
        "link",
        "partition",
        "retried",
        "unanswered",
    )

    def __init__(self, partition: TopicPartition, link: BrokerLink) -> None:
        self.partition = partition
        self.link = link
        self.encoder: SendEncoder | None = None
        """Writes this partition's frames; it holds the visit token, so a new token needs a new one."""
        self.count = 0
        self.first_offset = -1
        self.last_offset = -1
        self.retried = 0
        self.unanswered = 0

    def acknowledge(self, offset: int, message: OutgoingMessage) -> None:
        """Count a stored message; answers may come in any order."""
        if offset > self.last_offset:
            self.last_offset = offset
        if offset < self.first_offset or not self.count:
            self.first_offset = offset
        self.count += 1
        if message.attempts > 1:
            self.retried += 1
            self.unanswered += message.unanswered

    def receipt(self) -> Receipt:
        """Return what was acknowledged so far."""
        return Receipt(
            self.partition, self.count, self.first_offset, self.last_offset, self.retried, self.unanswered
        )
