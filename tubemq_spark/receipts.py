"""What a producer tells about its messages: where they are stored, and which one an error is about.

**Checksum.** The checksum of some messages is the sum of the CRC-32 of their bodies, modulo 2**63. It does
not depend on their order: messages that are sent again come behind younger ones, and messages of other
producers lie between. A message that is missing, repeated or changed changes it, and checksums of parts add
up. It is of the bodies alone and fits into a ``bigint``, so Spark computes it of any table:
``sum(crc32(value))``. Like CRC-32 it protects against mistakes and not against malice, and one changed body
in 2**32 goes unnoticed.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from tubemq_spark.model import TopicPartition, excerpt

CHECKSUM_MODULUS: Final = 1 << 63


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What brokers acknowledged for one partition.

    Other producers' messages, and copies made by a retry, may lie between the first and the last offset.

        for receipt in producer.receipts():
            print(receipt.partition, receipt.count, receipt.last_offset)
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
    bytes: int = 0
    """The length of their bodies together."""
    checksum: int | None = None
    """The checksum of their bodies; None when the producer was not asked to compute it."""


def merged(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return one receipt per partition for what several producers sent, in the partitions' order."""
    by_partition: dict[TopicPartition, Receipt] = {}
    for receipt in receipts:
        total = by_partition.get(receipt.partition)
        by_partition[receipt.partition] = receipt if total is None else _add(total, receipt)
    return [by_partition[partition] for partition in sorted(by_partition)]


def summarise(receipts: Iterable[Receipt], noun: str = "message") -> str:
    """Say how many messages and bytes went to how many partitions, and how many may be stored twice.

    ``noun`` names a message in the singular: "row", for example.
    """
    receipts = list(receipts)
    count, size = sum(receipt.count for receipt in receipts), sum(receipt.bytes for receipt in receipts)
    partitions = len({receipt.partition for receipt in receipts})
    text = f"{counted(count, noun)} ({counted(size, 'byte')}) to {counted(partitions, 'partition')}"
    if retried := sum(receipt.retried for receipt in receipts):
        text += f", {retried} of them sent more than once"
    if unanswered := sum(receipt.unanswered for receipt in receipts):
        text += f"; up to {counted(unanswered, 'extra copy', 'extra copies')} may be stored"
    return text


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def describe_message(number: int, sender: str, value: bytes) -> str:
    """Return words for a message: its number, whose it is, and how it begins."""
    return f"message {number} of {sender} ({excerpt(value)})"


def _add(total: Receipt, receipt: Receipt) -> Receipt:
    have_checksums = total.checksum is not None and receipt.checksum is not None
    return Receipt(
        total.partition,
        total.count + receipt.count,
        min(total.first_offset, receipt.first_offset),
        max(total.last_offset, receipt.last_offset),
        total.retried + receipt.retried,
        total.unanswered + receipt.unanswered,
        total.bytes + receipt.bytes,
        ((total.checksum or 0) + (receipt.checksum or 0)) % CHECKSUM_MODULUS if have_checksums else None,
    )
