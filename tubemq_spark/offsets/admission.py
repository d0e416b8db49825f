"""How much of the backlog one trigger takes: ``maxOffsetsPerTrigger`` shared out over the stores.

Rows are counted by store, since a store's log holds the messages of all its partitions and only their
sum is known: ``(end - start) / 28``. Partitions of a store that stand at the same offset therefore
move together. Those that stand elsewhere (by explicit ``startingOffsets``, or because a partition was
added to a store that is partly read) move by themselves until they meet the others at the log's end:
made to wait for each other, a new partition's way through old records would hold up the whole store.
"""

from collections.abc import Mapping

from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES, rows_between

Stand = tuple[StoreId, int]
"""A store and an offset in it, in index bytes: where partitions stand that move together."""


def admit(
    positions: Mapping[TopicPartition, int], latest: Mapping[StoreId, int], max_rows: int | None = None
) -> dict[TopicPartition, int]:
    """Return where each partition's part of the next micro-batch ends.

    The limit is prorated by backlog, rounded down; a share below one row is rounded up to one, as in
    Spark's Kafka source, so that a small store next to large ones never waits for ever. The rows of a
    micro-batch are therefore at most ``max_rows``, plus one for each share that was rounded up.

    Args:
        positions: where every partition stands, in index bytes.
        latest: where the stores end; a partition whose store is not named stays where it is, and so
            does one that stands beyond the end.
        max_rows: the most rows of the micro-batch, 1 or more; None takes the whole backlog.
    """
    stands = [(partition.store_id, offset) for partition, offset in positions.items()]
    backlog = {
        stand: rows for stand in stands if (rows := rows_between(stand[1], latest.get(stand[0], 0))) > 0
    }
    shares = backlog if max_rows is None else _prorate(backlog, max_rows)
    return {
        partition: stand[1] + INDEX_ENTRY_BYTES * shares.get(stand, 0)
        for partition, stand in zip(positions, stands, strict=True)
    }


def _prorate(backlog: Mapping[Stand, int], max_rows: int) -> Mapping[Stand, int]:
    total = sum(backlog.values())
    if total <= max_rows:
        return backlog
    return {stand: max(1, rows * max_rows // total) for stand, rows in backlog.items()}
