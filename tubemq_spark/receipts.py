"""What a producer tells about its messages: where they are stored, and which one an error is about."""

import dataclasses
from collections.abc import Iterable

from tubemq_spark.model import TopicPartition, excerpt


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What brokers acknowledged for one partition.

    Other producers' messages, and copies made by a retry, may lie between the first and the last offset.
    """

    partition: TopicPartition
    count: int
    """Messages acknowledged, each counted once."""
    first_offset: int
    """Lowest append offset, in index bytes."""
    last_offset: int
    """Highest append offset, in index bytes: where that message begins, not where the next one will."""
    retried: int = 0
    """How many of ``count`` were sent more than once."""
    unanswered: int = 0
    """How many attempts to send them had no answer that says whether the message was stored: no more copies
    than these can be stored besides the ``count`` messages, in this partition or in another."""


def summarise(receipts: Iterable[Receipt]) -> str:
    """Say how many messages went to how many partitions, and how many of them may be stored twice."""
    receipts = list(receipts)
    partitions = len({receipt.partition for receipt in receipts})
    text = f"{sum(receipt.count for receipt in receipts)} rows to {partitions} partitions"
    if retried := sum(receipt.retried for receipt in receipts):
        unanswered = sum(receipt.unanswered for receipt in receipts)
        text += f", {retried} of them sent more than once; up to {unanswered} extra copies may be stored"
    return text


def describe_message(number: int, sender: str, value: bytes) -> str:
    """Return words for a message: its number, whose it is, and how it begins."""
    return f"message {number} of {sender} ({excerpt(value)})"
