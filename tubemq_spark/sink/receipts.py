"""What a task tells the driver about what it wrote, and what the driver says about that."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.model import MicroBatch
from tubemq_spark.receipts import Receipt, merged, summarise


class Contents(NamedTuple):
    """Rows that a task had and did not send."""

    rows: int
    checksum: int
    """Of their values, as receipts have it."""


@dataclasses.dataclass
class TubeMQCommitMessage(WriterCommitMessage):
    """What a task wrote: a receipt per partition."""

    receipts: tuple[Receipt, ...]
    rows: int
    """How many rows the task had."""
    micro_batch: MicroBatch | None = None
    """The micro-batch that the task was a part of, which Spark does not tell the driver."""
    replayed: Contents | None = None
    """What was not sent, because the micro-batch was written before; None: everything was sent."""
    dead_letters: int = 0
    """How many of the rows went to the dead letters instead."""
    uid_prefix: str | None = None
    """How the ids of all these rows begin, dead letters left out; None when some have none or their own."""


def ours(messages: Iterable[WriterCommitMessage | None]) -> list[TubeMQCommitMessage]:
    """Return the messages of the tasks that ended well."""
    return [message for message in messages if isinstance(message, TubeMQCommitMessage)]


def receipts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Receipt]:
    """Return what all tasks wrote together, a receipt per partition."""
    return merged(receipt for message in ours(messages) for receipt in message.receipts)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Say how many rows went to how many partitions and how many may be stored twice, for the log."""
    dead = dead_letters_of(messages)
    return summarise(receipts_of(messages), "row") + (f"; {dead} of them are dead letters" if dead else "")


def dead_letters_of(messages: Iterable[WriterCommitMessage | None]) -> int:
    """Return how many rows of all tasks went to the dead letters."""
    return sum(message.dead_letters for message in ours(messages))


def level(messages: Sequence[WriterCommitMessage | None]) -> int:
    """Return the level of the log at which to say that: a warning when rows may be stored twice."""
    telling = dead_letters_of(messages) or any(receipt.unanswered for receipt in receipts_of(messages))
    return logging.WARNING if telling else logging.INFO
