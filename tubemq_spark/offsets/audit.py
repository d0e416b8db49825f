"""Compare a stream's offsets with what TubeMQ holds now, and say what changed or is missing."""

import dataclasses
from collections.abc import Collection, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """What a comparison found."""

    positions: Mapping[TopicPartition, int]
    """Where reading resumes if the losses are tolerated, in index bytes: of all partitions that exist and
    that the stream knows or can begin to read now."""
    appeared: Mapping[TopicPartition, int]
    """Partitions that the stream did not know, with the offsets at which they begin."""
    losses: tuple[LossRecord, ...]
    """Records that are gone, ordered by partition; for the caller's policy."""


def audit(
    known: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    chosen_one_by_one: bool = False,
) -> Audit:
    """Compare known offsets with fetched bounds.

    A partition that exists but whose store has no bounds (its broker cannot be read now) is not a loss: it
    stays at its offset, and a new one is added once it can be read.

    A partition that appears in a store of which other partitions are known begins at the highest offset of
    these: nobody could write to it before it existed, so records below belong to the others. In a new store
    it begins at the earliest offset.

    Args:
        known: the next offset of every partition the stream knows, in index bytes.
        partitions: all partitions that exist now, including those that cannot be read now. They were asked
            for after the ends of the stores that ``known`` was planned with.
        bounds: what the stores hold, as far as brokers answered.
        chosen_one_by_one: whether the user names each partition. One that is new to the stream was there
            before, so it begins at its store's earliest offset.
    """
    positions: dict[TopicPartition, int] = {}
    losses = removals(known, partitions)
    reached: dict[StoreId, int] = {}
    for partition in known.keys() & set(partitions):
        offset = positions[partition] = known[partition]
        store = partition.store_id
        reached[store] = max(offset, reached.get(store, 0))
        held = bounds.get(store)
        if held is not None and not held.earliest <= offset <= held.latest:
            positions[partition], loss = _compare(partition, offset, held)
            losses.append(loss)
    new = set(partitions) - known.keys()
    if chosen_one_by_one:
        appeared, expired = _begin_new(new, {}, {}, bounds)
    else:
        appeared, expired = _begin_new(new, known, reached, bounds)
    losses += expired
    losses.sort(key=lambda loss: loss.partition)
    return Audit(positions | appeared, appeared, tuple(losses))


def removals(known: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> list[LossRecord]:
    """Return a loss for every known partition that no longer exists."""
    gone = known.keys() - set(partitions)
    return [removal(partition, known[partition], known[partition], partitions) for partition in sorted(gone)]


def removal(
    partition: TopicPartition, start: int, end: int, partitions: Collection[TopicPartition]
) -> LossRecord:
    """Return the loss of a partition that is not among those that exist."""
    topic_is_there = any(existing.topic == partition.topic for existing in partitions)
    loss = Loss.PARTITION_REMOVED if topic_is_there else Loss.TOPIC_REMOVED
    return LossRecord(loss, partition, start, end)


def stores_resumed_at_earliest(
    known: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
) -> set[StoreId]:
    """Return the stores whose earliest offset is where reading would begin, or resume after a loss."""
    needed = {
        store
        for partition, offset in known.items()
        if (held := bounds.get(store := partition.store_id)) is not None and offset < held.earliest
    }
    new = set(partitions) - known.keys()
    if new:
        stores_known = {partition.store_id for partition in known}
        needed |= {partition.store_id for partition in new}.intersection(bounds) - stores_known
    return needed


def _compare(partition: TopicPartition, offset: int, held: OffsetBounds) -> tuple[int, LossRecord]:
    if offset < held.earliest:
        return held.earliest, LossRecord(Loss.EXPIRED, partition, offset, held.earliest)
    return held.latest, LossRecord(Loss.MOVED_BACK, partition, held.latest, offset)


def _begin_new(
    new: Collection[TopicPartition],
    known: Mapping[TopicPartition, int],
    reached: Mapping[StoreId, int],
    bounds: Mapping[StoreId, OffsetBounds],
) -> tuple[dict[TopicPartition, int], list[LossRecord]]:
    """Return where new partitions begin, and which of their records expired before the stream saw them.

    Nobody has asked for older records of a topic that is new to the stream (added to ``subscribe``); of a
    store that is new in a known topic, all records were asked for.
    """
    topics = {partition.topic for partition in known} if new else set()
    appeared: dict[TopicPartition, int] = {}
    losses = []
    for partition in sorted(new):
        store = partition.store_id
        held = bounds.get(store)
        if held is None:
            continue
        expected = reached.get(store, 0 if partition.topic in topics else held.earliest)
        appeared[partition] = min(max(expected, held.earliest), held.latest)
        if expected < held.earliest:
            losses.append(LossRecord(Loss.EXPIRED, partition, expected, held.earliest))
    return appeared, losses
