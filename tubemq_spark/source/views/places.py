"""What views with one row per partition have in common: where it is, and how its broker does."""

import collections
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.bounds import bounds_after
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.offsets.subscription import Subscription
from tubemq_spark.source.layout_cache import LayoutCache
from tubemq_spark.source.views.view import Row
from tubemq_spark.spark.columns import Column

ANSWERS: Final = "answers"
AWAY: Final = "away"
FAILS: Final = "fails"
_NO_ANSWER: Final = "TUBEMQ_TIMEOUT"

PLACE: Final = (
    Column("topic", "string", read="The topic's name."),
    Column("brokerId", "int", read="The broker's id."),
    Column("partition", "int", read="The partition's number: store * 10000 + index."),
    Column(
        "state",
        "string",
        read=f"`{ANSWERS}`; `{AWAY}` when the broker cannot be reached or does not answer in time; "
        f"`{FAILS}` when it answers with an error.",
    ),
)
"""The first columns of such a view."""
DETAILS: Final = (
    Column("store", "int", read="The number of the store on that broker."),
    Column(
        "partitionsInStore",
        "int",
        read="How many partitions share the store. Numbers of rows and bytes are those of the whole store: "
        "divide by this before you add up.",
        nullable=True,
    ),
    Column("broker", "string", read="The broker's address, `host:port`.", nullable=True),
    Column("error", "string", read="Why there is no answer, or what it says.", nullable=True),
)
"""The last columns of such a view."""


@dataclasses.dataclass(frozen=True)
class Places:
    """What the cluster says about some partitions at one moment."""

    layout: TopicsLayout
    bounds: StoreBounds

    @functools.cached_property
    def _partitions_in_stores(self) -> Mapping[StoreId, int]:
        partitions = (*self.layout.partitions, *self.layout.unread)
        return collections.Counter(partition.store_id for partition in partitions)

    def place(self, partition: TopicPartition) -> Row:
        """Return the columns ``PLACE`` and ``DETAILS`` of a partition that the layout lists."""
        store = partition.store_id
        return {
            "topic": partition.topic,
            "brokerId": partition.broker_id,
            "broker": str(self.layout.partitions[partition]),
            "store": store.store,
            "partition": partition.partition_id,
            "partitionsInStore": self._partitions_in_stores[store],
            **state(self.bounds.failures.get(store)),
        }


def look(
    cluster: Cluster,
    subscription: Subscription,
    *,
    missing_ok: bool = False,
    silent: Collection[int] = (),
) -> Places:
    """Ask a master and all brokers, once; a broker that does not answer is part of the answer.

    Brokers that are ``silent``, since they did not answer a question before, are waited for a moment only.
    """
    layout = LayoutCache(cluster, subscription).ask(missing_ok=missing_ok)
    if not missing_ok:
        subscription.refuse_missing(layout)
    return Places(layout, bounds_after(cluster, layout, silent))


def state(error: TubeMQError | None) -> Row:
    """Return the columns about a broker that has answered with this error, or has not answered."""
    if error is None:
        return {"state": ANSWERS}
    away = isinstance(error, TubeMQConnectionError) or error.condition == _NO_ANSWER
    return {"state": AWAY if away else FAILS, "error": str(error)}
