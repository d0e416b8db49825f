"""Where stores end, asked after another question, so that no broker costs its whole time-out twice."""

from collections.abc import Collection
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.model import StoreBounds, TopicsLayout

_SILENT_MS: Final = 1_000


def bounds_after(cluster: Cluster, layout: TopicsLayout, silent: Collection[int]) -> StoreBounds:
    """Ask all brokers of a layout for the bounds of their stores.

    Brokers that are ``silent``, since they did not answer a question before, are waited for a second.
    """
    late = [store for store in layout.stores if store.broker_id in silent]
    bounds = cluster.bounds(layout, [store for store in layout.stores if store.broker_id not in silent])
    if not late:
        return bounds
    rest = cluster.bounds(layout, late, timeout_ms=_SILENT_MS)
    return StoreBounds({**bounds.by_store, **rest.by_store}, {**bounds.failures, **rest.failures})
