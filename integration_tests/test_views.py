"""Views through Spark: where partitions are, how far queries and groups are behind, and who reads what."""

import datetime
from urllib.parse import urlsplit

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import Sample, produce, produce_numbers
from integration_tests.rig.queries import Collected, collected, read_stream, refusal, run

MADE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
STORED_SECONDS = 30
"""Brokers write down after some seconds what groups have committed."""


def view(spark, server, name, schema=None, **options):
    """Return the rows of a view."""
    web = urlsplit(server.admin.url).netloc
    reader = spark.read.format("tubemq").options(view=name)
    reader = reader.options(**{"tubemq.master.servers": server.master, "tubemq.master.web": web, **options})
    return (reader if schema is None else reader.schema(schema)).load()


def produce_timed(server, topic, count):
    minute = f"{MADE:%Y%m%d%H%M}"
    produce(server.master, topic, (Sample(b"%200d" % number, message_time=minute) for number in range(count)))


@pytest.mark.parametrize("shape", ["3x1", "2x3"])
def test_partitions(spark, server, shape):
    topic = server.fresh_topic(shape)
    produce_numbers(server.master, topic, range(90))
    frame = view(spark, server, "partitions", subscribe=topic)
    rows = frame.collect()

    stores, per_store = map(int, shape.split("x"))
    assert [(row.store, row.partition, row.partitionsInStore) for row in rows] == [
        (store, 10_000 * store + index, per_store) for store in range(stores) for index in range(per_store)
    ]
    assert {(row.topic, row.brokerId, row.broker, row.state, row.error) for row in rows} == {
        (topic, 1, server.broker, "answers", None)
    }
    assert all(row.earliest == 0 <= row.flushedLatest <= row.latest == 28 * row.rows for row in rows)
    assert frame.selectExpr("sum(rows / partitionsInStore)").first()[0] == pytest.approx(90)


@pytest.mark.any_server
def test_a_schema_names_some_columns_of_a_view(spark, server):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(7))
    rows = view(spark, server, "partitions", "rows long, topic string", subscribe=topic).collect()
    assert [row.asDict() for row in rows] == [{"rows": 7, "topic": topic}]
    condition, sentence = refusal(
        lambda: view(spark, server, "partitions", "row long", subscribe=topic).collect()
    )
    assert condition == "TUBEMQ_SCHEMA_UNKNOWN_COLUMN"
    assert "did you mean 'rows'?" in sentence


@pytest.mark.nightly
def test_the_lag_of_a_query_with_two_sources(spark, server, tmp_path):
    """Its checkpoint is the one that Spark wrote; what comes later is behind."""
    alone, shared = server.fresh_topic(), server.fresh_topic("2x3")
    for topic in (alone, shared):
        produce_numbers(server.master, topic, range(60))
    one, other = (read_stream(spark, server, topic, **{"tubemq.group": topic}) for topic in (alone, shared))
    assert len(collected(one.select("value").union(other.select("value")), tmp_path).rows) == 120

    at_end = view(spark, server, "lag", checkpointLocation=str(tmp_path))
    assert at_end.selectExpr("sum(rows)", "max(ageSeconds)", "sum(bytes)").first() == (0, None, None)
    produce_timed(server, alone, 3_000)
    produce_timed(server, shared, 60)
    rows = view(spark, server, "lag", checkpointLocation=f"file://{tmp_path}").collect()

    assert {(row.topic, row.source) for row in rows} == {(alone, "0"), (shared, "1")}
    (of_alone,) = (row for row in rows if row.topic == alone)
    assert (of_alone.rows, of_alone.offset, of_alone.rowsUntilExpiry) == (3_000, 28 * 60, 60)
    assert 3_000 * 200 < of_alone.bytes < 3_000 * 300
    # Spark hands out times in the zone of this process.
    assert of_alone.nextTime.astimezone(datetime.UTC) == MADE
    assert of_alone.ageSeconds > 0
    assert (of_alone.rowsUnderWay, of_alone.batch is not None, of_alone.error) == (0, True, None)
    of_shared = [row for row in rows if row.topic == shared]
    assert sum(row.rows / row.partitionsInStore for row in of_shared) == pytest.approx(60)


@pytest.mark.nightly
def test_a_micro_batch_that_fails_stays_in_the_lag(spark, server, tmp_path):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(10))
    run(read_stream(spark, server, topic), Collected(), tmp_path)
    produce_numbers(server.master, topic, range(5))

    def fail(*_):
        raise ValueError("no")

    with pytest.raises(Exception, match="no"):
        run(read_stream(spark, server, topic), fail, tmp_path)

    (row,) = view(spark, server, "lag", checkpointLocation=str(tmp_path)).collect()
    assert (row.rows, row.rowsUnderWay, row.offset, row.latest) == (5, 5, 280, 420)


def test_the_lag_of_a_group_and_all_groups(spark, server, tmp_path):
    """A query shows its progress in a group, as any consumer does."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(60))
    group = f"billing_{topic}"
    stream = read_stream(spark, server, topic, commitOffsetsToGroup="true", **{"tubemq.group": group})
    run(stream, Collected(), tmp_path)
    produce_timed(server, topic, 30)
    # Spark tells of a finished micro-batch when it plans the next one: the group is one behind.
    run(stream, Collected(), tmp_path)

    def groups():
        return view(spark, server, "groups", **{"tubemq.group": group}, subscribe=topic).collect()

    wait_until(lambda: len(groups()) == 3, timeout_s=STORED_SECONDS, what="the group's offsets to be stored")
    known = {row.partition: row for row in groups()}
    lag = {row.partition: row for row in view(spark, server, "lag", **{"tubemq.group": group}).collect()}
    assert known.keys() == lag.keys() == {0, 10_000, 20_000}
    for partition, row in known.items():
        assert (row.group, row.topic, row.state, row.rows) == (group, topic, "answers", lag[partition].rows)
        assert row.offset == lag[partition].offset
        assert lag[partition].source is None
    assert sum(row.offset for row in known.values()) == 28 * 60
    assert sum(row.rows for row in known.values()) == 30
    assert {row.nextTime.astimezone(datetime.UTC) for row in lag.values() if row.rows} == {MADE}
    of_topics = view(spark, server, "groups", subscribe=f"{topic},nobody_has_it").collect()
    assert {row.error for row in of_topics} == {None}
    # Those of the readers, too.
    assert group in {row.group for row in of_topics}
    assert {row.topic for row in of_topics} == {topic}


@pytest.mark.any_server
def test_views_through_sql(spark, server):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(4))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW held USING tubemq OPTIONS (view 'partitions', "
        f"subscribe '{topic}', tubemq.master.servers '{server.master}')"
    )
    assert spark.sql("SELECT topic, rows FROM held").collect() == [(topic, 4)]


@pytest.mark.any_server
def test_a_stream_has_no_views(spark, server, tmp_path):
    condition, sentence = refusal(
        lambda: run(read_stream(spark, server, "demo", view="lag"), Collected(), tmp_path)
    )
    assert condition == "TUBEMQ_VIEW_IN_STREAM"
    assert "read the view with spark.read" in sentence
