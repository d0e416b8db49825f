"""Compare where a stream stands with what TubeMQ holds now, and say what changed or is missing."""

import dataclasses
from collections.abc import Collection, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """What a comparison found."""

    positions: Mapping[TopicPartition, int]
    """Where reading goes on once the losses are tolerated, in index bytes: all partitions that exist
    and that the stream knows or can take up now."""
    appeared: Mapping[TopicPartition, int]
    """Partitions the stream did not know, with where they begin: the earliest offset of their store."""
    losses: tuple[LossRecord, ...]
    """Records that are gone, by partition; for the caller's policy."""


def audit(
    known: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
) -> Audit:
    """Compare known offsets with fetched bounds.

    A partition that exists but whose store has no bounds (its broker cannot be read now) is no loss:
    it stays where it is, and a new one is taken up once it can be read.

    Args:
        known: the next offset of every partition the stream knows, in index bytes.
        partitions: all partitions that exist now, also those that cannot be read now.
        bounds: what the stores hold, as far as brokers answered.
    """
    positions: dict[TopicPartition, int] = {}
    losses = removals(known, partitions)
    for partition in sorted(known.keys() & set(partitions)):
        held = bounds.get(partition.store_id)
        if held is None:
            positions[partition] = known[partition]
        else:
            positions[partition] = min(max(known[partition], held.earliest), held.latest)
            losses += _compare(partition, known[partition], held)
    appeared = {
        partition: bounds[partition.store_id].earliest
        for partition in sorted(set(partitions) - known.keys())
        if partition.store_id in bounds
    }
    losses += _expired_unseen(known, appeared)
    losses.sort(key=lambda loss: loss.partition)
    return Audit(positions | appeared, appeared, tuple(losses))


def removals(known: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> list[LossRecord]:
    """Return a loss for every known partition that does not exist any more."""
    existing = set(partitions)
    topics = {partition.topic for partition in existing}
    return [
        LossRecord(
            Loss.PARTITION_REMOVED if partition.topic in topics else Loss.TOPIC_REMOVED,
            partition,
            known[partition],
            known[partition],
        )
        for partition in sorted(known.keys() - existing)
    ]


def _compare(partition: TopicPartition, offset: int, held: OffsetBounds) -> list[LossRecord]:
    if offset < held.earliest:
        return [LossRecord(Loss.EXPIRED, partition, offset, held.earliest)]
    if offset > held.latest:
        return [LossRecord(Loss.MOVED_BACK, partition, held.latest, offset)]
    return []


def _expired_unseen(
    known: Mapping[TopicPartition, int], appeared: Mapping[TopicPartition, int]
) -> list[LossRecord]:
    """Return losses of new partitions whose first records may have expired before the stream saw them.

    Their store can tell: such records lie beyond what the stream has read there, or anywhere in a
    store that is new to a known topic. Of a topic that is new to the stream (added to ``subscribe``)
    nobody has asked for older records.
    """
    topics = {partition.topic for partition in known}
    read_up_to: dict[StoreId, int] = {}
    for partition, offset in known.items():
        read_up_to[partition.store_id] = min(offset, read_up_to.get(partition.store_id, offset))
    return [
        LossRecord(Loss.EXPIRED, partition, expected, earliest)
        for partition, earliest in appeared.items()
        if partition.topic in topics and (expected := read_up_to.get(partition.store_id, 0)) < earliest
    ]
