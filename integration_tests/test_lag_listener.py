"""How far a query is behind, as the listener of Spark's events tells."""

import contextlib
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.queries import Collected, read_stream, start
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.observe import LagListener, with_bytes

pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 60
IDLE_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"
"""In milliseconds: how often Spark tells of an idle query."""


@pytest.fixture
def listener(spark):
    listener = LagListener(spark)
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


class Gated(Collected):
    """Lets one micro-batch pass, and the others when the gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def __call__(self, frame, batch):
        assert batch == 0 or self.gate.wait(PATIENCE_SECONDS)
        super().__call__(frame, batch)


def rows_behind(listener):
    """Return the rows behind of every source and topic."""
    return {(lag.source, one.topic): one.rows for lag in listener.lags() for one in lag.topics}


@pytest.mark.any_server
def test_a_query_is_behind_until_it_has_read_everything(spark, server, listener, tmp_path):
    """Two sources of TubeMQ and one of another kind, in one query."""
    first, second = server.fresh_topic("3x1"), server.fresh_topic()
    produce_numbers(server.master, first, range(100))
    produce_numbers(server.master, second, range(100, 150))
    sink = Gated()
    others = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    frame = (
        read_stream(spark, server, first, maxOffsetsPerTrigger="40")
        .select("value")
        .union(others.where("value < 0").selectExpr("cast(cast(value as string) as binary)"))
        .union(read_stream(spark, server, second).select("value"))
    )
    query = start(frame, sink, tmp_path, processingTime="0 seconds")

    wait_until(listener.lags, timeout_s=PATIENCE_SECONDS, what="the first progress")
    behind = rows_behind(listener)
    assert {topic: rows for (_, topic), rows in behind.items()} == {
        first: 100 - len(sink.rows) + 50,
        second: 0,
    }
    assert len({source for source, _ in behind}) == 2
    with listener.metrics() as metrics:
        assert f'topic="{first}"}} {float(behind[min(behind)])}' in metrics.text()
        sink.gate.set()
        wait_until(
            lambda: set(rows_behind(listener).values()) == {0},
            timeout_s=PATIENCE_SECONDS,
            what="the query to catch up",
        )
        assert {one.seconds for lag in listener.lags() for one in lag.topics} == {0.0}
        assert len(sink.rows) == 150
        query.stop()
        wait_until(lambda: not listener.lags(), timeout_s=PATIENCE_SECONDS, what="the query's end")
        assert "topic=" not in metrics.text()


def values(metrics):
    """Return the values by the name of the metric; there is one query with one source and one topic."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


@contextlib.contextmanager
def idle_told_often(spark):
    """Set how often Spark tells of idle queries: twice a second."""
    spark.conf.set(IDLE_INTERVAL, "500")
    yield
    spark.conf.unset(IDLE_INTERVAL)


@pytest.mark.any_server
def test_metrics_tell_what_was_read_and_whether_a_query_is_idle(spark, server, listener, tmp_path):
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(100, 150))
    frame = with_bytes(read_stream(spark, server, topic, maxOffsetsPerTrigger="30").select("value"))
    with idle_told_often(spark), listener.metrics() as metrics:
        query = start(frame, Collected(), tmp_path, processingTime="0 seconds")
        wait_until(
            lambda: values(metrics).get("tubemq_query_idle") == 1,
            timeout_s=PATIENCE_SECONDS,
            what="an idle query",
        )
        seen = values(metrics)
        assert seen["tubemq_read_rows_total"] == seen["tubemq_input_rows_total"] == 50
        assert seen["tubemq_observed_bytes_total"] == 50 * len("100")
        assert seen["tubemq_batches_total"] >= 2
        assert seen["tubemq_batch_seconds_total"] > 0
        assert seen["tubemq_lag_rows"] == seen["tubemq_brokers_away"] == 0
        query.stop()


def test_an_idle_query_tells_of_a_broker_that_is_away(spark, listener, tmp_path):
    """Spark makes no micro-batch then, and keeps the last progress up to date."""
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2) as tubemq:
        produce_numbers(tubemq.master, "demo", range(20))
        options = {"tubemq.master.servers": tubemq.master, "tubemq.group": "it_group", "subscribe": "demo"}
        frame = spark.readStream.format("tubemq").options(**options, startingOffsets="earliest").load()
        with idle_told_often(spark), listener.metrics() as metrics:

            def wait_for(name, value):
                wait_until(
                    lambda: values(metrics).get(name) == value,
                    timeout_s=PATIENCE_SECONDS,
                    what=f"{name} to be {value}",
                )

            query = start(frame, Collected(), tmp_path, processingTime="0 seconds")
            wait_for("tubemq_query_idle", 1)
            tubemq.faults.stop_broker(2)
            wait_for("tubemq_brokers_away", 1)
            assert values(metrics)["tubemq_query_idle"] == 1
            tubemq.faults.start_broker(2)
            wait_for("tubemq_brokers_away", 0)
            assert values(metrics)["tubemq_broker_outages_total"] == 1
            query.stop()
