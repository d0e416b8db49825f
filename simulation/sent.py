"""What producers sent, what they were told of it, and what brokers have: the laws of single messages."""

import collections
import dataclasses
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import simloom

from simulation.cluster import Cluster
from testkit.broker_model import Entry
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, StoreId, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import decode_payload
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, Int64s, MessageHeader, SendBatch
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

LATEST_S: Final = 0.51
"""Messages whose time is over are looked for that often."""
_UNCLEAR_EXCEPTIONS: Final = frozenset({"InvocationTargetException", "ServiceStoppingException"})
"""What brokers of these worlds answer after which a message may be stored, or not."""


class Copy(NamedTuple):
    """A message in a store, or that was there before its broker crashed."""

    partition: TopicPartition
    offset: int
    entry: Entry


@dataclasses.dataclass(slots=True, eq=False)
class Sent:
    """A message, and what was told of it."""

    value: bytes
    topic: str
    key: bytes | None
    named: tuple[int, int] | None
    message_type: str | None
    sender: int
    """All messages of a sender are accepted in the order of their numbers."""
    number: int
    offered_at: float
    accepted_by: float | None = None
    """When it was known to be accepted; None: it is not known."""
    refused: bool = False
    """Whether the caller was told that it was not accepted."""
    ended_at: float | None = None
    partition: TopicPartition | None = None
    """Where it is stored, if it is."""
    offset: int = -1
    details: tuple[int, int] | None = None
    error: TubeMQError | None = None
    attempts: int = 0
    unanswered: int = 0
    forgotten: bool = False
    """Whether the sender does not want to know its outcome, which is not known then."""

    def fail(self, error: TubeMQError) -> None:
        """Note why it is not stored."""
        self.error = error
        self.attempts = int(error.parameters.get("attempts", 0))
        self.unanswered = int(error.parameters.get("unanswered", 0))
        simloom.reached(error.condition)

    @property
    def is_bound(self) -> bool:
        """Whether a key or the sender says which partition it goes to."""
        return self.key is not None or self.named is not None


class Told:
    """Takes what becomes of the messages of a batch."""

    def __init__(self, world: simloom.World, messages: Sequence[Sent]) -> None:
        self._world = world
        self.messages = messages

    def has_ended(self, row: int) -> bool:
        """Whether a message has ended."""
        return self.messages[row].ended_at is not None

    def stored(
        self,
        rows: Sequence[int],
        partitions: Sequence[TopicPartition],
        offsets: Int64s,
        details: Details | None,
        attempts: int,
        unanswered: int,
    ) -> None:
        """Note where messages are stored."""
        assert len(offsets) == len(rows)
        assert len(partitions) in (1, len(rows))
        for place, row in enumerate(rows):
            message = self.messages[row]
            self._end(message)
            message.partition = partitions[place if len(partitions) > 1 else 0]
            message.offset = int(offsets[place])
            if details is not None:
                message.details = int(details[0][place]), int(details[1][place])
            message.attempts, message.unanswered = attempts, unanswered

    def failed(self, row: int, error: TubeMQError) -> None:
        """Note why a message is not stored."""
        message = self.messages[row]
        self._end(message)
        message.fail(error)

    def _end(self, message: Sent) -> None:
        assert message.ended_at is None, f"{message} has two outcomes"
        assert not message.refused, f"{message} was refused"
        message.ended_at = self._world.time


class _Target(NamedTuple):
    partition: TopicPartition


@functools.lru_cache(maxsize=64)
def partitioner(partitions: frozenset[TopicPartition]) -> Partitioner:
    """Return what says where keys belong."""
    return Partitioner([_Target(partition) for partition in partitions], 0)


