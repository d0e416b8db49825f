"""Compare a stream's offsets with what TubeMQ holds now, and say what changed or is missing."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.loss import Evidence, Loss, LossRecord
from tubemq_spark.offsets.marks import Place, place_of

_NO_EVIDENCE: Final[Mapping[Place, Evidence]] = {}


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
    replaced: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    """Known partitions whose logs were replaced, with the offsets at which they begin now."""


def audit(
    next_offsets: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    new_were_there: bool = False,
    replaced: Mapping[Place, Evidence] = _NO_EVIDENCE,
) -> Audit:
    """Compare known offsets with fetched bounds.

    A partition that exists but whose store has no bounds (its broker cannot be read now) is not a loss: it
    stays at its offset, and a new one is added once it can be read.

    A partition that appears in a store of which other partitions are known begins at the highest offset of
    these: nothing was written to it before it existed, so records below belong to the others. In a new store
    it begins at the earliest offset.

    ``partitions`` were asked for after the ends of the stores that ``next_offsets`` was planned with.
    ``new_were_there`` says that the user names each partition, or did so until now: what is new to the stream
    then begins at its store's earliest offset, as do all partitions of logs that were ``replaced``.
    """
    positions: dict[TopicPartition, int] = {}
    losses = removals(next_offsets, partitions)
    reached: dict[StoreId, int] = {}
    begun_again: dict[TopicPartition, int] = {}
    for partition in next_offsets.keys() & set(partitions):
        offset = positions[partition] = next_offsets[partition]
        store = partition.store_id
        span = bounds.get(store)
        evidence = replaced.get(place_of(partition))
        if span is not None and evidence is not None:
            positions[partition] = begun_again[partition] = reached[store] = span.earliest
            losses.append(LossRecord(Loss.REPLACED, partition, offset, offset, evidence=evidence))
            continue
        reached[store] = max(offset, reached.get(store, 0))
        if span is not None and not span.earliest <= offset <= span.latest:
            positions[partition], loss = _compare(partition, offset, span)
            losses.append(loss)
    new = set(partitions) - next_offsets.keys()
    if new_were_there:
        appeared, expired = _begin_new(new, {}, {}, bounds)
    else:
        appeared, expired = _begin_new(new, next_offsets, reached, bounds)
    losses += expired
    losses.sort(key=lambda loss: loss.partition)
    return Audit(positions | appeared, appeared, tuple(losses), begun_again)


def removals(
    next_offsets: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]
) -> list[LossRecord]:
    """Return a loss for every known partition that no longer exists."""
    gone = next_offsets.keys() - set(partitions)
    return [
        removal(partition, next_offsets[partition], next_offsets[partition], partitions)
        for partition in sorted(gone)
    ]


def removal(
    partition: TopicPartition, start: int, end: int, partitions: Collection[TopicPartition]
) -> LossRecord:
    """Return the loss of a partition that is not among those that exist."""
    topic_is_there = any(existing.topic == partition.topic for existing in partitions)
    loss = Loss.PARTITION_REMOVED if topic_is_there else Loss.TOPIC_REMOVED
    return LossRecord(loss, partition, start, end)


def stores_resumed_at_earliest(
    next_offsets: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    replaced: Collection[Place] = (),
) -> set[StoreId]:
    """Return the stores whose earliest offset is where reading would begin, or resume after a loss."""
    needed = {
        store
        for partition, offset in next_offsets.items()
        if (span := bounds.get(store := partition.store_id)) is not None
        and (offset < span.earliest or place_of(partition) in replaced)
    }
    new = set(partitions) - next_offsets.keys()
    if new:
        stores_known = {partition.store_id for partition in next_offsets}
        needed |= {partition.store_id for partition in new}.intersection(bounds) - stores_known
    return needed


def _compare(partition: TopicPartition, offset: int, span: OffsetBounds) -> tuple[int, LossRecord]:
    if offset < span.earliest:
        return span.earliest, LossRecord(Loss.EXPIRED, partition, offset, span.earliest)
    return span.latest, LossRecord(Loss.MOVED_BACK, partition, span.latest, offset)


def _begin_new(
    new: Collection[TopicPartition],
    next_offsets: Mapping[TopicPartition, int],
    reached: Mapping[StoreId, int],
    bounds: Mapping[StoreId, OffsetBounds],
) -> tuple[dict[TopicPartition, int], list[LossRecord]]:
    """Return where new partitions begin, and which of their records expired before the stream saw them.

    No one has asked for older records of a topic that is new to the stream (added to ``subscribe``); of a
    store that is new in a known topic, all records were asked for.
    """
    topics = {partition.topic for partition in next_offsets} if new else set()
    appeared: dict[TopicPartition, int] = {}
    losses = []
    for partition in sorted(new):
        store = partition.store_id
        span = bounds.get(store)
        if span is None:
            continue
        expected = reached.get(store, 0 if partition.topic in topics else span.earliest)
        appeared[partition] = min(max(expected, span.earliest), span.latest)
        if expected < span.earliest:
            losses.append(LossRecord(Loss.EXPIRED, partition, expected, span.earliest))
    return appeared, losses
