"""What a task tells the driver about what it wrote."""

import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.client.outgoing import summarise
from tubemq_spark.client.producer import Receipt


@dataclasses.dataclass
class TubeMQCommitMessage(WriterCommitMessage):
    """Where a task's rows landed: a receipt per partition (count, first and last offset)."""

    receipts: tuple[Receipt, ...]


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Say how many rows went to how many partitions and how many may be stored twice, for the log."""
    return summarise(
        receipt
        for message in messages
        if isinstance(message, TubeMQCommitMessage)
        for receipt in message.receipts
    )
