"""A stream from two Java brokers into files, while rows are written and one of the brokers is away."""

import time

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows
from integration_tests.rig.queries import progress, read_stream
from integration_tests.rig.runs import chance_of
from integration_tests.rig.servers import await_files, server_of
from integration_tests.rig.steady_load import steady_load
from tubemq_spark.model import INDEX_ENTRY_BYTES

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

AWAY_SECONDS = 75
OTHERS_GO_ON_SECONDS = 20
"""So long after a broker stopped, rows that the other one took later are in the sink."""
PATIENCE_SECONDS = 120

STAYS, GOES = 1, 2
"""The brokers."""


class FileSink:
    """A query into Parquet files."""

    def __init__(self, spark, cluster, topic, folder, trigger_seconds):
        self.spark = spark
        self.topic = topic
        self.folder = str(folder / "rows")
        stream = read_stream(spark, server_of(cluster), topic)
        self.query = (
            stream.select("brokerId", "offset", "value")
            .writeStream.format("parquet")
            .option("path", self.folder)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime=f"{trigger_seconds} seconds")
            .start()
        )

    def rows(self):
        """Return all rows of all finished micro-batches."""
        return self.spark.read.parquet(self.folder).collect()

    def reached(self, broker_id):
        """Return where the last finished micro-batch ended in a broker's partition, 0 before the first."""
        assert self.query.isActive, self.query.exception()
        return (
            progress(self.query, self.topic, "endOffset")[f"{broker_id}:0"] if self.query.lastProgress else 0
        )

    def await_offset(self, broker_id, offset, timeout_s):
        """Wait until all rows of a broker below an offset are in the files; return how long it took."""
        begun = time.monotonic()
        wait_until(
            lambda: self.reached(broker_id) >= offset,
            timeout_s=timeout_s,
            what=f"rows of broker {broker_id} up to offset {offset}",
        )
        return time.monotonic() - begun

    def await_next_batch(self):
        """Wait until a micro-batch has just been finished."""
        last = self.reached(STAYS)
        wait_until(lambda: self.reached(STAYS) > last, timeout_s=PATIENCE_SECONDS, what="a micro-batch")


def end(cluster, broker_id, topic):
    """Return where a broker's partition ends now."""
    return cluster.brokers[broker_id].admin.pubinfo([topic])[topic, 0].latest


def assert_every_row_once(cluster, sink, load, record_property):
    """Every record of both brokers is in the files once, and every row that was written is among them.

    A row whose acknowledgement was lost is stored twice; so records are compared by their offsets.
    """
    rows = sink.rows()
    stored = {
        (broker_id, offset)
        for broker_id in (STAYS, GOES)
        for offset in range(0, end(cluster, broker_id, sink.topic), INDEX_ENTRY_BYTES)
    }
    assert_same_rows([(row.brokerId, row.offset) for row in rows], stored)
    numbers = {int(row.value) for row in rows}
    assert numbers >= set(range(load.acknowledged))
    record_property("rows", len(rows))
    record_property("stored twice by the producer", len(rows) - len(numbers))


def read_to_the_end(cluster, sink):
    for broker_id in (STAYS, GOES):
        sink.await_offset(broker_id, end(cluster, broker_id, sink.topic), PATIENCE_SECONDS)
    assert sink.query.isActive, sink.query.exception()
    sink.query.stop()


def stay_away(sink, stopped):
    """Wait until a broker has been away for long enough; the query must not end."""
    wait_until(
        lambda: not sink.query.isActive or time.monotonic() - stopped > AWAY_SECONDS,
        timeout_s=2 * AWAY_SECONDS,
        what="the time to pass",
    )
    assert sink.query.isActive, sink.query.exception()


def stop(cluster, sink, _):
    """Stop a broker in good order, just after a micro-batch; return when it was told to."""
    sink.await_next_batch()
    begun = time.monotonic()
    cluster.stop_broker(GOES)
    return begun


def kill(cluster, sink, load):
    """Kill a broker that has all it has acknowledged on its disk and in a micro-batch; return when."""
    with load.paused():
        await_files(cluster, GOES, sink.topic)
        sink.await_offset(GOES, end(cluster, GOES, sink.topic), PATIENCE_SECONDS)
        begun = time.monotonic()
        cluster.kill_broker(GOES)
    return begun


@pytest.mark.parametrize("leave", [stop, kill], ids=["stopped", "killed"])
def test_rows_of_the_other_broker_go_on(spark, real_brokers, tmp_path, request, record_property, leave):
    """A broker goes between two micro-batches: the next ones have the other's rows, and later its own.

    The trigger is longer than a broker takes to stop, so that no micro-batch counts on one that is about to.
    """
    cluster, topic = real_brokers, request.node.callspec.id
    with steady_load(cluster.master, topic) as load:
        sink = FileSink(spark, cluster, topic, tmp_path, trigger_seconds=10)
        sink.await_next_batch()

        gone = leave(cluster, sink, load)
        later = end(cluster, STAYS, topic)
        left = OTHERS_GO_ON_SECONDS - (time.monotonic() - gone)
        sink.await_offset(STAYS, later + INDEX_ENTRY_BYTES, timeout_s=left)
        record_property("seconds until the other's rows were there", round(time.monotonic() - gone, 1))
        held = sink.reached(GOES)

        stay_away(sink, gone)
        assert sink.reached(GOES) == held
        cluster.brokers[GOES].server.start()
        restarted = time.monotonic()
        sink.await_offset(GOES, held + INDEX_ENTRY_BYTES, timeout_s=PATIENCE_SECONDS)
        record_property("seconds until its rows were there", round(time.monotonic() - restarted, 1))

    read_to_the_end(cluster, sink)
    assert_every_row_once(cluster, sink, load, record_property)


def test_a_broker_stops_at_any_moment(spark, real_brokers, tmp_path, request, record_property):
    """Also in a micro-batch, which waits for it then: the query does not end, and every row comes once."""
    cluster, topic = real_brokers, "interrupted"
    with steady_load(cluster.master, topic) as load:
        sink = FileSink(spark, cluster, topic, tmp_path, trigger_seconds=1)
        sink.await_next_batch()
        time.sleep(chance_of(request.node.name).uniform(0, 3))

        stopped = time.monotonic()
        cluster.stop_broker(GOES)
        later = end(cluster, STAYS, topic)
        stay_away(sink, stopped)
        record_property("rows of the other while it was away", sink.reached(STAYS) > later)
        cluster.brokers[GOES].server.start()
        restarted = time.monotonic()
        for broker_id in (STAYS, GOES):
            sink.await_offset(broker_id, later + INDEX_ENTRY_BYTES, timeout_s=PATIENCE_SECONDS)
        record_property("seconds until rows of both were there", round(time.monotonic() - restarted, 1))

    read_to_the_end(cluster, sink)
    assert_every_row_once(cluster, sink, load, record_property)
