"""What a Spark worker process does once."""

import gc

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.memory_cluster import MemoryCluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.sink import task as writing, writers
from tubemq_spark.source import planner, task as reading
from tubemq_spark.spark.edge import REUSED_VARIABLE, spare_collector, spare_collector_of_imports


@pytest.fixture(autouse=True)
def fresh_process():
    """Whatever the collector passes over was moved there by the test."""
    gc.unfreeze()
    spare_collector.cache_clear()
    yield
    spare_collector.cache_clear()
    gc.freeze()  # as at the beginning of the run


def test_the_collector_passes_over_what_a_reused_worker_has_imported(monkeypatch):
    monkeypatch.setenv(REUSED_VARIABLE, "1")
    spare_collector()
    spared = gc.get_freeze_count()
    assert spared > 1000
    kept = [[] for _ in range(1000)]
    spare_collector()
    assert gc.get_freeze_count() == spared, f"only the first task does that; {len(kept)} lists came later"


def test_tasks_that_write_and_tasks_that_read_do_that(monkeypatch):
    cluster, schema = MemoryCluster(demo=(1, 1)), StructType([StructField("value", BinaryType())])
    for module in (planner, reading, writers, writing):
        monkeypatch.setattr(module, "open_cluster", lambda *_, **__: cluster)
    monkeypatch.setenv(REUSED_VARIABLE, "1")
    servers = {"tubemq.master.servers": "master:8715"}

    writer = TubeMQDataSource({**servers, "topic": "demo"}).writer(schema, False)
    writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"a"]})]))
    assert gc.get_freeze_count() > 1000

    gc.unfreeze()
    spare_collector.cache_clear()
    reader = TubeMQDataSource({**servers, "subscribe": "demo"}).reader(schema)
    assert [batch.num_rows for batch in reader.read(*reader.partitions())] == [1]
    assert gc.get_freeze_count() > 1000


def test_other_processes_are_left_alone(monkeypatch):
    monkeypatch.delenv(REUSED_VARIABLE, raising=False)
    spare_collector()
    spare_collector_of_imports()
    assert gc.get_freeze_count() == 0
