"""``spark.readStream.format("tubemq")`` on every server: where a stream begins, goes on, and ends."""

import json
import time

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, collected, progress, read_stream, run, start
from integration_tests.rig.servers import partitions

PATIENCE_SECONDS = 90


def forget_commit(checkpoint, batch):
    """Make a micro-batch look as if the query had crashed before its end."""
    for path in (f"commits/{batch}", f"commits/.{batch}.crc"):
        (checkpoint / path).unlink()


def test_latest_sees_only_what_comes_later(spark, server, tmp_path):
    """The begin is kept with the first micro-batch, so a crash before its commit does not move it."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(10))
    stream = read_stream(spark, server, topic, startingOffsets="latest")

    sink = collected(stream, tmp_path)
    assert sink.rows == []
    forget_commit(tmp_path, 0)
    produce_numbers(server.master, topic, range(10, 15))
    run(stream, sink, tmp_path)

    assert_same_rows(sink.rows, range(10, 15))


def test_a_stream_begins_at_given_offsets(spark, server, tmp_path):
    """Offsets and words in one JSON text; only the asked columns are there."""
    topic, other = server.fresh_topic(), server.fresh_topic()
    produce_numbers(server.master, topic, range(20))
    produce_numbers(server.master, other, range(20, 30))
    stream = (
        spark.readStream.format("tubemq")
        .options(**server.options(subscribe=f"{topic},{other}"))
        .option("startingOffsets", json.dumps({topic: {"1:0": 28 * 12}, other: "latest"}))
        .schema("offset long, value binary")
        .load()
    )
    rows = []

    run(stream, lambda frame, _: rows.extend(frame.collect()), tmp_path)

    assert stream.columns == ["offset", "value"]
    assert [(row.offset, int(row.value)) for row in rows] == [(28 * n, n) for n in range(12, 20)]


def test_a_limit_is_shared_out_by_backlog(spark, server, tmp_path):
    """The sizes are those of the same test of Spark's Kafka source: 101, 11 and 1 rows, 10 a trigger."""
    topics = [server.fresh_topic() for _ in range(3)]
    for topic, numbers in zip(topics, (range(100, 201), range(10, 21), range(1, 2)), strict=True):
        produce_numbers(server.master, topic, numbers)
    stream = read_stream(spark, server, ",".join(topics), maxOffsetsPerTrigger="10")
    sink = Collected()

    query = start(stream, sink, tmp_path, processingTime="0 seconds")
    wait_until(lambda: len(sink.batches) >= 3, timeout_s=PATIENCE_SECONDS, what="three micro-batches")
    query.stop()

    first, second, third = (sorted(rows) for _, rows in sink.batches[:3])
    assert first == [1, 10, *range(100, 108)]
    assert second == [11, *range(108, 117)]
    assert third == [12, *range(117, 126)]


def test_a_run_ends_where_the_topic_ended_when_it_began(spark, server, tmp_path):
    """What arrives during a run is for the next run, which begins exactly there."""
    topic = server.fresh_topic("2x3")
    produce_numbers(server.master, topic, range(600))
    stream = read_stream(spark, server, topic, maxOffsetsPerTrigger="200")
    sink = Collected()

    def sink_while_rows_arrive(frame, batch):
        sink(frame, batch)
        produce_numbers(server.master, topic, range(1000 + 100 * batch, 1100 + 100 * batch))

    query = run(stream, sink_while_rows_arrive, tmp_path)
    assert [len(rows) for _, rows in sink.batches] == [200, 200, 200]
    assert_same_rows(sink.rows, range(600))
    begin, end, latest = (
        progress(query, topic, which) for which in ("startOffset", "endOffset", "latestOffset")
    )
    assert begin.keys() == end.keys() == latest.keys() == set(partitions("2x3"))
    assert all(begin[partition] < end[partition] <= latest[partition] for partition in end)

    run(stream, sink, tmp_path)
    assert_same_rows(sink.rows, [*range(600), *range(1000, 1300)])


@pytest.mark.any_server
@pytest.mark.smoke
def test_a_repeated_micro_batch_has_the_same_rows(spark, server, tmp_path):
    """Also where partitions share a store, and though more rows are there now."""
    topic = server.fresh_topic("2x3")
    produce_numbers(server.master, topic, range(500))
    stream = read_stream(spark, server, topic, maxOffsetsPerTrigger="170")
    sink = collected(stream, tmp_path)
    number, rows = sink.batches[-1]
    forget_commit(tmp_path, number)
    produce_numbers(server.master, topic, range(500, 600))

    again = collected(stream, tmp_path)

    assert again.batches[0][0] == number
    assert_same_rows(again.batches[0][1], rows)
    assert_same_rows(sink.rows + again.rows[len(rows) :], range(600))


def test_two_streams_of_one_group_at_once(spark, server, tmp_path):
    """One reads what the other reads, and another topic as well."""
    both, one = server.fresh_topic("3x1"), server.fresh_topic()
    produce_numbers(server.master, both, range(300))
    produce_numbers(server.master, one, range(300, 400))
    sinks = [Collected(), Collected()]

    queries = [
        start(
            read_stream(spark, server, topics, maxOffsetsPerTrigger="100"),
            sink,
            tmp_path / topics,
            processingTime="0 seconds",
        )
        for topics, sink in zip((both, f"{both},{one}"), sinks, strict=True)
    ]
    wait_until(
        lambda: [len(sink.rows) for sink in sinks] == [300, 400],
        timeout_s=PATIENCE_SECONDS,
        what="all rows of both streams",
    )
    for query in queries:
        query.stop()

    assert_same_rows(sinks[0].rows, range(300))
    assert_same_rows(sinks[1].rows, range(400))


@pytest.mark.slow_on_java
@pytest.mark.timeout(300)
def test_a_stream_rests_when_nothing_comes_and_survives_its_broker(spark, server, tmp_path):
    """An idle query plans no micro-batch; rows before, during and after a restart of the broker come once."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(100))
    sink = Collected()
    patient = {"fetchOffset.numRetries": "60", "fetchOffset.retryIntervalMs": "500"}
    query = start(read_stream(spark, server, topic, **patient), sink, tmp_path, processingTime="0 seconds")

    def await_rows(count):
        wait_until(lambda: len(sink.rows) >= count, timeout_s=PATIENCE_SECONDS, what=f"{count} rows")

    await_rows(100)
    batches = len(sink.batches)
    time.sleep(1.5)
    assert len(sink.batches) == batches == 1
    assert progress(query, topic, "endOffset") == progress(query, topic, "latestOffset")

    produce_numbers(server.master, topic, range(100, 150))
    server.restart_broker()
    produce_numbers(server.master, topic, range(150, 200))
    await_rows(200)
    assert query.isActive
    query.stop()

    assert_same_rows(sink.rows, range(200))
