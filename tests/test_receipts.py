"""Receipts of several producers add up."""

import pytest

from tubemq_spark.model import TopicPartition
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt, merged, summarise

ONE, TWO = TopicPartition("demo", 1, 0), TopicPartition("demo", 1, 1)


def test_receipts_of_a_partition_are_one():
    some = [
        Receipt(TWO, 1, 56, 56, bytes=3, checksum=9),
        Receipt(ONE, 5, 28, 280, 2, 1, 50, 7),
        Receipt(ONE, 3, 0, 140, 1, 1, 30, CHECKSUM_MODULUS - 1),
    ]
    assert merged(some) == [Receipt(ONE, 8, 0, 280, 3, 2, 80, 6), some[0]]
    assert merged(reversed(some)) == merged(some)


@pytest.mark.parametrize("known", [0, 7])
def test_a_checksum_that_is_not_known_makes_none(known):
    some = [Receipt(ONE, 1, 0, 0, checksum=known), Receipt(ONE, 1, 28, 28)]
    assert merged(some)[0].checksum is merged(reversed(some))[0].checksum is None


def test_a_summary_tells_rows_bytes_and_partitions():
    some = [Receipt(ONE, 5, 0, 280, bytes=50), Receipt(TWO, 1, 0, 0, bytes=3)]
    assert summarise(some, "row") == "6 rows (53 bytes) to 2 partitions"
    assert summarise([Receipt(ONE, 1, 0, 0, bytes=1)]) == "1 message (1 byte) to 1 partition"


@pytest.mark.parametrize(
    ("retried", "unanswered", "told"),
    [
        (0, 0, ""),
        (3, 0, ", 3 of them sent more than once"),
        (3, 1, ", 3 of them sent more than once; up to 1 extra copy may be stored"),
        (3, 2, ", 3 of them sent more than once; up to 2 extra copies may be stored"),
    ],
)
def test_a_summary_tells_of_copies_only_if_there_can_be_some(retried, unanswered, told):
    some = [Receipt(ONE, 5, 0, 280, retried, unanswered, bytes=50)]
    assert summarise(some) == f"5 messages (50 bytes) to 1 partition{told}"
