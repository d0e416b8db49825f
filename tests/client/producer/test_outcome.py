"""The outcomes of a batch: each message ends once, and its columns, its receipts and its futures agree."""

import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.client.virtual_brokers import batch_of
from tubemq_spark.client.producer.futures import BatchOutcome, SendFuture, SendResult, SharedByFutures, follow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

FATES = ["stored", "again", "failed", "refused", "open"]
PARTITIONS = [TopicPartition("demo", broker, 0) for broker in (1, 2, 3)]


def error_of(row):
    return ProduceError("TUBEMQ_TOPIC_NAME", topic=row)


def store(outcome, rows, partitions, details, attempts=1, unanswered=0):
    offsets = np.array([28 * row for row in rows], np.int64)
    told = Details(np.array(rows) + 1_000, np.array(rows) + 2_000) if details else None
    outcome.stored(rows, partitions, offsets, told, attempts, unanswered)


@given(
    fates=st.lists(
        st.sampled_from(["stored", "again", "failed", "refused", "open"]), min_size=1, max_size=20
    ),
    details=st.booleans(),
    data=st.data(),
)
def test_columns_receipts_and_futures_agree(fates, details, data):
    batch = batch_of([b"x" * (row + 1) for row in range(len(fates))])
    places = [data.draw(st.sampled_from(PARTITIONS)) for _ in fates]
    rows = {fate: [row for row, each in enumerate(fates) if each == fate] for fate in set(fates)}
    refused = {row: error_of(row) for row in rows.get("refused", [])}
    ends, called = [], []
    outcome = BatchOutcome(len(fates), ends.append, refused)
    futures = [SendFuture(SharedByFutures()) for _ in fates]
    asked = data.draw(st.sets(st.sampled_from(range(len(fates)))))
    follow(outcome, futures, lambda call: call())
    for row in asked - refused.keys():
        futures[row].add_done_callback(called.append)
    if at_once := rows.get("stored"):
        store(outcome, at_once, [places[row] for row in at_once], details)
    for row in rows.get("again", []):
        store(outcome, (row,), (places[row],), details, 3, 2)
    for row in rows.get("failed", []):
        outcome.failed(row, error_of(row))
    left = rows.get("open", [])
    assert outcome.left == len(left)
    assert [row for row in range(len(fates)) if outcome.asked(row)] == left
    outcome.abandon(error_of)
    assert ends == [outcome] * (set(fates) != {"refused"})
    assert sorted(map(futures.index, called)) == sorted(asked - refused.keys())

    columns = outcome.columns()
    for row, fate in enumerate(fates):
        assert futures[row].done()
        if fate not in ("stored", "again"):
            assert columns.places[row] == -1
            assert futures[row].exception().parameters["topic"] == row
            continue
        assert columns.partitions[columns.places[row]] == places[row]
        sent = (3, 2) if fate == "again" else (1, 0)
        told = (1_000 + row, 2_000 + row) if details else (None, None)
        assert futures[row].result() == SendResult(places[row], 28 * row, *told, *sent)
    stored = rows.get("stored", []) + rows.get("again", [])
    receipts = outcome.receipts(batch)
    for receipt in receipts:
        its = [row for row in stored if places[row] == receipt.partition]
        again = [row for row in its if fates[row] == "again"]
        assert receipt == Receipt(
            receipt.partition,
            len(its),
            28 * min(its),
            28 * max(its),
            len(again),
            2 * len(again),
            sum(row + 1 for row in its),
            sum(zlib.crc32(b"x" * (row + 1)) for row in its) % CHECKSUM_MODULUS,
        )
    assert sum(receipt.count for receipt in receipts) == len(stored)


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_is_refused_from_the_start_has_ended(count):
    ends = []
    outcome = BatchOutcome(count, ends.append, {0: error_of(0)})
    outcome.begin()
    assert ends == ([outcome] if count == 1 else [])