class Ledger:
    """All messages of a producer."""

    def __init__(
        self,
        cluster: Cluster,
        delivery_s: float,
        *,
        keep_order: bool,
        retry_ambiguous: bool,
        knows_attempts: bool = True,
    ) -> None:
        """Begin with none; who does not know of each attempt says at least whether one was without answer."""
        self.messages: dict[bytes, Sent] = {}
        self._cluster = cluster
        self._delivery_s = delivery_s
        self._keep_order = keep_order
        self._retry_ambiguous = retry_ambiguous
        self._knows_attempts = knows_attempts

    def enter(self, message: Sent) -> Sent:
        """Take a message that is about to be sent."""
        self.messages[message.value] = message
        return message

    @property
    def ended(self) -> list[Sent]:
        """The messages that have an outcome."""
        return [message for message in self.messages.values() if message.ended_at is not None]

    @property
    def stored(self) -> list[Sent]:
        """The messages that are told to be stored."""
        return [message for message in self.messages.values() if message.partition is not None]

    def check(self) -> None:
        """Assert the laws of messages; nothing is under way."""
        copies = self._copies()
        assert self.messages.keys() >= copies.keys(), f"never sent: {copies.keys() - self.messages.keys()}"
        for value, message in self.messages.items():
            self._check_end(message)
            self._check_copies(message, copies[value])
        self._check_order(copies)

    def check_counts(
        self, receipts: Iterable[Receipt], statistics: ProducerStatistics, *, sums: bool
    ) -> None:
        """Assert that receipts and statistics add up to what was told."""
        if any(message.forgotten for message in self.messages.values()):
            return
        by_partition: dict[TopicPartition, list[Sent]] = collections.defaultdict(list)
        for message in self.stored:
            assert message.partition is not None
            by_partition[message.partition].append(message)
        expected = [_receipt(partition, some, sums) for partition, some in sorted(by_partition.items())]
        assert list(receipts) == expected, f"{receipts} instead of {expected}"
        if not self._knows_attempts:
            return
        ended = self.ended
        assert statistics.stored == len(self.stored)
        assert statistics.requests == sum(message.attempts for message in ended)
        assert statistics.retries == sum(max(0, message.attempts - 1) for message in ended)
        unclear = sum(
            broker.unanswered
            + sum(count for code, count in broker.refused.items() if _is_unclear(code))
            + sum(count for name, count in broker.exceptions.items() if name in _UNCLEAR_EXCEPTIONS)
            for broker in statistics.brokers
        )
        assert unclear == sum(message.unanswered for message in ended)

    def _check_end(self, message: Sent) -> None:
        if message.accepted_by is None:
            return
        assert message.ended_at is not None, f"{message} has no outcome"
        took_s = message.ended_at - message.accepted_by
        assert took_s <= self._delivery_s + LATEST_S, f"{message} ended after {took_s} s"

    def _check_copies(self, message: Sent, copies: Sequence[Copy]) -> None:
        for copy in copies:
            assert copy.partition.topic == message.topic, (message, copy)
            assert message.named in (None, copy.partition[1:]), (message, copy)
            assert copy.entry.message_type == (message.message_type or ""), (message, copy)
            if message.key is not None and message.named is None:
                assert copy.partition in self._places_of(message), f"{copy} is not where its key belongs"
        most = message.unanswered
        if message.partition is not None:
            there = [copy for copy in copies if copy[:2] == (message.partition, message.offset)]
            assert there, f"{message} is not there, but {copies}"
            if message.details is not None:
                assert message.details[0] in {copy.entry.message_id for copy in there}, (message, there)
            most += 1
        elif message.error is not None and message.error.condition == "TUBEMQ_SEND_FAILED":
            assert not message.unanswered, message
        elif message.error is not None and message.error.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS":
            assert message.unanswered, message
        assert message.ended_at is not None or not copies, f"{message} was not accepted, but {copies}"
        if self._cannot_count(message):
            assert message.error is None or message.error.may_be_stored or not copies, (message, copies)
            return
        if message.unanswered and not self._knows_attempts:
            return
        assert len(copies) <= most, f"{message} is there {len(copies)} times: {copies}"
        if not self._retry_ambiguous:
            assert message.unanswered <= (message.partition is None), message

    def _cannot_count(self, message: Sent) -> bool:
        """Whether a message's outcome does not say how often it may be stored."""
        return message.forgotten or (
            message.error is not None and message.error.condition == "TUBEMQ_MESSAGE_ABANDONED"
        )

    def _places_of(self, message: Sent) -> set[TopicPartition]:
        """Return where a key has belonged until the message had its outcome."""
        return {
            partitioner(partitions).by_key(message.key or b"").partition
            for since, partitions in self._cluster.listings(message.topic)
            if partitions and (message.ended_at is None or since <= message.ended_at)
        }

    def _check_order(self, copies: dict[bytes, list[Copy]]) -> None:
        if not self._keep_order:
            return
        latest: dict[tuple[int, TopicPartition], int] = collections.defaultdict(int)
        for message in sorted(self.stored, key=lambda message: message.number):
            assert message.partition is not None
            if not message.is_bound:
                continue
            line = message.sender, message.partition
            its = [copy for copy in copies[message.value] if copy.partition == message.partition]
            first = min(copy.entry.sent_as for copy in its)
            assert first > latest[line], f"{message} overtook another one"
            acknowledged = [copy.entry.sent_as for copy in its if copy.offset == message.offset]
            if message.unanswered and not self._knows_attempts:
                # Those behind it were sent again too, and may have been stored before that.
                acknowledged.append(first)
            latest[line] = max(latest[line], min(acknowledged))

    def _copies(self) -> dict[bytes, list[Copy]]:
        copies: dict[bytes, list[Copy]] = collections.defaultdict(list)
        for store, number, entry in self._entries():
            partition = TopicPartition(store.topic, store.broker_id, entry.partition_id)
            value = decode_payload(entry.value, entry.flag).value
            copies[value].append(Copy(partition, number * INDEX_ENTRY_BYTES, entry))
        return copies

    def _entries(self) -> Iterator[tuple[StoreId, int, Entry]]:
        for broker in self._cluster.brokers:
            for store_id, log in broker.model.stores.items():
                yield from ((store_id, number, entry) for number, entry in enumerate(log.entries))
            yield from broker.model.lost_entries


