"""What a task tells the driver about what it wrote."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.receipts import Receipt, summarise


@dataclasses.dataclass
class TubeMQCommitMessage(WriterCommitMessage):
    """Where a task's rows landed: a receipt per partition (count, first and last offset)."""

    receipts: tuple[Receipt, ...]


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Say how many rows went to how many partitions and how many may be stored twice, for the log."""
    return summarise(_receipts(messages))


def level(messages: Sequence[WriterCommitMessage | None]) -> int:
    """Return the level of the log at which to say that: a warning when rows may be stored twice."""
    return logging.WARNING if any(one.unanswered for one in _receipts(messages)) else logging.INFO


def _receipts(messages: Sequence[WriterCommitMessage | None]) -> Iterator[Receipt]:
    for message in messages:
        if isinstance(message, TubeMQCommitMessage):
            yield from message.receipts
