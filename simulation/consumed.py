"""What a group was sent, what it was given, and where its brokers say that it stands: the laws of consumers.

The ledger of a group sees each move of the group at each broker, and each batch that a member hands out. A
move over messages that no user has confirmed is a loss, unless someone has told the group to go there, the
broker has lost messages, or a request came in behind later ones: TubeMQ's requests name no offset.
"""

import collections
import functools
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import simloom

from simulation.cluster import Broker, Cluster, Move
from testkit.broker_model import Entry, Store
from tubemq_spark.client.consumer.values import Batch
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.payload import decode_payload

_EVERY_PARTITION: Final = TopicPartition("", 0, 0)


class Numbered(NamedTuple):
    """A message that a group wants, and its place in its store."""

    number: int
    value: bytes


class GroupLedger:
    """All that is known of one group."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        types: frozenset[str],
        *,
        rollback: bool,
        locally: bool,
        by_master: bool,
    ) -> None:
        self.group = group
        self.types = types
        self.handed_out: dict[bytes, float] = {}
        """Every message that some user had, and when it was handed out last."""
        self.confirmations: collections.Counter[bytes] = collections.Counter()
        """For each message, how many confirmations of users were not refused."""
        self.again: dict[bytes, float] = {}
        """Messages that may come again although they were confirmed, and since when."""
        self.excused: set[bytes] = set()
        """Messages that may never come."""
        self.turns_back: collections.Counter[TopicPartition] = collections.Counter()
        """How often a partition may have gone back."""
        self._cluster = cluster
        self._rollback = rollback
        self._locally = locally
        self._by_master = by_master
        self._told: dict[TopicPartition, set[str]] = collections.defaultdict(set)
        self._highest: collections.Counter[TopicPartition] = collections.Counter()
        self._refilled: collections.Counter[TopicPartition] = collections.Counter()
        """Behind a crash, a store may end before the group's position: so far it hears of no messages."""
        self._seen_to: collections.Counter[TopicPartition] = collections.Counter()
        """Before this entry of its store all messages of a partition may be passed."""

    # What goes on.

    def note_stored(self, partition: TopicPartition, number: int, value: bytes) -> None:
        """Take note of a message that was stored."""
        if number * INDEX_ENTRY_BYTES < self._refilled[partition]:
            self.excused.add(value)

    def tell(self, client_id: str, partition: TopicPartition = _EVERY_PARTITION) -> None:
        """Take note that a member is told to go elsewhere in a partition, or in all."""
        self._told[partition].add(client_id)
        self.turns_back[partition] += 1

    def note_move(self, move: Move) -> None:
        """Assert that a group may stand where it does now."""
        if move.group != self.group:
            return
        before, after = move.before, move.after
        self._highest[move.partition] = max(self._highest[move.partition], before, after)
        passed = list(self._wanted(move.partition, before, after))
        if move.how == "crash":
            self._note_crash(move)
        elif move.is_late or self._is_told(move):
            self.excused.update(message.value for message in passed)
            self._note_turn(move)
            if move.is_late:
                # What was in flight is not what the member believes.
                self.excused.update(message.value for message in self._wanted(move.partition))
                self.again |= dict.fromkeys(self.excused, self._now)
        elif self._by_master and move.how == "register" and not move.is_holders:
            raise AssertionError(f"a member takes a partition elsewhere than where its group stands: {move}")
        elif after < before:
            self.turns_back[move.partition] += 1
            if self._locally:  # it stands there for a moment, to see where a batch has ended
                return
            back = [message.value for message in self._wanted(move.partition, after, before)]
            if self._by_master and move.how == "register":
                assert not any(map(self._is_confirmed, back)), f"went back over {back}: {move}"
        else:
            lost = [message for message in passed if not self._may_be_passed(message.value)]
            assert not lost, f"went over {lost}, which no user has confirmed: {move}"

    def note_reset(self, partition: TopicPartition, before: int, after: int) -> None:
        """Take note that an administrator has moved the group."""
        self.excused.update(message.value for message in self._wanted(partition, before, after))
        move = Move(self.group, partition, "reset", "", before, after, is_late=False, is_holders=False)
        self._note_turn(move)

    # What users see.

    def note_batch(self, batch: Batch) -> list[bytes]:
        """Assert that a batch is what comes next, and return its messages."""
        partition, values, now = batch.partition, [record.value for record in batch.records], self._now
        assert values, f"an empty batch: {batch}"
        log = self._log(partition)
        unseen = list(self._wanted(partition, self._seen_to[partition] * INDEX_ENTRY_BYTES))
        numbers = {message.value: message.number for message in unseen}
        if not all(value in numbers for value in values):
            numbers = {message.value: message.number for message in self._wanted(partition)}
        if all(value in numbers for value in values):
            places = [numbers[value] for value in values]
            assert places == sorted(set(places)), f"not in order: {values} at {places}"
            between = [message for message in numbers if places[0] <= numbers[message] <= places[-1]]
            assert between == values, f"a batch has gaps: {values} of {between}"
            skipped = [
                value
                for value, number in numbers.items()
                if log.first <= number < places[0] and not self._may_be_passed(value)
            ]
            assert not skipped, f"passed over {skipped} before {values} of {partition}"
            self._seen_to[partition] = max(self._seen_to[partition], places[0])
        else:
            lost = self._lost(partition)
            strange = [value for value in values if value not in numbers and value not in lost]
            assert not strange, f"{strange} are not of {partition}, or not wanted"
        self.handed_out |= dict.fromkeys(values, now)
        return values

    def check_loss(self, loss: LossRecord) -> None:
        """Assert that what is told of a loss is true."""
        simloom.reached(loss.loss.name)
        broker = self._broker(loss.partition)
        log = self._log(loss.partition)
        numbers = range(loss.start // INDEX_ENTRY_BYTES, -(-loss.end // INDEX_ENTRY_BYTES))
        assert numbers, loss
        if loss.loss is Loss.EXPIRED:
            assert numbers[-1] < log.first, f"{loss} is not true: it begins at {log.first}"
        elif loss.loss is Loss.MOVED_BACK:
            assert broker.model.lost[loss.partition.store_id], f"{loss} is not true"
        elif loss.loss is Loss.CORRUPT:
            # Where it ends is counted in messages, and others may be between them.
            damaged = (
                entry
                for entry in log.entries[numbers[0] :]
                if not entry.sound and entry.partition_id == loss.partition.partition_id
            )
            lost = broker.model.lost[loss.partition.store_id]
            assert lost or any(damaged), f"{loss} is not true"

    def missing(self) -> list[tuple[TopicPartition, Numbered]]:
        """Return the messages that are there and were not handed out, but should be."""
        return [
            (partition, message)
            for partition in self.partitions()
            for message in self._wanted(partition, self._log(partition).earliest)
            if message.value not in self.handed_out and message.value not in self.excused
        ]

    def has(self, partition: TopicPartition, value: bytes) -> bool:
        """Return whether a message was handed out, or need not be."""
        is_wanted = any(message.value == value for message in self._wanted(partition))
        return not is_wanted or value in self.handed_out or value in self.excused

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics."""
        directory = self._cluster.directory
        return [partition for topic in directory.topics for partition in directory.partitions(topic)]

    # What follows.

    def _note_crash(self, move: Move) -> None:
        """Take note that a broker forgets where the group stood, and loses what was not flushed."""
        log = self._log(move.partition)
        self._note_turn(move)
        self._seen_to[move.partition] = 0
        if log.flushed < len(log.entries) and log.flushed * INDEX_ENTRY_BYTES < self._highest[move.partition]:
            self._refilled[move.partition] = max(
                self._refilled[move.partition], self._highest[move.partition]
            )

    def _note_turn(self, move: Move) -> None:
        if move.after < move.before or move.is_late:
            self.turns_back[move.partition] += 1
            back = self._wanted(move.partition, move.after, move.before)
            self.again |= dict.fromkeys((message.value for message in back), self._now)

    def _is_told(self, move: Move) -> bool:
        client_ids = self._told[move.partition] | self._told[_EVERY_PARTITION]
        return move.how == "register" and move.client_id in client_ids

    def _may_be_passed(self, value: bytes) -> bool:
        if value in self.excused or self._is_confirmed(value):
            return True
        return not self._rollback and value in self.handed_out

    def _is_confirmed(self, value: bytes) -> bool:
        return self.confirmations[value] > 0

    def _wanted(
        self, partition: TopicPartition, start: int = 0, end: int | None = None
    ) -> Iterator[Numbered]:
        """Yield the messages that the group can be given, in index bytes from a start to an end."""
        log = self._log(partition)
        stop = len(log.entries) if end is None else min(len(log.entries), -(-end // INDEX_ENTRY_BYTES))
        first = start // INDEX_ENTRY_BYTES if end is None else max(log.first, start // INDEX_ENTRY_BYTES)
        for number in range(first, stop):
            entry = log.entries[number]
            if entry.partition_id == partition.partition_id and self._wants(entry):
                yield Numbered(number, value_of(entry.value, entry.flag))

    def _wants(self, entry: Entry) -> bool:
        return entry.sound and entry.readable and (not self.types or entry.message_type in self.types)

    def _lost(self, partition: TopicPartition) -> set[bytes]:
        """Return what crashes have taken of a partition."""
        return {
            value_of(entry.value, entry.flag)
            for store, _, entry in self._broker(partition).model.lost_entries
            if store == partition.store_id and entry.partition_id == partition.partition_id
        }

    def _log(self, partition: TopicPartition) -> Store:
        return self._broker(partition).model.stores[partition.store_id]

    def _broker(self, partition: TopicPartition) -> Broker:
        return self._cluster.brokers[partition.broker_id - 1]

    @property
    def _now(self) -> float:
        return self._cluster.world.time


@functools.lru_cache(maxsize=1 << 14)
def value_of(data: bytes, flag: int) -> bytes:
    """Return the body of a message."""
    return decode_payload(data, flag).value


def watch(cluster: Cluster, ledgers: Iterable[GroupLedger]) -> None:
    """Tell ledgers of all that brokers do."""
    several = list(ledgers)

    def on_move(move: Move) -> None:
        for ledger in several:
            ledger.note_move(move)

    for broker in cluster.brokers:
        broker.model.on_move = on_move