def batch_of(messages: Sequence[Sent], *, checksums: bool = False) -> OutgoingBatch:
    """Return messages as a producer accepts them."""
    topics = tuple(dict.fromkeys(message.topic for message in messages))
    headers = [
        MessageHeader({"n": "1"} if message.number % 3 else None, message.message_type)
        for message in messages
    ]
    keys = [message.key for message in messages]
    keyless = np.array([key is None for key in keys])
    named = [message.named for message in messages]
    outgoing, unwritable = outgoing_batch(
        SendBatch(
            Coded(topics, np.array([topics.index(message.topic) for message in messages])),
            BytesColumn.of([message.value for message in messages]),
            Coded(tuple(headers), np.arange(len(headers))),
            None
            if keyless.all()
            else BytesColumn(*BytesColumn.of([key or b"" for key in keys])[:2], keyless),
            Coded(tuple(named), np.arange(len(named))) if any(named) else None,
        ),
        checksums=checksums,
    )
    assert not unwritable
    return outgoing


def _is_unclear(code: int) -> bool:
    return not 400 <= code < 500 and code != ErrCode.SERVICE_UNAVAILABLE


def _receipt(partition: TopicPartition, some: Sequence[Sent], sums: bool) -> Receipt:
    offsets = [message.offset for message in some]
    again = [message for message in some if message.attempts > 1]
    return Receipt(
        partition,
        len(some),
        min(offsets),
        max(offsets),
        len(again),
        sum(message.unanswered for message in again),
        sum(len(message.value) for message in some),
        sum(zlib.crc32(message.value) for message in some) % CHECKSUM_MODULUS if sums else None,
    )
