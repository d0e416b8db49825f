"""How much of the backlog one trigger admits: ``minOffsetsPerTrigger`` and ``maxOffsetsPerTrigger``.

The maximum is distributed over the stores. While there are fewer rows than the minimum, none is admitted.

Rows are counted per store, since a store's log holds the messages of all its partitions and only their sum is
known: ``(end - start) / 28``. Partitions of a store that have the same offset therefore move together. Those
with another one (given in ``startingOffsets``, or because a partition was added to a store that is partly
read) move separately until they meet the others at the log's end: if they waited for each other, a new
partition that goes through old records would hold up the whole store.
"""

from collections.abc import Mapping

from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, rows_between

StoreOffset = tuple[StoreId, int]
"""A store and an offset in it, in index bytes, of partitions that move together."""


def admit(
    positions: Mapping[TopicPartition, int],
    latest: Mapping[StoreId, int],
    max_rows: int | None = None,
    min_rows: int = 0,
) -> dict[TopicPartition, int]:
    """Return where each partition's part of the next micro-batch ends.

    The limit is prorated by backlog, rounded down; a share below one row is rounded up to one, as in Spark's
    Kafka source, so that a small store next to large ones does not wait forever. The rows of a micro-batch
    are therefore at most ``max_rows``, plus one for each share that was rounded up.

    Args:
        positions: the next offset of every partition, in index bytes.
        latest: where the stores end; a partition whose store is missing here does not move, and neither does
            one that is beyond the end.
        max_rows: the maximum of rows in the micro-batch, 1 or more; None admits the whole backlog.
        min_rows: nothing is admitted as long as the backlog has fewer rows.
    """
    places = [(partition.store_id, offset) for partition, offset in positions.items()]
    backlog = {
        place: rows for place in places if (rows := rows_between(place[1], latest.get(place[0], 0))) > 0
    }
    if sum(backlog.values()) < min_rows:
        return dict(positions)
    shares = backlog if max_rows is None else _prorate(backlog, max_rows)
    return {
        partition: place[1] + INDEX_ENTRY_BYTES * shares.get(place, 0)
        for partition, place in zip(positions, places, strict=True)
    }


def _prorate(backlog: Mapping[StoreOffset, int], max_rows: int) -> Mapping[StoreOffset, int]:
    total = sum(backlog.values())
    if total <= max_rows:
        return backlog
    return {place: max(1, rows * max_rows // total) for place, rows in backlog.items()}
