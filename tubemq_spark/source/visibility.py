"""How far a query may read: up to what brokers hold in memory, or up to what is on their disks.

With ``visibility=flushed`` two ends of a store count. *What it holds* ends where producers append: an offset
beyond that is one whose records are lost. *What is visible* ends where the disk does, and is never planned
beyond. A query may stand between the two: it was started with offsets from elsewhere, or the option was set
for a query that has read from memory. Then nothing is lost, and the query waits there.

So brokers are asked for the visible end, and for the other one only where the query may stand beyond it.
"""

import dataclasses
from collections.abc import Collection, Mapping

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.model import OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.options import Visibility


@dataclasses.dataclass(frozen=True, slots=True)
class VisibleBounds:
    """What brokers answered."""

    bounds: StoreBounds
    """What the stores hold, at least as far as the query has read."""
    ends: Mapping[StoreId, int]
    """Where what is visible ends, in index bytes, of every store in ``bounds.by_store``."""

    def with_others(self, others: "VisibleBounds") -> "VisibleBounds":
        """Return these answers and those for other stores."""
        by_store, failures = (
            {**self.bounds.by_store, **others.bounds.by_store},
            {**self.bounds.failures, **others.bounds.failures},
        )
        return VisibleBounds(StoreBounds(by_store, failures), {**self.ends, **others.ends})

    def of(self, stores: Collection[StoreId]) -> "VisibleBounds":
        """Return the bounds of some stores, as answered."""
        by_store = {store: span for store, span in self.bounds.by_store.items() if store in stores}
        failures = {store: error for store, error in self.bounds.failures.items() if store in stores}
        return VisibleBounds(StoreBounds(by_store, failures), {store: self.ends[store] for store in by_store})


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What the cluster held at one moment; the same object as long as nothing has changed."""

    layout: TopicsLayout
    bounds: Mapping[StoreId, OffsetBounds]
    """Of the stores whose brokers answered."""
    ends: Mapping[StoreId, int]
    """Where what may be read ends in these stores, in index bytes, see ``source.visibility``."""
    partial: bool
    """Whether there may be other partitions: the layout was asked for before the bounds."""

    def is_unchanged(self, answer: VisibleBounds, layout: TopicsLayout) -> bool:
        """Tell whether newer answers say the same."""
        return (
            answer.bounds.by_store == self.bounds
            and answer.ends == self.ends
            and layout.partitions == self.layout.partitions
        )


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

    Without ``positions`` the query may stand anywhere.
    """
    if visibility is Visibility.MEMORY:
        bounds = cluster.bounds(layout, stores, timeout_ms=timeout_ms)
        return VisibleBounds(bounds, {store: span.latest for store, span in bounds.by_store.items()})
    on_disk = cluster.bounds(layout, stores, flushed=True, timeout_ms=timeout_ms)
    beyond = on_disk.by_store.keys() if positions is None else _read_beyond(positions, on_disk.by_store)
    if not beyond:
        bounds = on_disk
    else:
        in_memory = cluster.bounds(layout, beyond, timeout_ms=timeout_ms)
        flushed = {store: span for store, span in on_disk.by_store.items() if store not in beyond}
        bounds = StoreBounds({**flushed, **in_memory.by_store}, {**on_disk.failures, **in_memory.failures})
    return VisibleBounds(bounds, {store: on_disk.by_store[store].latest for store in bounds.by_store})


def visible(
    bounds: Mapping[StoreId, OffsetBounds], ends: Mapping[StoreId, int]
) -> dict[StoreId, OffsetBounds]:
    """Return the visible bounds of stores."""
    return {store: span._replace(latest=max(span.earliest, ends[store])) for store, span in bounds.items()}


def _read_beyond(
    positions: Mapping[TopicPartition, int], on_disk: Mapping[StoreId, OffsetBounds]
) -> set[StoreId]:
    """Return the stores in which a partition was read beyond what is on the disk."""
    return {
        store
        for partition, offset in positions.items()
        if (span := on_disk.get(store := partition.store_id)) is not None and offset > span.latest
    }
