"""One trigger of a stream as a function of values: from where it stands to where its micro-batch ends."""

from collections.abc import Collection, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.admission import admit
from tubemq_spark.offsets.audit import audit
from tubemq_spark.offsets.loss import Loss, LossPolicy
from tubemq_spark.offsets.positions import resolve
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset


def next_offset(
    start: StreamOffset,
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    on_loss: LossPolicy,
    max_rows: int | None = None,
    target: Mapping[StoreId, int] | None = None,
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
        target: where ``Trigger.AvailableNow`` stops, fixed when it began, in index bytes; stores that
            were not there then are not read. None for the other triggers.

    Raises:
        OptionError: the token does not fit the partitions or the log, see ``resolve``.
        TubeMQConnectionError: a token is to be resolved, and the bounds of a store are not known.
        DataLossError: by the policy.
    """
    first: dict[TopicPartition, int] = {}
    if isinstance(start, StartToken):
        first = resolve(start.position, partitions, bounds, option="startingOffsets", on_loss=on_loss)
    found = audit({**start.next_offsets, **first}, partitions, bounds)
    for loss in found.losses:
        loss.report(on_loss)
    latest = {store: held.latest for store, held in bounds.items()}
    if target is not None:
        _check_target(found.positions, latest, target, on_loss)
        latest = {store: min(end, target[store]) for store, end in latest.items() if store in target}
    next_offsets = admit(found.positions, latest, max_rows)
    if isinstance(start, SourceOffset) and next_offsets == start.next_offsets:
        return start
    return SourceOffset(next_offsets, {**first, **found.appeared})


def _check_target(
    positions: Mapping[TopicPartition, int],
    latest: Mapping[StoreId, int],
    target: Mapping[StoreId, int],
    on_loss: LossPolicy,
) -> None:
    """Report stores that lost records which the target counts on."""
    for partition in sorted(positions):
        store = partition.store_id
        if store in latest and latest[store] < target.get(store, 0):
            on_loss(Loss.TRUNCATED, partition, latest[store], target[store])
