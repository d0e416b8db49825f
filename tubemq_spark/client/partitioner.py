"""Which of a topic's partitions a message goes to: named by the caller, by its key, or in turn."""

import itertools
import zlib
from collections.abc import Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar

from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition

_LISTED_PARTITIONS: Final = 40
"""An error names at most this many existing partitions."""


class HasPartition(Protocol):
    """Anything that stands for one partition."""

    @property
    def partition(self) -> TopicPartition:
        """The partition it stands for."""


Target = TypeVar("Target", bound=HasPartition)


class Partitioner(Generic[Target]):
    """Chooses among the partitions one topic can be published to now; there is at least one.

    All producers that see the same partitions choose the same one for a key, in any process and on any
    platform (CRC-32 of the key, modulo the number of partitions, in the order of broker and partition
    id). When partitions are added or removed, keys move.
    """

    def __init__(self, topic: str, targets: Iterable[Target], first_turn: int) -> None:
        """Begin the round robin at ``first_turn``: tasks that all begin at 0 would fill partition 0 first."""
        self._topic = topic
        self._targets = sorted(targets, key=lambda target: target.partition)
        self._by_id = {
            (target.partition.broker_id, target.partition.partition_id): target for target in self._targets
        }
        first = first_turn % len(self._targets)
        self._turns = itertools.cycle(self._targets[first:] + self._targets[:first])

    @property
    def targets(self) -> tuple[Target, ...]:
        """All partitions, by broker and partition id."""
        return tuple(self._targets)

    def by_turn(self, avoided_brokers: Collection[int] = ()) -> Target:
        """Return the next partition, passing over brokers that are in trouble unless all are."""
        target = next(self._turns)
        if not avoided_brokers:
            return target
        passed_over = 0
        while target.partition.broker_id in avoided_brokers and passed_over < len(self._targets):
            target = next(self._turns)
            passed_over += 1
        return target

    def by_key(self, key: bytes) -> Target:
        """Return the partition of a key."""
        return self._targets[zlib.crc32(key) % len(self._targets)]

    def by_id(self, broker_id: int, partition_id: int) -> Target:
        """Return the partition the caller named.

        Raises:
            ProduceError: it does not exist, or cannot be published to.
        """
        target = self._by_id.get((broker_id, partition_id))
        if target is None:
            raise ProduceError(
                "TUBEMQ_PARTITION_UNKNOWN",
                topic=self._topic,
                partition=f"{broker_id}:{partition_id}",
                existing=self._listed(),
            )
        return target

    def _listed(self) -> str:
        names = [target.partition.local_id for target in self._targets[:_LISTED_PARTITIONS]]
        more = len(self._targets) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")
