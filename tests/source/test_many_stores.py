"""What the driver asks of the servers to begin at the earliest records of many stores, counted."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from testkit.readers import Requests
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.protocol.constants import Method
from tubemq_spark.source.schema import default_schema
from tubemq_spark.testing.client import TopicClient

SCHEMA = default_schema(include_attributes=False)
STORES = 17
MANY = 20
VALUE = b"x" * 1_000


@pytest.fixture
def server():
    """Stores of 20 kB each."""
    with EmbeddedTubeMQ(topics={"demo": (STORES, 1), "few": (STORES - 1, 1)}) as running:
        with TopicClient(running.master, "sender") as client:
            for store in range(STORES):
                client.send("demo", *[VALUE] * MANY, partition=(1, 10_000 * store))
            for store in range(STORES - 1):
                client.send("few", b"x", partition=(1, 10_000 * store))
        yield running


def options(server, **more):
    given = {"tubemq.master.servers": server.master, "tubemq.master.web": server.master_web}
    return {**given, "subscribe": "demo", "startingOffsets": "earliest", **more}


def starts(tasks):
    return [work.range.start for task in tasks for work in task.requests]


def plan_batch(server, **more):
    return TubeMQDataSource(options(server, **more)).reader(SCHEMA).partitions()


def plan_stream(server, **more):
    reader = TubeMQDataSource(options(server, **more)).streamReader(SCHEMA)
    start = reader.initialOffset()
    return reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))


@pytest.mark.parametrize("plan", [plan_batch, plan_stream])
def test_nothing_is_fetched_to_plan_from_the_earliest_records(server, monkeypatch, plan):
    requests = Requests(monkeypatch)
    assert starts(plan(server)) == [0] * STORES
    marks = int(plan is plan_stream)  # a stream looks at the last record of one store
    assert requests.counts[Method.GET_MESSAGE] == requests.counts[Method.COMMIT_OFFSET] == marks
    # One lease for the bounds.
    assert requests.counts[Method.PARTITION_REGISTER] == 2 * (STORES + marks)
    assert requests.bytes < 500 * STORES
    assert server.stats().messages_out == marks


def test_only_stores_that_lost_data_are_read(server, monkeypatch):
    server.apply_retention("demo", older_than_ms=0)
    with TopicClient(server.master, "sender") as client:
        client.send("demo", *[VALUE] * MANY, partition=(1, 0))
    requests = Requests(monkeypatch)
    assert starts(plan_batch(server)) == [28 * MANY]
    assert requests.fetched == [("demo", 0)]


def test_without_an_answer_of_the_administration_api_all_are_read(server, monkeypatch):
    requests = Requests(monkeypatch)
    assert starts(plan_batch(server, **{"tubemq.master.web": "127.0.0.1:1"})) == [0] * STORES
    assert sorted(requests.fetched) == [("demo", 10_000 * store) for store in range(STORES)]
    assert requests.bytes > len(VALUE) * MANY * STORES


def test_few_stores_are_read_without_asking_which_are_whole(server, monkeypatch):
    requests = Requests(monkeypatch)
    assert starts(plan_batch(server, subscribe="few")) == [0] * (STORES - 1)
    assert requests.counts[Method.GET_MESSAGE] == STORES - 1
