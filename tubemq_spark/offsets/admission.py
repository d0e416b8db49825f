"""How much of the backlog one trigger admits: ``minOffsetsPerTrigger``, and the two maxima.

The maximum, of rows (``maxOffsetsPerTrigger``) or of bytes (``maxBytesPerTrigger``), is distributed over the
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

from collections.abc import Callable, Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, rows_between

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
    """Return what each store holds behind the partition that has read the least of it."""
    begins: dict[StoreId, int] = {}
    for store, offset in backlog:
        begins[store] = min(offset, begins.get(store, offset))
    return {store: OffsetBounds(begin, latest[store]) for store, begin in begins.items()}
