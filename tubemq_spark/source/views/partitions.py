"""The view ``partitions``: where the partitions are, what they hold, and which brokers are away."""

from collections.abc import Iterator
from typing import Final

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.model import rows_between
from tubemq_spark.options import ViewOptions
from tubemq_spark.source.views.places import DETAILS, PLACE, look
from tubemq_spark.source.views.view import Row
from tubemq_spark.spark.columns import Column

_FLUSHED: Final = "flushedLatest"

COLUMNS: Final = (
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


def rows(options: ViewOptions) -> Iterator[Row]:
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
