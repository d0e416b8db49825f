"""What is wrong is told through Spark in one sentence of ours, and nothing is written.

Each kind of mistake is here once or twice; the unit tests of `options`, `source` and `sink` have them all.
"""

import re
import socket

import pytest
from pyspark.errors import AnalysisException, PySparkException

from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.queries import Collected, read, read_stream, refusal, run, to_topic, write
from tubemq_spark.embedded.server import EmbeddedTubeMQ

pytestmark = pytest.mark.sampled


@pytest.fixture
def topic(server):
    """A topic with 20 messages, which is as it was when the test is over."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(20))
    yield topic
    assert server.stored(topic) == 20


def stream(spark, server, folder, schema=None, **options):
    """Run a stream of a topic to its end."""
    reader = spark.readStream.format("tubemq").options(**server.options(**options))
    frame = (reader.schema(schema) if schema else reader).load()
    return run(frame, Collected(), folder)


# --- options, offsets and columns of a read


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("options", "condition", "told"),
    [
        ({"startingOffset": "latest"}, "TUBEMQ_OPTION_UNKNOWN", "did you mean 'startingOffsets'?"),
        ({"kafka.bootstrap.servers": "x:1"}, "TUBEMQ_OPTION_UNSUPPORTED", "tubemq.master.servers"),
        ({"startingOffsets": '{"TOPIC": {"1:0": 30}}'}, "TUBEMQ_OFFSETS_MALFORMED", "multiple of 28"),
    ],
)
def test_options_are_refused_when_the_frame_is_made(spark, server, topic, options, condition, told):
    options = {"subscribe": topic} | {key: text.replace("TOPIC", topic) for key, text in options.items()}

    found = refusal(lambda: spark.read.format("tubemq").options(**server.options(**options)).load())

    assert found[0] == condition
    assert told in found[1]


@pytest.mark.parametrize(
    ("options", "condition", "told"),
    [
        ({"startingOffsets": '{"TOPIC": {"1:0": 588}}'}, "TUBEMQ_OFFSET_BEYOND_LOG", "0 to 560"),
        ({"subscribe": "nowhere"}, "TUBEMQ_TOPIC_NOT_DEPLOYED", "nowhere"),
    ],
)
def test_what_does_not_fit_the_topic(spark, server, topic, options, condition, told, tmp_path):
    """The same sentence for a batch read and for a stream."""
    options = {"subscribe": topic} | {key: text.replace("TOPIC", topic) for key, text in options.items()}

    in_batch = refusal(
        lambda: spark.read.format("tubemq").options(**server.options(**options)).load().count()
    )
    in_stream = refusal(lambda: stream(spark, server, tmp_path, **options))

    assert in_batch == in_stream
    assert in_batch[0] == condition
    assert told in in_batch[1]


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"startingOffsets": "latest"}, "TUBEMQ_POSITION_IN_BATCH"),
        (
            {"startingOffsets": '{"TOPIC": {"1:0": 280}}', "endingOffsets": '{"TOPIC": {"1:0": 252}}'},
            "TUBEMQ_START_AFTER_END",
        ),
    ],
)
def test_ends_that_a_batch_read_cannot_have(spark, server, topic, options, condition):
    options = {key: text.replace("TOPIC", topic) for key, text in options.items()}

    assert refusal(lambda: read(spark, server, topic, **options).count())[0] == condition


@pytest.mark.any_server
def test_a_column_that_no_row_has(spark, server, topic):
    reader = spark.read.format("tubemq").options(**server.options(subscribe=topic)).schema("values binary")

    assert refusal(lambda: reader.load().count())[0] == "TUBEMQ_SCHEMA_UNKNOWN_COLUMN"


@pytest.mark.any_server
def test_a_stream_that_cannot_be(spark, server, topic, tmp_path):
    """What is wrong with a new stream, or with one that goes on, is told as well as for a batch read."""
    unknown_column = refusal(
        lambda: stream(spark, server, tmp_path / "new", "values binary", subscribe=topic)
    )
    assert unknown_column[0] == "TUBEMQ_SCHEMA_UNKNOWN_COLUMN"

    stream(spark, server, tmp_path / "old", subscribe=topic)
    with_end = {"subscribe": topic, "endingOffsets": "latest"}
    assert (
        refusal(lambda: stream(spark, server, tmp_path / "old", **with_end))[0] == "TUBEMQ_ENDING_IN_STREAM"
    )


# --- writes


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("columns", "options", "condition"),
    [
        (["'x' as body"], {}, "TUBEMQ_SINK_NO_VALUE"),
        (["'x' as value", "'y' as body"], {}, "TUBEMQ_SINK_UNKNOWN_COLUMN"),
        (["'x' as value"], {"subscrib": "x"}, "TUBEMQ_OPTION_UNKNOWN"),
        (["cast(null as string) as value"], {}, "TUBEMQ_SINK_NULL_VALUE"),
        (["repeat('x', 1048577) as value"], {}, "TUBEMQ_MESSAGE_TOO_LONG"),
    ],
)
def test_a_write_that_cannot_be(spark, server, topic, columns, options, condition):
    frame = spark.range(1).selectExpr(*columns)

    assert refusal(lambda: write(frame, server, **{"topic": topic, **options}))[0] == condition


def test_a_write_to_a_place_that_does_not_exist(spark, server, topic):
    frame = spark.range(1).selectExpr("'x' as value")
    with_topic_column = frame.selectExpr("value", "'nowhere' as topic")
    other_partition = frame.selectExpr("value", "1 as brokerId", "7 as partition")

    assert refusal(lambda: write(frame, server, topic="nowhere"))[0] == "TUBEMQ_TOPIC_UNKNOWN"
    assert refusal(lambda: write(with_topic_column, server))[0] == "TUBEMQ_TOPIC_UNKNOWN"
    assert refusal(lambda: write(other_partition, server, topic=topic))[0] == "TUBEMQ_PARTITION_UNKNOWN"


@pytest.mark.any_server
def test_a_row_without_a_topic(spark, server, topic):
    without_column = spark.range(1).selectExpr("'x' as value")
    without_value = spark.range(1).selectExpr("'x' as value", "cast(null as string) as topic")

    assert refusal(lambda: write(without_column, server))[0] == "TUBEMQ_SINK_NO_TOPIC"
    assert refusal(lambda: write(without_value, server))[0] == "TUBEMQ_SINK_NULL_TOPIC"


@pytest.mark.any_server
def test_a_topic_is_not_overwritten(spark, server, topic):
    writer = spark.range(1).selectExpr("'x' as value").write.format("tubemq")

    found = refusal(lambda: writer.options(**server.options(topic=topic)).mode("overwrite").save())

    assert found[0] == "TUBEMQ_SINK_OVERWRITE"


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ("map('a=b', 'c')", "attribute name 'a=b' contains ',' or '='"),
        ("map('a', 'x$msgType$')", "'x$msgType$' contains a name that TubeMQ reserves"),
    ],
)
def test_attributes_that_cannot_be(spark, server, topic, attributes, told):
    """They are not stored in another form either, and the error names the row."""
    frame = spark.range(1).selectExpr("'some value' as value", f"{attributes} as attributes")

    found = refusal(lambda: write(frame, server, topic=topic))

    assert found[0] == "TUBEMQ_BAD_MESSAGE"
    assert told in found[1]
    assert re.search(r"message 1 of task \d+.*'some value'", found[1])


@pytest.mark.any_server
@pytest.mark.parametrize("mode", ["ignore", "error"])
def test_a_mode_that_looks_whether_a_topic_is_empty(spark, server, topic, mode):
    """Spark knows before us that nothing but ``append`` and ``overwrite`` is for a source without tables."""
    writer = spark.range(1).selectExpr("'x' as value").write.format("tubemq").mode(mode)

    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*tubemq"):
        writer.options(**server.options(topic=topic)).save()


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("complete", r"\[TUBEMQ_SINK_OVERWRITE\]"),
        ("update", "STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE|does not support Update mode|update"),
    ],
)
def test_an_output_mode_that_changes_what_is_stored(spark, server, topic, tmp_path, mode, told):
    source = server.fresh_topic()
    produce_numbers(server.master, source, range(3))
    counts = read_stream(spark, server, source).groupBy("topic").count()
    writer = counts.selectExpr("cast(count as string) as value").writeStream.format("tubemq").outputMode(mode)
    writer = writer.options(**server.options(topic=topic)).option("checkpointLocation", str(tmp_path))

    with pytest.raises(PySparkException, match=told):
        writer.trigger(availableNow=True).start().awaitTermination()


def test_a_topic_that_is_closed_for_publishing(spark):
    """A write waits for it as ``deliveryTimeoutMs`` says; the topic of dead letters counts as well."""
    with EmbeddedTubeMQ(topics={"open": (1, 1), "closed": (1, 1)}, brokers=3) as running:
        running.close_topic("closed")
        settings = {"tubemq.master.servers": running.master, "deliveryTimeoutMs": "1500"}
        frame = spark.range(1).selectExpr("'x' as value")

        def save(frame, **options):
            frame.write.format("tubemq").mode("append").options(**settings, **options).save()

        for attempt in (
            lambda: save(frame, topic="closed"),
            lambda: save(frame.selectExpr("value", "'closed' as topic")),
            lambda: save(frame, topic="open", onError="deadLetter", deadLetterTopic="closed"),
        ):
            found = refusal(attempt)
            assert found[0] == "TUBEMQ_TOPIC_UNPUBLISHABLE"
            assert "closed" in found[1]
            assert "1500" in found[1]
        assert running.stats().messages_in == 0


@pytest.mark.any_server
def test_a_stream_that_cannot_be_written(spark, server, topic, tmp_path):
    """A stream fails with our sentence too, from its task and from its start."""
    source = server.fresh_topic()
    produce_numbers(server.master, source, range(3))
    frame = read_stream(spark, server, source)

    def write_stream(column, name):
        to_topic(frame.selectExpr(column), tmp_path / name, server.options(topic=topic))

    assert (
        refusal(lambda: write_stream("cast(null as string) as value", "null"))[0] == "TUBEMQ_SINK_NULL_VALUE"
    )
    assert refusal(lambda: write_stream("1 as value", "type"))[0] == "TUBEMQ_SINK_WRONG_TYPE"


def test_a_master_that_is_away(spark):
    """The error names the address; what else may listen there is told too, and needs no Spark to be seen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*closed.getsockname())
        options = {
            "tubemq.master.servers": address,
            "tubemq.rpcTimeoutMs": "1000",
            "fetchOffset.numRetries": "1",
        }
        reader = spark.read.format("tubemq").options(subscribe="demo", **options)
        writer = spark.range(1).selectExpr("'x' as value").write.format("tubemq").mode("append")
        reading = refusal(lambda: reader.load().count())
        writing = refusal(lambda: writer.options(topic="demo", **options).save())
    for condition, sentence in (reading, writing):
        assert condition == "TUBEMQ_NO_MASTER"
        assert address in sentence
