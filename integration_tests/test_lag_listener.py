"""How far a query is behind, as the listener of Spark's events tells."""

import threading

import pytest

from integration_tests.real.waiting import wait_until
from integration_tests.rig.produce import produce_numbers
from integration_tests.rig.queries import Collected, read_stream, start
from tubemq_spark.observe import LagListener

pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 60


@pytest.fixture
def listener(spark):
    made = LagListener()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


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
