"""The view ``groups``: where consumer groups stand, as the brokers' administration API says."""

from collections.abc import Callable, Iterator
from typing import Final

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import StoredOffset, TopicPartition, rows_between
from tubemq_spark.options import ViewOptions
from tubemq_spark.source.views.places import ANSWERS, AWAY, FAILS, state
from tubemq_spark.source.views.view import Row
from tubemq_spark.spark.columns import Column

COLUMNS: Final = (
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


def rows(options: ViewOptions) -> Iterator[Row]:
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
        "topic": partition.topic,
        "brokerId": partition.broker_id,
        "partition": partition.partition_id,
        "rows": None if offset.latest is None else rows_between(offset.committed, offset.latest),
        "rowsInFlight": rows_between(offset.committed, offset.committed + offset.in_flight),
        "offset": offset.committed,
        "latest": offset.latest,
        "consumer": offset.consumer,
        **state(None),
    }
