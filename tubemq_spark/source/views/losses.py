"""The view ``losses``: each gap that was passed over and is in the ledger, once."""

from collections.abc import Iterator
from typing import Final

from tubemq_spark.files.text_files import TextFiles
from tubemq_spark.offsets.ledger import SUFFIX, gaps, observations_of
from tubemq_spark.options import LossesOptions
from tubemq_spark.source.views.view import Row
from tubemq_spark.spark.columns import Column

COLUMNS: Final = (
    Column("topic", "string", read="The topic's name."),
    Column("brokerId", "int", read="The broker's id."),
    Column("partition", "int", read="The partition's number: store * 10000 + index."),
    Column("startOffset", "bigint", read="The first offset that was passed over."),
    Column(
        "endOffset",
        "bigint",
        read="The offset behind the last one. It equals `startOffset` where a topic or a partition is gone, "
        "and what it still had is unknown.",
    ),
    Column(
        "rows",
        "bigint",
        read="How many rows of this partition are lost. Null where that cannot be known: in a store that "
        "several partitions share and with `messageTypes` (except for `CORRUPT`), for `MOVED_BACK`, where "
        "attempts saw overlapping parts or different reasons, and where the offsets are equal. In a shared "
        "store it is at most `(endOffset - startOffset) / 28`.",
        nullable=True,
    ),
    Column("reason", "string", read="The last part of the condition `TUBEMQ_DATA_LOSS.<reason>`."),
    Column("consumerGroup", "string", read="The `tubemq.group` of the read."),
    Column(
        "queryId",
        "string",
        read="Spark's id of the streaming query. Null in a batch read, and where the driver met the loss, "
        "which Spark does not tell the id.",
        nullable=True,
    ),
    Column(
        "batchId", "bigint", read="The number of the micro-batch; null where `queryId` is.", nullable=True
    ),
    Column("time", "timestamp", read="When the loss was met first."),
)


def rows(options: LossesOptions) -> Iterator[Row]:
    """Read the ledger."""
    files = TextFiles(options.ledger, "lossLedger", SUFFIX)
    observations = [
        observation
        for name, text in files.read()
        for observation in observations_of(text, f"{options.ledger}/{name}")
    ]
    for gap in gaps(observations):
        yield {
            "topic": gap.loss.partition.topic,
            "brokerId": gap.loss.partition.broker_id,
            "partition": gap.loss.partition.partition_id,
            "startOffset": gap.loss.start,
            "endOffset": gap.loss.end,
            "rows": gap.loss.rows,
            "reason": gap.loss.loss.value,
            "consumerGroup": gap.origin.consumer_group,
            "queryId": gap.origin.query_id,
            "batchId": gap.origin.batch_id,
            "time": gap.time,
        }
