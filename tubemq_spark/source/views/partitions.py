"""The view ``partitions``: where the partitions are, what they hold, and which brokers are away."""

from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import LongType

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.columns import Column
from tubemq_spark.offsets.units import rows_between
from tubemq_spark.options import ViewOptions
from tubemq_spark.source.views.places import PLACE, look
from tubemq_spark.source.views.view import Row

COLUMNS: Final = (
    *PLACE,
    Column("earliest", LongType(), read="The first offset in the store's index.", nullable=True),
    Column("latest", LongType(), read="Where the store ends: the offset of its next message.", nullable=True),
    Column(
        "flushedLatest",
        LongType(),
        read="Where the store ends on its broker's disk. A broker that crashes loses what lies behind it.",
        nullable=True,
    ),
    Column("rows", LongType(), read="How many messages the store holds.", nullable=True),
)


def rows(options: ViewOptions) -> Iterator[Row]:
    """Ask a master and the brokers.

    Raises:
        OptionError: a partition of ``assign`` does not exist.
        TubeMQError: no master answers, or it refuses.
    """
    cluster = open_cluster(options.cluster)
    found = look(cluster, options.subscription)
    on_disk = cluster.bounds(found.layout, found.bounds.known, flushed=True).known
    for partition in found.layout.partitions:
        store = partition.store_id
        row = dict(found.place(partition))
        if store in found.bounds.known:
            earliest, latest = found.bounds.known[store]
            row |= {"earliest": earliest, "latest": latest, "rows": rows_between(earliest, latest)}
        if store in on_disk:
            row["flushedLatest"] = on_disk[store].latest
        yield row
