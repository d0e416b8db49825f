"""The views of what was written to folders.

``losses`` has each gap that was passed over and is in the ledger, once; ``receipts`` what each write has
stored in each partition, as its manifest says.
"""

from collections.abc import Iterator
from typing import Final

from tubemq_spark.files import manifests
from tubemq_spark.files.text_files import TextFiles
from tubemq_spark.offsets import ledger
from tubemq_spark.options import LossesOptions, ReceiptsOptions
from tubemq_spark.source.views import PARTITION, Row, named
from tubemq_spark.spark.columns import Column

LOSSES: Final = (
    *PARTITION,
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


def loss_rows(options: LossesOptions) -> Iterator[Row]:
    """Read the ledger."""
    observations = [
        observation
        for name, text in TextFiles(options.ledger, "lossLedger", ledger.SUFFIX).read()
        for observation in ledger.observations_of(text, f"{options.ledger}/{name}")
    ]
    for gap in ledger.gaps(observations):
        yield {
            **named(gap.loss.partition),
            "startOffset": gap.loss.start,
            "endOffset": gap.loss.end,
            "rows": gap.loss.rows,
            "reason": gap.loss.loss.value,
            "consumerGroup": gap.origin.consumer_group,
            "queryId": gap.origin.query_id,
            "batchId": gap.origin.batch_id,
            "time": gap.time,
        }


RECEIPTS: Final = (
    Column("outcome", "string", read="`written`, or `aborted` when the write has failed."),
    Column(
        "queryId",
        "string",
        read="Spark's id of the streaming query. Null for a batch write outside of `foreachBatch`.",
        nullable=True,
    ),
    Column(
        "batchId", "bigint", read="The number of the micro-batch; null where `queryId` is.", nullable=True
    ),
    Column("runId", "string", read="Names one run of a batch write; null for others.", nullable=True),
    Column("time", "timestamp", read="When all tasks of the write had ended."),
    *PARTITION,
    Column("firstOffset", "bigint", read="The lowest offset of these messages."),
    Column(
        "lastOffset",
        "bigint",
        read="The highest one. Between them may be other producers' messages, and some stored twice.",
    ),
    Column("count", "bigint", read="How many messages the broker acknowledged, each counted once."),
    Column("bytes", "bigint", read="The length of their bodies together."),
    Column("checksum", "bigint", read="The sum of the CRC-32 of their bodies: `sum(crc32(value))`."),
    Column("retried", "bigint", read="How many of them were sent more than once."),
    Column(
        "unanswered",
        "bigint",
        read="How many attempts to send them had no answer: no more copies than these can be stored besides.",
    ),
    Column(
        "uidPrefix",
        "string",
        read="How the `messageUid` of all these messages begins. Null where some have none, or one of their "
        "own, and for dead letters.",
        nullable=True,
    ),
)


def receipt_rows(options: ReceiptsOptions) -> Iterator[Row]:
    """Read the manifests."""
    for name, text in TextFiles(options.folder, "receiptsPath", manifests.SUFFIX).read():
        manifest = manifests.manifest_of(text, f"{options.folder}/{name}")
        batch = manifest.write.micro_batch
        for receipt in manifest.receipts:
            yield {
                "outcome": manifest.outcome.value,
                "queryId": None if batch is None else batch.query_id,
                "batchId": None if batch is None else batch.batch_id,
                "runId": manifest.write.run_id,
                "time": manifest.time,
                **named(receipt.partition),
                "firstOffset": receipt.first_offset,
                "lastOffset": receipt.last_offset,
                "count": receipt.count,
                "bytes": receipt.bytes,
                "checksum": receipt.checksum,
                "retried": receipt.retried,
                "unanswered": receipt.unanswered,
                "uidPrefix": manifest.uid_prefix_in(receipt.partition.topic),
            }
