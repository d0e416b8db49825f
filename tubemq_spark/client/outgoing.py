"""What a producer keeps of its brokers, its partitions, and the messages not acknowledged yet."""

import collections
import dataclasses
from typing import Final

from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pipeline import Pipeline
from tubemq_spark.protocol.payload import Payload
from tubemq_spark.protocol.send import SendEncoder
from tubemq_spark.protocol.send_answers import SendAnswerReader

_SERIAL_MIN: Final = -(1 << 31)
_SERIAL_MAX: Final = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What brokers acknowledged for one partition.

    Other producers' messages, and copies made by a retry, may lie between the first and the last offset.
    """

    partition: TopicPartition
    count: int
    """Messages acknowledged, each counted once."""
    first_offset: int
    """Lowest append offset, in index bytes."""
    last_offset: int
    """Highest append offset, in index bytes: where that message begins, not where the next one will."""
    retried: int = 0
    """How many of ``count`` were sent more than once; those may be stored more than once."""


class BrokerLink:
    """One broker: what waits to be written to it, and what waits for its answer."""

    __slots__ = (
        "endpoint",
        "failures",
        "in_flight",
        "last_heard",
        "pipeline",
        "queue",
        "reader",
        "reconnect_at",
        "serial_no",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.queue: collections.deque[OutgoingMessage] = collections.deque()
        self.in_flight: dict[int, OutgoingMessage] = {}
        """By serial number, in the order of sending, so the first one times out first."""
        self.pipeline: Pipeline | None = None
        self.reader = SendAnswerReader()
        self.serial_no = 0
        self.failures = 0
        """Connections lost, or not made, since the last answer."""
        self.reconnect_at = 0.0
        self.last_heard = 0.0

    def attach(self, pipeline: Pipeline) -> Pipeline:
        """Begin a new connection: serial numbers and half-read answers belonged to the old one."""
        self.pipeline = pipeline
        self.reader = SendAnswerReader()
        self.serial_no = 0
        return pipeline

    def detach(self) -> list["OutgoingMessage"]:
        """Forget the connection and return every message it leaves unacknowledged, oldest first."""
        self.pipeline = None
        left = [*self.in_flight.values(), *self.queue]
        self.in_flight.clear()
        self.queue.clear()
        return left

    def next_serial_no(self) -> int:
        """Count on, as Java's int does: from the largest number to the smallest."""
        self.serial_no = self.serial_no + 1 if self.serial_no != _SERIAL_MAX else _SERIAL_MIN
        return self.serial_no


class BrokerLinks:
    """The brokers of one producer, by address; and those it had better leave alone for a while."""

    def __init__(self) -> None:
        self._links: dict[Endpoint, BrokerLink] = {}
        self.avoided: dict[int, float] = {}
        """Ids of brokers in trouble, each with the time on the window's clock when that is over."""

    @property
    def all(self) -> tuple[BrokerLink, ...]:
        """Every broker met so far."""
        return tuple(self._links.values())

    def to(self, endpoint: Endpoint) -> BrokerLink:
        """Return what stands for a broker, one for all its partitions."""
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = BrokerLink(endpoint)
        return link

    def avoid(self, broker_id: int, until: float) -> None:
        """Let round robin pass over a broker."""
        self.avoided[broker_id] = until

    def forgive(self, now: float) -> None:
        """Forget troubles that are over."""
        if self.avoided:
            self.avoided = {broker_id: end for broker_id, end in self.avoided.items() if end > now}


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

    def acknowledge(self, offset: int, *, retried: bool) -> None:
        """Count a stored message; answers may come in any order."""
        if offset > self.last_offset:
            self.last_offset = offset
        if offset < self.first_offset or not self.count:
            self.first_offset = offset
        self.count += 1
        self.retried += retried

    def receipt(self) -> Receipt:
        """Return what was acknowledged so far."""
        return Receipt(self.partition, self.count, self.first_offset, self.last_offset, self.retried)


class OutgoingMessage:
    """A message the producer accepted and no broker has acknowledged yet."""

    __slots__ = (
        "answer_by",
        "attempts",
        "destination",
        "failures",
        "give_up_at",
        "key",
        "message_time",
        "message_type",
        "named",
        "payload",
        "refreshed",
        "routing",
        "size",
    )

    def __init__(
        self,
        destination: Destination,
        routing: int,
        payload: Payload,
        message_type: str | None,
        message_time: str | None,
        key: bytes | None,
        named: bool,
    ) -> None:
        """Take a message and where it goes.

        Args:
            destination: where it goes first.
            routing: number of the topic's routing by which the destination was chosen.
            payload: what is stored.
            message_type: the type inside the payload's attributes.
            message_time: the time inside the payload's attributes.
            key: chooses the partition again when the routing changes.
            named: whether the caller named the partition, so that no other will do.
        """
        self.destination = destination
        self.routing = routing
        self.payload = payload
        self.size = len(payload.data)
        self.message_type = message_type
        self.message_time = message_time
        self.key = key
        self.named = named
        self.attempts = 0
        """How often it was handed to a connection."""
        self.failures = 0
        """How often that, or making the connection, came to nothing."""
        self.refreshed = False
        """Whether a refused attempt has made the master be asked for the routing again."""
        self.answer_by = 0.0
        self.give_up_at = 0.0
