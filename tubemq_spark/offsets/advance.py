"""One trigger of a stream as a function of values: from its current offset to the end of its micro-batch."""

from collections.abc import Collection, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.admission import admit
from tubemq_spark.offsets.audit import Audit, audit, removal
from tubemq_spark.offsets.loss import Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.offset_spec import resolve
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset


def next_offset(
    start: StreamOffset,
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    on_loss: LossPolicy,
    max_rows: int | None = None,
    min_rows: int = 0,
    target: Mapping[TopicPartition, int] | None = None,
    chosen_one_by_one: bool = False,
) -> SourceOffset:
    """Return the end of the next micro-batch; ``start`` itself when there is nothing new.

    New are records, but also a token that is resolved and a partition that appears, even without records:
    Spark writes down where they begin only when the offset changes.

    Args:
        start: the stream's current offset.
        partitions: all partitions of its topics, including those that cannot be read now.
        bounds: what their stores hold, as far as brokers answered.
        on_loss: what to do about records that are gone.
        max_rows: the maximum of rows in the micro-batch, see ``admit``; None admits all there is.
        min_rows: no row is admitted as long as there are fewer.
        target: where ``Trigger.AvailableNow`` stops, fixed when it began, in index bytes, for every partition
            that existed then. Stores that did not exist then are not read; those whose broker does not answer
            now are read nevertheless: their tasks wait for it. None for the other triggers.
        chosen_one_by_one: see ``audit``.

    Raises:
        OptionError: the token does not fit the partitions or the log, see ``resolve``.
        TubeMQConnectionError: a token must be resolved, and the bounds of a store are unknown.
        DataLossError: by the policy.
    """
    first: Mapping[TopicPartition, int] = {}
    if isinstance(start, StartToken):
        first = resolve(start.spec, partitions, bounds, option="startingOffsets", on_loss=on_loss)
    found = audit(first or start.next_offsets, partitions, bounds, chosen_one_by_one=chosen_one_by_one)
    for loss in found.losses:
        on_loss(loss)
    latest = {store: held.latest for store, held in bounds.items()}
    if target is not None:
        _check_target(found, partitions, latest, target, on_loss)
        ends = {partition.store_id: end for partition, end in target.items()}
        # Including stores without bounds: the run is not over before it has read them too.
        latest = {store: min(end, latest.get(store, end)) for store, end in ends.items()}
    next_offsets = admit(found.positions, latest, max_rows, min_rows)
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
    """Report what the target includes and has been lost since: records, or a whole partition."""
    reported = {loss.partition for loss in found.losses}
    existing = set(partitions)
    for partition, end in sorted(target.items()):
        held_to = latest.get(partition.store_id, end)
        if partition not in existing and partition not in reported:
            on_loss(removal(partition, end, end, partitions))
        elif partition in found.positions and held_to < end:
            on_loss(LossRecord(Loss.TRUNCATED, partition, held_to, end))
