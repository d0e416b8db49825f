"""What the Java client sends, both our readers give back; what both our sinks send, the Java client reads.

Every message is compared: its body byte for byte (by checksum, since they are many), its attributes,
its type and its time.
"""

import datetime
import hashlib

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from integration_tests.real.java_client import OutgoingMessage
from integration_tests.rig.messages import assert_same_rows, samples
from integration_tests.rig.queries import read, read_stream, to_files, to_topic, write
from integration_tests.rig.runs import form
from integration_tests.rig.servers import SHAPES

pytestmark = pytest.mark.timeout(300)

SYSTEM_ATTRIBUTES = ("$msgType$", "$msgTime$")
FULL_SHAPE = "2x3"
EACH_SHAPE = [one if one == FULL_SHAPE else pytest.param(one, marks=pytest.mark.nightly) for one in SHAPES]
"""What a message holds does not depend on the shape of its topic; CI takes the one that has everything."""

FRAME_COLUMNS = "value binary, messageType string, timestamp timestamp, attributes map<string,string>"
READ_COLUMNS = [
    "md5(value) as body",
    "map_entries(attributes) as attributes",
    "messageType",
    "date_format(timestamp, 'yyyyMMddHHmm') as time",
]
FILES = 4


def message(body, attributes, message_type, message_time):
    """Return what is compared of a message."""
    return (hashlib.md5(body).hexdigest(), frozenset(attributes), message_type, message_time)


def rows(frame):
    """Return what is compared of the messages of a frame of ``READ_COLUMNS``."""
    for row in frame.collect():
        pairs = (tuple(pair) for pair in row.attributes or ())
        attributes = frozenset(pair for pair in pairs if pair[0] not in SYSTEM_ATTRIBUTES)
        yield (row.body, attributes, row.messageType, row.time)


@pytest.fixture(scope="module")
def count(server):
    return server.pick(embedded=1500, real=form(short=4_000, long=20_000))


@pytest.fixture(scope="module")
def sent(count):
    """What is compared of all messages, which every test here sends."""
    return [message(s.body, s.attributes, s.message_type, s.message_time) for s in samples(count, seed=2)]


@pytest.fixture(scope="module")
def sample_files(count, tmp_path_factory):
    """The same messages as Parquet files, for the sinks."""
    folder = tmp_path_factory.mktemp("samples")
    for number in range(FILES):
        columns = [(s.body, s.message_type, _moment(s), s.attributes or None) for s in _part(count, number)]
        table = pa.Table.from_arrays(
            [
                pa.array(column, type_)
                for column, type_ in zip(
                    zip(*columns, strict=True),
                    (pa.binary(), pa.string(), pa.timestamp("us", "UTC"), pa.map_(pa.string(), pa.string())),
                    strict=True,
                )
            ],
            names=["value", "messageType", "timestamp", "attributes"],
        )
        parquet.write_table(table, folder / f"{number}.parquet")
    return str(folder)


def _part(count, number):
    return (s for n, s in enumerate(samples(count, seed=2)) if n % FILES == number)


def _moment(sample):
    if sample.message_time is None:
        return None
    return datetime.datetime.strptime(sample.message_time, "%Y%m%d%H%M").replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize("shape", EACH_SHAPE)
def test_java_messages_are_equal_in_both_readers(spark, server, java_client, shape, count, sent, tmp_path):
    topic = server.fresh_topic(shape)
    with java_client.producer(server.master, topic) as producer:
        outgoing = (
            OutgoingMessage(s.body, dict(s.attributes), s.message_type, s.message_time)
            for s in samples(count, seed=2)
        )
        producer.send_all(topic, outgoing)

    batch = read(spark, server, topic, includeAttributes="true").selectExpr(*READ_COLUMNS)
    assert_same_rows(rows(batch), sent)

    stream = read_stream(
        spark, server, topic, includeAttributes="true", maxOffsetsPerTrigger=str(count // 4)
    ).selectExpr(*READ_COLUMNS)
    query = to_files(stream, tmp_path / "rows", tmp_path / "checkpoint")
    assert len([p for p in query.recentProgress if p["numInputRows"]]) >= 4
    assert_same_rows(rows(spark.read.parquet(str(tmp_path / "rows"))), sent)


def received(java_client, server, topic, count):
    """Return what is compared of the messages the Java consumer gets."""
    messages = java_client.read_all(server.master, topic, f"java_{topic}", expected=count)
    return [message(m.body, m.attributes.items(), m.message_type, m.message_time) for m in messages]


@pytest.mark.parametrize("shape", EACH_SHAPE)
def test_messages_of_both_sinks_are_equal_in_java(
    spark, server, java_client, shape, count, sent, sample_files, tmp_path
):
    by_batch, by_stream = server.fresh_topic(shape), server.fresh_topic(shape)

    as_given = {"messageTime": "column"}
    write(spark.read.schema(FRAME_COLUMNS).parquet(sample_files), server, topic=by_batch, **as_given)
    assert_same_rows(received(java_client, server, by_batch, count), sent)

    one_by_one = spark.readStream.schema(FRAME_COLUMNS).option("maxFilesPerTrigger", "1")
    query = to_topic(
        one_by_one.parquet(sample_files), tmp_path / "checkpoint", server.options(topic=by_stream, **as_given)
    )
    assert len([p for p in query.recentProgress if p["numInputRows"]]) == FILES
    assert_same_rows(received(java_client, server, by_stream, count), sent)
