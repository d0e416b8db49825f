"""Both sinks on every server, read back by our own source."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import read, read_stream, to_topic, write


def rows_of(spark, server, topic):
    return read(spark, server, topic, includeAttributes="true").collect()


@pytest.mark.smoke
def test_a_frame_is_written_with_all_its_columns(spark, server):
    topic = server.fresh_topic("3x1")
    minute = datetime.datetime(2024, 2, 29, 12, 34, tzinfo=datetime.UTC)
    rows = [(f"value {n}", topic, f"key {n % 7}", f"type_{n % 3}", minute, {"n": str(n)}) for n in range(500)]
    frame = spark.createDataFrame(
        rows,
        "value string, topic string, key string, messageType string, timestamp timestamp, "
        "attributes map<string,string>",
    )

    write(frame, server)

    found = rows_of(spark, server, topic)
    assert_same_rows(
        [(bytes(r.value).decode(), r.messageType, r.attributes["n"]) for r in found],
        [(row[0], row[3], row[5]["n"]) for row in rows],
    )
    by_key = {}
    for row in found:
        by_key.setdefault(int(row.attributes["n"]) % 7, set()).add(row.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert {row.timestamp.astimezone(datetime.UTC) for row in found} == {minute}


def test_the_topic_option_wins_and_an_explicit_route_is_taken(spark, server):
    topic = server.fresh_topic("2x3")
    frame = spark.range(60).selectExpr(
        "cast(id as string) as value",
        "'nowhere' as topic",
        "1 as brokerId",
        "cast(10000 + id % 3 as int) as partition",
    )

    write(frame, server, topic=topic)

    found = rows_of(spark, server, topic)
    assert_same_rows([(int(r.value), r.partition) for r in found], [(n, 10000 + n % 3) for n in range(60)])


def test_a_frame_read_from_tubemq_can_be_written_back(spark, server):
    source, target = server.fresh_topic(), server.fresh_topic()
    produce_numbers(server.master, source, range(200))

    write(read(spark, server, source, includeAttributes="true"), server, topic=target)

    assert_same_rows([int(r.value) for r in rows_of(spark, server, target)], range(200))


@pytest.mark.smoke
def test_texts_of_any_collation_are_written(spark, server):
    topic = server.fresh_topic()
    frame = spark.range(20).selectExpr(
        "cast(id as string) collate UTF8_LCASE as value",
        "cast(id % 3 as string) collate UNICODE as messageType",
    )

    write(frame, server, topic=topic)

    found = [(int(row.value), row.messageType) for row in rows_of(spark, server, topic)]
    assert_same_rows(found, [(number, str(number % 3)) for number in range(20)])


def test_a_frame_read_from_a_topic_of_another_shape_can_be_written_back(spark, server):
    """Where its rows came from, the target has no partition."""
    source, target = server.fresh_topic("3x1"), server.fresh_topic("2x3")
    produce_numbers(server.master, source, range(60))

    write(read(spark, server, source), server, topic=target)

    assert_same_rows([int(row.value) for row in rows_of(spark, server, target)], range(60))


def test_a_stream_from_topic_to_topic(spark, server, tmp_path):
    """Source and sink in one query, in several micro-batches, stopped and started again."""
    source, target = server.fresh_topic("3x1"), server.fresh_topic("3x1")

    def run():
        rows = read_stream(spark, server, source, maxOffsetsPerTrigger="300").select("value")
        return to_topic(rows, tmp_path / "checkpoint", server.options(topic=target))

    produce_numbers(server.master, source, range(1000))
    assert len(run().recentProgress) >= 4
    produce_numbers(server.master, source, range(1000, 1500))
    run()

    assert_same_rows([int(r.value) for r in rows_of(spark, server, target)], range(1500))


def test_writing_on_a_thread_without_an_active_session(spark, server):
    """Spark does not find Python data sources there; docs/spark/cluster.md says what helps.

    Should this fail with a new Spark: the page can do without.
    """
    topic = server.fresh_topic()
    options = server.options(topic=topic)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    frame = spark.range(20).selectExpr("cast(id AS string) AS value")
    spark.sql("CREATE TABLE letters (value string) USING tubemq")

    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(write, frame, server, topic=topic).result()
        thread.submit(frame.writeTo("letters").options(**options).append).result()
        insert = f"INSERT INTO letters WITH ({listed}) SELECT cast(id + 20 AS string) FROM range(20)"
        thread.submit(spark.sql, insert).result()
        assert len(thread.submit(rows_of, spark, server, topic).result()) == 40
        more = thread.submit(spark.createDataFrame, [("40",), ("41",)], "value string").result()
        thread.submit(write, more, server, topic=topic).result()

    spark.sql("DROP TABLE letters")
    assert_same_rows([int(row.value) for row in rows_of(spark, server, topic)], range(42))
