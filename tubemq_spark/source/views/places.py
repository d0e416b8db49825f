"""Views with one row per partition: where it is, and whether its broker answers.

``partitions`` says where the partitions are, what they hold, and which brokers are away; ``groups`` where
consumer groups stand, as the brokers' administration API says.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.cluster.peek import bounds_after
from tubemq_spark.errors import LocalProtocolError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import StoreBounds, StoredOffset, StoreId, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.offsets.subscription import TopicSubscription
from tubemq_spark.options import ViewOptions
from tubemq_spark.source.layout_cache import LayoutCache
from tubemq_spark.source.views import PARTITION, Row, named
from tubemq_spark.spark.columns import Column

ANSWERS: Final = "answers"
AWAY: Final = "away"
FAILS: Final = "fails"
_NO_ANSWER: Final = "TUBEMQ_TIMEOUT"

PLACE: Final = (
    *PARTITION,
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
            **named(partition),
            "broker": str(self.layout.partitions[partition]),
            "store": store.store,
            "partitionsInStore": self._partitions_in_stores[store],
            **state(self.bounds.failures.get(store)),
        }


def look(
    cluster: Cluster,
    subscription: TopicSubscription,
    *,
    missing_ok: bool = False,
    silent: Collection[int] = (),
) -> Places:
    """Return the partitions of a subscription, with bounds or errors of their stores; ask each server once.

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


_FLUSHED: Final = "flushedLatest"

PARTITIONS: Final = (
    *PLACE,
    Column(
        "rows",
        "bigint",
        read="How many messages the store's index has; of the first ones, retention may have taken the data.",
        nullable=True,
    ),
    Column("earliest", "bigint", read="The first offset in the store's index.", nullable=True),
    Column("latest", "bigint", read="Where the store ends: the offset of its next message.", nullable=True),
    Column(
        _FLUSHED,
        "bigint",
        read="Where the store ends on its broker's disk. A broker that crashes loses what lies behind it.",
        nullable=True,
    ),
    *DETAILS,
)


def partition_rows(options: ViewOptions) -> Iterator[Row]:
    """Ask a master and the brokers."""
    if options.subscription is None:
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what="a view of no topics")
    cluster = open_cluster(options.cluster)
    places = look(cluster, options.subscription)
    stores = places.bounds.by_store if options.wants(_FLUSHED) else ()
    on_disk = cluster.bounds(places.layout, stores, flushed=True).by_store
    for partition in places.layout.partitions:
        store = partition.store_id
        row = dict(places.place(partition))
        if store in places.bounds.by_store:
            earliest, latest = places.bounds.by_store[store]
            row |= {"earliest": earliest, "latest": latest, "rows": rows_between(earliest, latest)}
        if store in on_disk:
            row[_FLUSHED] = on_disk[store].latest
        yield row


GROUPS: Final = (
    Column("group", "string", read="The group's name. Null where a broker gave no answer.", nullable=True),
    Column("topic", "string", read="The topic's name.", nullable=True),
    Column("brokerId", "int", read="The broker's id."),
    Column("partition", "int", read="The partition's number: store * 10000 + index.", nullable=True),
    Column(
        "rows",
        "bigint",
        read="How many messages of the store are behind the offset; those of its other partitions count too.",
        nullable=True,
    ),
    Column(
        "rowsInFlight",
        "bigint",
        read="How many of these the broker has handed out, and no consumer has confirmed.",
        nullable=True,
    ),
    Column("offset", "bigint", read="The next offset to read, as the group has committed it.", nullable=True),
    Column("latest", "bigint", read="Where the store ends. Null while it is not open.", nullable=True),
    Column("consumer", "string", read="The client that holds the partition now.", nullable=True),
    Column(
        "state",
        "string",
        read=f"`{ANSWERS}`; `{AWAY}` when the broker's web server cannot be reached or does not answer in "
        f"time; `{FAILS}` when it refuses. Such a broker has one row with nothing but that.",
    ),
    Column("error", "string", read="Why there is no answer.", nullable=True),
)


def group_rows(options: ViewOptions) -> Iterator[Row]:
    """Ask a master where the brokers are, and these for their groups."""
    stored = open_cluster(options.cluster).stored_offsets(options.group, _topics(options))
    is_wanted = _filter(options, [offset.partition for offset in stored.offsets])
    for offset in sorted(stored.offsets, key=lambda offset: (offset.group, offset.partition)):
        if is_wanted(offset.partition):
            yield _row(offset)
    for broker_id, error in sorted(stored.failures.items()):
        yield {"brokerId": broker_id, **state(error)}


def _topics(options: ViewOptions) -> tuple[str, ...]:
    """Return the topics to ask for, if the user names them."""
    subscription = options.subscription
    return () if subscription is None or subscription.finds_topics else subscription.topics(tuple)


def _filter(options: ViewOptions, partitions: list[TopicPartition]) -> Callable[[TopicPartition], bool]:
    others = set() if options.subscription is None else set(options.subscription.others(partitions))
    return lambda partition: partition not in others


def _row(offset: StoredOffset) -> Row:
    partition = offset.partition
    return {
        "group": offset.group,
        **named(partition),
        "rows": None if offset.latest is None else rows_between(offset.committed, offset.latest),
        "rowsInFlight": rows_between(offset.committed, offset.committed + offset.in_flight),
        "offset": offset.committed,
        "latest": offset.latest,
        "consumer": offset.consumer,
        **state(None),
    }
