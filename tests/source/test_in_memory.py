"""Readers on a cluster in memory: rows from offsets to record batches, without Spark and without a server."""

import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from testkit.inlong_msg import container
from tests.memory_cluster import MemoryCluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import DataLossError
from tubemq_spark.model import StoreId
from tubemq_spark.source import planner, task
from tubemq_spark.source.schema import default_schema

OPTIONS = {"tubemq.master.servers": "master:8715", "subscribe": "demo", "startingOffsets": "earliest"}
SCHEMA = default_schema(include_attributes=False)


@pytest.fixture
def cluster(monkeypatch):
    made = MemoryCluster(demo=(2, 1), shared=(1, 2))
    monkeypatch.setattr(planner, "open_cluster", lambda _: made)
    monkeypatch.setattr(task, "open_cluster", lambda *_, **__: made)
    return made


def send(cluster, topic, *values):
    with cluster.sender() as sender:
        for value in values:
            sender.send(topic, value)


def rows_of(reader, partitions):
    """Read tasks as executors do: with copies of the reader."""
    copy = pickle.loads(pickle.dumps(reader))
    tasks = pickle.loads(pickle.dumps(partitions))
    return [row for task in tasks for batch in copy.read(task) for row in batch.to_pylist()]


def batch_rows(**options):
    reader = TubeMQDataSource(OPTIONS | options).reader(SCHEMA)
    return rows_of(reader, reader.partitions())


def test_a_batch_read_has_every_row_once(cluster):
    values = [b"%d" % number for number in range(25)]
    send(cluster, "demo", *values)

    rows = batch_rows()

    assert sorted(int(row["value"]) for row in rows) == list(range(25))
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


def test_micro_batches_follow_each_other_without_gaps(cluster):
    send(cluster, "demo", *(b"%d" % number for number in range(10)))
    reader = TubeMQDataSource(OPTIONS).streamReader(SCHEMA)
    start, found = reader.initialOffset(), []

    while (end := reader.latestOffset(start, ReadMaxRows(3))) != start:
        found += [int(row["value"]) for row in rows_of(reader, reader.partitions(start, end))]
        start = end

    assert sorted(found) == list(range(10))


def test_a_stream_goes_on_where_its_checkpoint_is(cluster):
    reader = TubeMQDataSource(OPTIONS).streamReader(SCHEMA)
    send(cluster, "demo", b"old")
    checkpoint = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    send(cluster, "demo", b"new")
    resumed = TubeMQDataSource(OPTIONS).streamReader(SCHEMA)
    end = resumed.latestOffset(checkpoint, ReadAllAvailable())

    assert [row["value"] for row in rows_of(resumed, resumed.partitions(checkpoint, end))] == [b"new"]


def test_expired_rows_end_a_read_or_are_left_out(cluster):
    send(cluster, "demo", *(b"%d" % number for number in range(6)))
    start = '{"demo": {"1:0": 0, "1:10000": 0}}'
    cluster.expired[StoreId("demo", 1, 0)] = 2

    with pytest.raises(DataLossError, match="EXPIRED"):
        batch_rows(startingOffsets=start)
    assert len(batch_rows(startingOffsets=start, failOnDataLoss="false")) == 4
