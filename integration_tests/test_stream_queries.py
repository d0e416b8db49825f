"""Streams in the queries that people make of them: unions, joins, watermarks, duplicates."""

import datetime
import json

import pytest
from pyspark.errors import StreamingQueryException, UnsupportedOperationException
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from integration_tests.rig.messages import Sample, assert_same_rows, produce, produce_numbers
from integration_tests.rig.queries import read_stream, run

pytestmark = pytest.mark.any_server

PATIENCE_SECONDS = 60
SOURCES = pytest.mark.parametrize("sources", [1, pytest.param(2, marks=pytest.mark.nightly)])
MINUTE = datetime.datetime(2024, 2, 29, 12, 0, tzinfo=datetime.UTC)


class Rows:
    """A sink that keeps the rows of each micro-batch as tuples."""

    def __init__(self):
        self.batches = []

    def __call__(self, frame, _):
        self.batches.append([tuple(row) for row in frame.collect()])

    @property
    def all(self):
        return [row for batch in self.batches for row in batch]


def texts(frame):
    return frame.select(F.col("value").cast("string"))


def offsets_logged(checkpoint):
    """Return the offsets of the sources in the checkpoint's last micro-batch."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(line) for line in last.read_text().splitlines()[2:]]


def both_ways(spark, server, topic, **options):
    """Return a stream twice: as one frame, and as two frames that know nothing of each other."""
    one, other = (texts(read_stream(spark, server, topic, **options)) for _ in range(2))
    return {1: (one, one), 2: (one, other)}


@SOURCES
def test_a_union_of_a_stream_with_itself(spark, server, sources, tmp_path):
    """One frame is one source, which is read once; two frames are two. Each use has an offset of its own."""
    topic, sink = server.fresh_topic(), Rows()
    produce_numbers(server.master, topic, range(100))
    one, other = both_ways(spark, server, topic)[sources]

    query = run(one.union(other), sink, tmp_path)

    assert_same_rows([int(value) for (value,) in sink.all], [*range(100)] * 2)
    assert len(query.lastProgress["sources"]) == sources
    assert [entry["topics"] for entry in offsets_logged(tmp_path)] == [{topic: {"1:0": 2800}}] * 2


@SOURCES
def test_a_join_of_a_stream_with_itself(spark, server, sources, tmp_path):
    topic, sink = server.fresh_topic(), Rows()
    produce_numbers(server.master, topic, range(100))
    one, other = both_ways(spark, server, topic, maxOffsetsPerTrigger="40")[sources]
    joined = one.withColumnRenamed("value", "first").join(other, F.col("first") == F.col("value"))

    query = run(joined, sink, tmp_path)

    assert_same_rows([(int(a), int(b)) for a, b in sink.all], [(n, n) for n in range(100)])
    assert len(query.lastProgress["sources"]) == sources
    assert [entry["topics"] for entry in offsets_logged(tmp_path)] == [{topic: {"1:0": 2800}}] * 2


@pytest.mark.nightly
def test_two_streams_with_limits_of_their_own_while_one_is_idle(spark, server, tmp_path):
    """The idle one neither holds up the other one nor loses its place, over a restart too."""
    busy, idle = server.fresh_topic(), server.fresh_topic()
    sink = Rows()

    def resume():
        streams = [
            read_stream(spark, server, topic, maxOffsetsPerTrigger=limit)
            for topic, limit in ((busy, "30"), (idle, "7"))
        ]
        query = run(texts(streams[0]).union(texts(streams[1])), sink, tmp_path)
        return [
            {json.dumps(source["endOffset"]): source["numInputRows"] for source in progress["sources"]}
            for progress in query.recentProgress
        ]

    produce_numbers(server.master, busy, range(100))
    assert [sum(rows.values()) for rows in resume()] == [30, 30, 30, 10]
    produce_numbers(server.master, busy, range(100, 130))
    produce_numbers(server.master, idle, range(1_000, 1_020))
    assert [sorted(rows.values()) for rows in resume()] == [[7, 30], [0, 7], [0, 6]]
    assert_same_rows([int(value) for (value,) in sink.all], [*range(130), *range(1_000, 1_020)])


def minutes(*each):
    """Return messages whose text is the minute, and which carry it as their time."""
    return [
        Sample(b"%d" % one, message_time=f"{MINUTE + one * datetime.timedelta(minutes=1):%Y%m%d%H%M}")
        for one in each
    ]


def test_duplicates_are_dropped_within_a_watermark(spark, server, tmp_path):
    """Over several micro-batches and a restart; what is older than the watermark is late."""
    topic, sink = server.fresh_topic(), Rows()

    def resume():
        frame = read_stream(spark, server, topic, maxOffsetsPerTrigger="3")
        once = frame.withWatermark("timestamp", "10 minutes").dropDuplicates(["value", "timestamp"])
        run(texts(once), sink, tmp_path)

    produce(server.master, topic, minutes(0, 1, 0, 1, 2, 30))
    resume()
    produce(server.master, topic, minutes(30, 3, 31))
    resume()

    assert_same_rows([int(value) for (value,) in sink.all], [0, 1, 2, 30, 31])


def test_windows_are_closed_by_the_watermark(spark, server, tmp_path):
    topic, sink = server.fresh_topic(), Rows()
    produce(server.master, topic, minutes(0, 1, 4, 5, 6, 12, 11, 30))
    frame = read_stream(spark, server, topic).withWatermark("timestamp", "2 minutes")
    counted = frame.groupBy(F.window("timestamp", "5 minutes")).count()

    run(counted.select("window.start", "count"), sink, tmp_path)

    # The window of minute 30 stays open.
    found = [
        ((begin - MINUTE.replace(tzinfo=None)) // datetime.timedelta(minutes=1), count)
        for begin, count in sink.all
    ]
    assert_same_rows(found, [(0, 3), (5, 2), (10, 2)])


@pytest.mark.nightly
def test_streams_are_joined_by_time(spark, server, tmp_path):
    """An outer join, whose rows without a partner come when the watermark has passed them."""
    orders, payments, sink = server.fresh_topic(), server.fresh_topic(), Rows()
    produce(server.master, orders, minutes(0, 1, 2, 60))
    produce(server.master, payments, minutes(1, 2, 60))
    ordered, paid = (
        read_stream(spark, server, topic)
        .withWatermark("timestamp", "1 minute")
        .select(F.col("value").cast("string").alias(name), F.col("timestamp").alias(f"{name}_at"))
        for topic, name in ((orders, "ordered"), (payments, "paid"))
    )
    in_time = F.expr("ordered = paid AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 5 MINUTES")

    run(ordered.join(paid, in_time, "leftOuter").select("ordered", "paid"), sink, tmp_path)

    assert_same_rows(sink.all, [("0", None), ("1", "1"), ("2", "2"), ("60", "60")])


def test_batches_are_joined_and_united_with_themselves(spark, server):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(100))
    frame = spark.read.format("tubemq").options(**server.options(subscribe=topic)).load()

    assert frame.union(frame).count() == 200
    assert frame.join(frame, "offset").count() == 100
    assert frame.groupBy("value").count().count() == 100


def test_triggers_that_spark_has_for_sources_in_java_only(spark, server, tmp_path):
    """Should this fail with a new Spark, docs/spark/cluster.md says something that is no longer true."""

    def begin(mode, **trigger):
        writer = read_stream(spark, server, server.fresh_topic()).writeStream.format("console")
        writer = writer.outputMode(mode).option("checkpointLocation", str(tmp_path / mode))
        writer.trigger(**trigger).start().awaitTermination(PATIENCE_SECONDS)

    with pytest.raises(UnsupportedOperationException, match="tubemq does not support continuous processing"):
        begin("append", continuous="1 second")
    with pytest.raises(
        StreamingQueryException, match=r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"
    ):
        begin("update", realTime="1 minute")
