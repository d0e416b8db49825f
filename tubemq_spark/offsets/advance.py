"""One trigger of a stream as a function of values: from its current offset to the end of its micro-batch.

``admit`` says how much of the backlog a trigger admits, by ``minOffsetsPerTrigger`` and the two maxima. The
maximum, of rows (``maxOffsetsPerTrigger``) or of bytes (``maxBytesPerTrigger``), is distributed over the
stores. With both, every store gets the smaller of its two shares, so neither is exceeded. While there are
fewer rows than the minimum, none is admitted.

How large rows are is not known before they are read. Bytes are reckoned with one size per store, which
the caller gives as a function: it is asked only for stores with a backlog.

Rows are counted per store, since a store's log holds the messages of all its partitions and only their sum is
known: ``(end - start) / 28``. Partitions of a store that have the same offset therefore move together. Those
with another one (given in ``startingOffsets``, or because a partition was added to a store that is partly
read) move separately until they meet the others at the log's end: if they waited for each other, a new
partition that goes through old records would hold up the whole store.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from tubemq_spark.errors import DataLossError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, StoreId, TopicPartition, rows_between
from tubemq_spark.offsets.audit import audit
from tubemq_spark.offsets.loss import Evidence, LossPolicy
from tubemq_spark.offsets.marks import Place
from tubemq_spark.offsets.offset_spec import resolve
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken, StreamOffset

StoreOffset = tuple[StoreId, int]
"""A store and an offset in it, in index bytes, of partitions that move together."""

RowBytes = Callable[[Mapping[StoreId, OffsetBounds]], Mapping[StoreId, int]]
"""Tells how many bytes the next rows of stores have, of each on average and at least 1, given what is not
read yet. A store that the answer lacks is not admitted anything."""


def admit(
    positions: Mapping[TopicPartition, int],
    latest: Mapping[StoreId, int],
    max_rows: int | None = None,
    min_rows: int = 0,
    max_bytes: int | None = None,
    row_bytes: RowBytes | None = None,
) -> dict[TopicPartition, int]:
    """Return where each partition's part of the next micro-batch ends.

    A limit is prorated by backlog, rounded down; a share below one row is rounded up to one, as in Spark's
    Kafka source, so that a small store next to large ones does not wait forever. A micro-batch has therefore
    at most ``max_rows`` rows and ``max_bytes`` bytes, plus one row for each share that was rounded up.

    A partition whose store is missing in ``latest``, or that is beyond the end, does not move. ``row_bytes``
    is asked only where there is a ``max_bytes``.
    """
    if max_bytes is not None and row_bytes is None:
        raise TypeError("max_bytes needs row_bytes")
    places = [(partition.store_id, offset) for partition, offset in positions.items()]
    backlog = {
        place: rows for place in places if (rows := rows_between(place[1], latest.get(place[0], 0))) > 0
    }
    if sum(backlog.values()) < min_rows:
        return dict(positions)
    shares = backlog if max_rows is None else _prorate(backlog, max_rows)
    if max_bytes is not None and row_bytes is not None and backlog:
        shares = _within_bytes(backlog, shares, max_bytes, row_bytes(_not_read_yet(backlog, latest)))
    return {
        partition: place[1] + INDEX_ENTRY_BYTES * shares.get(place, 0)
        for partition, place in zip(positions, places, strict=True)
    }


def _prorate(backlog: Mapping[StoreOffset, int], max_rows: int) -> Mapping[StoreOffset, int]:
    total = sum(backlog.values())
    if total <= max_rows:
        return backlog
    return {place: max(1, rows * max_rows // total) for place, rows in backlog.items()}


def _within_bytes(
    backlog: Mapping[StoreOffset, int],
    shares: Mapping[StoreOffset, int],
    max_bytes: int,
    row_bytes: Mapping[StoreId, int],
) -> Mapping[StoreOffset, int]:
    """Return the shares, or the part of the backlog that the bytes allow where that is less."""
    sized = {place: rows for place, rows in backlog.items() if place[0] in row_bytes}
    total = sum(rows * row_bytes[store] for (store, _), rows in sized.items())
    if total <= max_bytes:
        return {place: shares[place] for place in sized}
    # The same part of every store's rows: its bytes are the same part of its bytes.
    return {place: min(shares[place], max(1, rows * max_bytes // total)) for place, rows in sized.items()}


def _not_read_yet(
    backlog: Mapping[StoreOffset, int], latest: Mapping[StoreId, int]
) -> dict[StoreId, OffsetBounds]:
    """Return the range of each store behind its partition that has read least."""
    begins: dict[StoreId, int] = {}
    for store, offset in backlog:
        begins[store] = min(offset, begins.get(store, offset))
    return {store: OffsetBounds(begin, latest[store]) for store, begin in begins.items()}


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
