"""One trigger of a stream as a function of values: from where it stands to where its micro-batch ends."""

from collections.abc import Collection, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.admission import admit
from tubemq_spark.offsets.audit import Audit, audit, removal
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.positions import resolve
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset


def next_offset(
    start: StreamOffset,
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    on_loss: LossPolicy,
    max_rows: int | None = None,
    target: Mapping[TopicPartition, int] | None = None,
) -> SourceOffset:
    """Return the end of the next micro-batch; ``start`` itself when there is nothing new.

    New are records, but also a token that gets resolved and a partition that appears, though they may
    bring no records yet: Spark writes down where they begin only when the offset changes.

    Args:
        start: where the stream stands.
        partitions: all partitions of its topics, also those that cannot be read now.
        bounds: what their stores hold, as far as brokers answered.
        on_loss: what to do about records that are gone.
        max_rows: the most rows of the micro-batch, see ``admit``; None takes all there is.
        target: where ``Trigger.AvailableNow`` stops, fixed when it began, in index bytes, for every
            partition that was there then; stores that were not there are not read, and those whose broker
            does not answer now are read all the same: their tasks wait for it. None for the other triggers.

    Raises:
        OptionError: the token does not fit the partitions or the log, see ``resolve``.
        TubeMQConnectionError: a token is to be resolved, and the bounds of a store are not known.
        DataLossError: by the policy.
    """
    first: Mapping[TopicPartition, int] = {}
    if isinstance(start, StartToken):
        first = resolve(start.position, partitions, bounds, option="startingOffsets", on_loss=on_loss)
    found = audit(first or start.next_offsets, partitions, bounds)
    for loss in found.losses:
        on_loss(loss)
    latest = {store: held.latest for store, held in bounds.items()}
    if target is not None:
        _check_target(found, partitions, latest, target, on_loss)
        ends = {partition.store_id: end for partition, end in target.items()}
        # Also of a store without bounds: the run is not over before it has read that one, too.
        latest = {store: min(end, latest.get(store, end)) for store, end in ends.items()}
    next_offsets = admit(found.positions, latest, max_rows)
    if isinstance(start, SourceOffset) and next_offsets == start.next_offsets:
        return start
    return SourceOffset(next_offsets, {**first, **found.appeared})


def _check_target(
    found: Audit,
    partitions: Collection[TopicPartition],
    latest: Mapping[StoreId, int],
    target: Mapping[TopicPartition, int],
    on_loss: LossPolicy,
) -> None:
    """Report what the target counts on and what is gone since: records, or a whole partition."""
    told = {loss.partition for loss in found.losses}
    existing = set(partitions)
    for partition, end in sorted(target.items()):
        held_to = latest.get(partition.store_id, end)
        if partition not in existing and partition not in told:
            on_loss(removal(partition, end, end, partitions))
        elif partition in found.positions and held_to < end:
            on_loss(LossRecord(Loss.TRUNCATED, partition, held_to, end))
