"""What a task tells the driver about what it wrote."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.client.producer import Receipt


@dataclasses.dataclass
class TubeMQCommitMessage(WriterCommitMessage):
    """Where a task's rows landed: a receipt a partition (count, first and last offset)."""

    receipts: tuple[Receipt, ...]


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Say how many rows went to how many partitions, for the log."""
    receipts = [
        receipt
        for message in messages
        if isinstance(message, TubeMQCommitMessage)
        for receipt in message.receipts
    ]
    rows = sum(receipt.count for receipt in receipts)
    partitions = {receipt.partition for receipt in receipts}
    return f"{rows} rows to {len(partitions)} partitions"
