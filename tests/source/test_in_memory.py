"""Readers on a cluster in memory: rows from offsets to record batches, without Spark and without a server."""

import pytest

from testkit.inlong_msg import container
from tests.source.query import batch_rows, memory_cluster, numbers
from tubemq_spark.model import StoreId


@pytest.fixture
def cluster(monkeypatch):
    return memory_cluster(monkeypatch, demo=(2, 1), shared=(1, 2))


def send(cluster, topic, *values):
    with cluster.sender() as sender:
        for value in values:
            sender.send(topic, value)


def test_a_batch_read_has_every_row_once(cluster):
    values = [b"%d" % number for number in range(25)]
    send(cluster, "demo", *values)

    rows = batch_rows()

    assert numbers(rows) == list(range(25))
    assert {row["partition"] for row in rows} == {0, 10_000}
    for row in rows:
        log = cluster.logs[StoreId("demo", 1, row["partition"] // 10_000)]
        assert log[row["offset"] // 28][1][0] == row["value"]


def test_bodies_of_inlong_are_unpacked(cluster):
    send(cluster, "demo", container(1, [("", [(b"one", b""), (b"two", b"")])]))

    assert [row["value"] for row in batch_rows(payload="inlong")] == [b"one", b"two"]


def test_rows_of_a_shared_store_have_no_offset(cluster):
    send(cluster, "shared", b"a", b"b", b"c")

    rows = batch_rows(subscribe="shared")

    assert sorted(row["value"] for row in rows) == [b"a", b"b", b"c"]
    assert {row["offset"] for row in rows} == {None}
