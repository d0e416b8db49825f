"""How far a query may read: up to what brokers hold in memory, or up to what is on their disks.

With ``visibility=flushed`` two ends of a store count. *What it holds* ends where producers append: an offset
beyond that is one whose records are lost. *What is visible* ends where the disk does, and is never planned
beyond. A query may stand between the two: it was started with offsets from elsewhere, or the option was set
for a query that has read from memory. Then nothing is lost, and the query waits there.

So brokers are asked for the visible end, and for the other one only where somebody may stand beyond it.
"""

import dataclasses
from collections.abc import Collection, Mapping

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.model import OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.options import Visibility


@dataclasses.dataclass(frozen=True, slots=True)
class VisibleBounds:
    """What brokers answered."""

    held: StoreBounds
    """What the stores hold, at least as far as the query has read."""
    ends: Mapping[StoreId, int]
    """Where what is visible ends, in index bytes, of every store in ``held.known``."""

    def with_others(self, others: "VisibleBounds") -> "VisibleBounds":
        """Return these answers and those for other stores."""
        known, failures = (
            {**self.held.known, **others.held.known},
            {**self.held.failures, **others.held.failures},
        )
        return VisibleBounds(StoreBounds(known, failures), {**self.ends, **others.ends})


def ask_bounds(
    cluster: Cluster,
    visibility: Visibility,
    layout: TopicsLayout,
    stores: Collection[StoreId] | None = None,
    *,
    positions: Mapping[TopicPartition, int] | None = None,
    timeout_ms: int | None = None,
) -> VisibleBounds:
    """Ask the brokers where stores begin and end; by default all stores of the layout.

    Args:
        cluster: whom to ask.
        visibility: how far the query may read.
        layout: where the partitions are.
        stores: some of its stores.
        positions: where the query stands; None if that is not known yet.
        timeout_ms: how long the answers may take.
    """
    if visibility is Visibility.MEMORY:
        held = cluster.bounds(layout, stores, timeout_ms=timeout_ms)
        return VisibleBounds(held, {store: bounds.latest for store, bounds in held.known.items()})
    on_disk = cluster.bounds(layout, stores, flushed=True, timeout_ms=timeout_ms)
    beyond = on_disk.known.keys() if positions is None else _read_beyond(positions, on_disk.known)
    if not beyond:
        held = on_disk
    else:
        in_memory = cluster.bounds(layout, beyond, timeout_ms=timeout_ms)
        known = {store: held for store, held in on_disk.known.items() if store not in beyond}
        held = StoreBounds({**known, **in_memory.known}, {**on_disk.failures, **in_memory.failures})
    return VisibleBounds(held, {store: on_disk.known[store].latest for store in held.known})


def visible(
    bounds: Mapping[StoreId, OffsetBounds], ends: Mapping[StoreId, int]
) -> dict[StoreId, OffsetBounds]:
    """Return what is visible of what stores hold."""
    return {store: held._replace(latest=max(held.earliest, ends[store])) for store, held in bounds.items()}


def _read_beyond(
    positions: Mapping[TopicPartition, int], on_disk: Mapping[StoreId, OffsetBounds]
) -> set[StoreId]:
    """Return the stores in which a partition was read beyond what is on the disk."""
    return {
        store
        for partition, offset in positions.items()
        if (held := on_disk.get(store := partition.store_id)) is not None and offset > held.latest
    }
