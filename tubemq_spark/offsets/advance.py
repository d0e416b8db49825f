"""One trigger of a stream as a function of values: from its current offset to the end of its micro-batch."""

import math
from collections.abc import Collection, Mapping
from typing import Final

from tubemq_spark.errors import DataLossError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.admission import RowBytes, admit
from tubemq_spark.offsets.audit import audit
from tubemq_spark.offsets.loss import Evidence, LossPolicy
from tubemq_spark.offsets.marks import Place
from tubemq_spark.offsets.offset_spec import resolve
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset

_NO_EVIDENCE: Final[Mapping[Place, Evidence]] = {}


def next_offset(
    start: StreamOffset,
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    on_loss: LossPolicy,
    max_rows: int | None = None,
    min_rows: int = 0,
    max_bytes: int | None = None,
    row_bytes: RowBytes | None = None,
    ends: Mapping[StoreId, int] | None = None,
    target: Mapping[TopicPartition, int] | None = None,
    chosen_one_by_one: bool = False,
    partial: bool = False,
    replaced: Mapping[Place, Evidence] = _NO_EVIDENCE,
) -> SourceOffset:
    """Return the end of the next micro-batch; ``start`` itself when there is nothing new.

    New are records, but also a token that is resolved and a partition that appears, even without records:
    Spark writes down where they begin only when the offset changes.

    ``ends`` says where reading stops before a log's end; a partition beyond that stays there. ``target`` is
    where ``Trigger.AvailableNow`` stops, fixed when it began, for every partition that existed then; those of
    one store may stop at different offsets. Stores that did not exist then are not read; those whose broker
    does not answer now are: their tasks wait for it. What it includes must still be there, under any policy:
    otherwise the run could not do what it began to. ``partial`` says that there may be others than
    ``partitions``, which were asked for before ``bounds``.
    """
    first: Mapping[TopicPartition, int] = {}
    if isinstance(start, StartToken):
        first = resolve(start.spec, partitions, bounds, option="startingOffsets", on_loss=on_loss, ends=ends)
    were_there = chosen_one_by_one or start.partial
    comparison = audit(
        first or start.next_offsets, partitions, bounds, new_were_there=were_there, replaced=replaced
    )
    for loss in comparison.losses:
        on_loss(loss)
    latest = {store: span.latest if ends is None else ends[store] for store, span in bounds.items()}
    positions = comparison.positions
    if target is not None:
        _check_target(target, set(partitions), latest)
        ends = {}
        for partition, end in target.items():
            ends[partition.store_id] = max(end, ends.get(partition.store_id, 0))
        positions = {
            place: offset for place, offset in positions.items() if offset < target.get(place, math.inf)
        }
        # Including stores without bounds: the run is not over before it has read them too.
        latest = {store: min(end, latest.get(store, end)) for store, end in ends.items()}
    admitted = admit(positions, latest, max_rows, min_rows, max_bytes, row_bytes)
    if target is not None:
        admitted = {place: min(offset, target.get(place, offset)) for place, offset in admitted.items()}
    next_offsets = {**comparison.positions, **admitted}
    if isinstance(start, SourceOffset) and next_offsets == start.next_offsets and not comparison.replaced:
        return start
    # A partition whose broker does not answer now is still to come, and was there before.
    to_come = start.partial and not next_offsets.keys() >= set(partitions)
    partial = partial or chosen_one_by_one or to_come
    appeared = {**first, **comparison.appeared}
    return SourceOffset(next_offsets, appeared, partial, replaced=comparison.replaced)


def _check_target(
    target: Mapping[TopicPartition, int],
    partitions: Collection[TopicPartition],
    latest: Mapping[StoreId, int],
) -> None:
    """Refuse to go on when what the target includes is gone: records, or a partition that held some.

    Tasks may have passed over records of a partition before it is noticed that it is gone.
    """
    for partition, end in sorted(target.items()):
        held_to = latest.get(partition.store_id, end)
        if partition not in partitions:
            if end > 0:
                raise DataLossError("TUBEMQ_AVAILABLE_NOW.PARTITION_LOST", partition=partition, end=end)
        elif held_to < end:
            raise DataLossError(
                "TUBEMQ_AVAILABLE_NOW.MOVED_BACK", partition=partition, start=held_to, end=end
            )
