"""A row that cannot be written goes to the dead letters with the reason, and all others where they belong."""

import base64
import collections
import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import IntegerType, MapType, StringType, StructField, StructType, TimestampType

from tests.memory_cluster import MemoryCluster, MemorySender
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.protocol.payload import parse_attributes
from tubemq_spark.sink import task
from tubemq_spark.sink.manifests import level, summary

TEXT = StringType()
SCHEMA = StructType(
    [
        StructField("value", TEXT),
        StructField("topic", TEXT),
        StructField("key", TEXT),
        StructField("brokerId", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("messageType", TEXT),
        StructField("timestamp", TimestampType()),
        StructField("attributes", MapType(TEXT, TEXT)),
    ]
)
ARROW = pa.schema(
    [
        ("value", pa.string()),
        ("topic", pa.string()),
        ("key", pa.string()),
        ("brokerId", pa.int32()),
        ("partition", pa.int32()),
        ("messageType", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)
OPTIONS = {"tubemq.master.servers": "master:8715", "onError": "deadLetter", "deadLetterTopic": "dead"}


def row(**columns):
    given = {"value": "good", "topic": "demo"} | columns
    return {name: given.get(name) for name in ARROW.names}


def new_cluster():
    return MemoryCluster(demo=(1, 1), dead=(1, 1), other=(1, 1))


@pytest.fixture
def cluster(monkeypatch):
    made = new_cluster()
    monkeypatch.setattr(task, "open_cluster", lambda _: made)
    return made


def write(*batches, options=None, default=OPTIONS):
    """Write rows in record batches without asking a driver, as a task does."""
    parsed = TubeMQDataSource(default | (options or {}))._options.for_write()
    columns = task.SinkColumns.bind(SCHEMA, parsed)
    records = [pa.RecordBatch.from_pylist(list(some), ARROW) for some in batches]
    return task.write_rows(iter(records), columns, parsed, "a-run")


def stored(cluster, topic):
    """Return the messages of a topic: values and attributes."""
    return [
        (value, parse_attributes(text or ""))
        for store, log in cluster.logs.items()
        for _, (value, text) in log
        if store.topic == topic
    ]


BAD = {
    "null value": (row(value=None), "TUBEMQ_SINK_NULL_VALUE"),
    "empty value": (row(value=""), "TUBEMQ_BAD_MESSAGE"),
    "null topic": (row(topic=None), "TUBEMQ_SINK_NULL_TOPIC"),
    "unknown topic": (row(topic="nowhere"), "TUBEMQ_TOPIC_UNKNOWN"),
    "half a route": (row(brokerId=1), "TUBEMQ_SINK_HALF_NULL_ROUTE"),
    "comma": (row(attributes=[("k", "a,b")]), "TUBEMQ_BAD_MESSAGE"),
    "equals sign": (row(attributes=[("k=", "a")]), "TUBEMQ_BAD_MESSAGE"),
    "reserved": (row(attributes=[("k", "$msgType$")]), "TUBEMQ_BAD_MESSAGE"),
    "null attribute": (row(attributes=[("k", None)]), "TUBEMQ_BAD_MESSAGE"),
    "blanks around the type": (row(messageType=" red "), "TUBEMQ_BAD_MESSAGE"),
    "odd time": (row(attributes=[("$msgTime$", "n,ow")]), "TUBEMQ_BAD_MESSAGE"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_row_that_cannot_be_written_is_a_dead_letter(cluster, what):
    bad, condition = BAD[what]
    message = write([row(value="a"), bad, row(value="b")], [row(value="c")])
    assert [value for value, _ in stored(cluster, "demo")] == [b"a", b"b", b"c"]
    ((value, attributes),) = stored(cluster, "dead")
    assert value == (bad["value"] or "\0").encode()
    assert attributes["deadLetterCondition"] == condition
    assert condition in attributes["deadLetterReason"]
    assert "onError" not in attributes["deadLetterReason"]
    assert attributes["deadLetterRow"] == "0:2"
    assert attributes["deadLetterWrite"] == "a-run"
    assert attributes.get("deadLetterTopic") == bad["topic"]
    assert (message.rows, message.dead_letters) == (4, 1)
    assert summary([message]).endswith("; 1 of them are dead letters")
    assert level([message]) > level([write([row()])])


def test_a_dead_letter_has_what_can_be_written_of_its_row(cluster, caplog):
    write([row(key="anna", attributes=[("k", "v"), ("bad", "a,b")]), row(value=None)], [row(value="")])
    (told,) = caplog.messages
    assert told.startswith("this task: row 1 of this task (b'good') goes to topic 'dead', and so do others")
    (_, first), (_, second), (_, third) = stored(cluster, "dead")
    assert first["k"] == "v"
    assert "bad" not in first
    assert first["deadLetterKey"] == "YW5uYQ"
    assert "deadLetterValue" not in first
    assert (second["deadLetterValue"], third["deadLetterValue"]) == ("null", "empty")


@pytest.mark.parametrize("column", ["topic", "messageType", "attributes", "a name of attributes"])
def test_a_text_that_is_not_utf_8_is_a_fault_of_its_row(cluster, column):
    """Spark's texts may have any bytes: cast(X'61FF' as string)."""
    rows = [row(value="a", attributes=[("k", "v")]), row(value="b"), row(value="c", attributes=[("k", "v")])]
    batch = pa.RecordBatch.from_pylist(rows, ARROW)
    wrong = pa.array([None, b"a\xff", None], pa.binary()).view(pa.string())
    good = pa.array(["demo" if column == "topic" else None] * 3, pa.string())
    texts = pc.coalesce(wrong, good)
    names = pa.array(["k"] * 3)
    pairs = {"attributes": (names, wrong), "a name of attributes": (pc.coalesce(wrong, names), names)}
    if column in pairs:
        texts = pa.MapArray.from_arrays([0, 0, 1, 1], *(one.slice(1, 1) for one in pairs[column]))
    name = "attributes" if column in pairs else column
    batch = batch.set_column(ARROW.get_field_index(name), name, texts)

    parsed = TubeMQDataSource(OPTIONS)._options.for_write()
    columns = task.SinkColumns.bind(SCHEMA, parsed)
    message = task.write_rows(iter([batch]), columns, parsed, "a-run")

    assert message.dead_letters == 1
    assert [value for value, _ in stored(cluster, "demo")] == [b"a", b"c"]
    ((value, attributes),) = stored(cluster, "dead")
    assert (value, attributes["deadLetterCondition"]) == (b"b", "TUBEMQ_BAD_MESSAGE")
    assert f"its {name} has bytes that are not UTF-8" in attributes["deadLetterReason"]


def test_a_long_key_is_cut_in_its_dead_letter(cluster):
    """Keys are not stored otherwise, so they may be longer than any message."""
    write([row(value=None, key="k" * 300), row(value=None, key="k" * 2_000_000)])
    (_, short), (_, long) = stored(cluster, "dead")
    assert base64.urlsafe_b64decode(short["deadLetterKey"]) == b"k" * 300
    assert "deadLetterKeyBytes" not in short
    assert (long["deadLetterKey"], long["deadLetterKeyBytes"]) == (short["deadLetterKey"], "2000000")


def test_a_long_text_is_cut_in_a_dead_letter(cluster):
    write([row(topic="n" * 600)])
    ((_, attributes),) = stored(cluster, "dead")
    assert attributes["deadLetterTopic"] == "n" * 500
    assert len(attributes["deadLetterReason"]) == 500


def test_what_other_producers_write_otherwise_is_no_dead_letter(cluster):
    odd = [("k", ""), ("$msgTime$", "20240229123456"), ("$msgType$", " red")]
    message = write([row(attributes=odd), row(attributes=[("k", None)])])
    ((_, attributes),) = stored(cluster, "demo")
    assert attributes == dict(odd)
    assert message.dead_letters == 1


@pytest.mark.parametrize(
    "what",
    [what for what, (_, condition) in BAD.items() if condition == "TUBEMQ_BAD_MESSAGE"],
)
def test_without_dead_letters_such_a_row_fails_the_task(cluster, what):
    """It is not sent in another form."""
    with pytest.raises((ProduceError, OptionError), match=r"\[TUBEMQ_BAD_MESSAGE\]"):
        write(
            [row(value="a"), BAD[what][0], row(value="b")], default={"tubemq.master.servers": "master:8715"}
        )
    assert [value for value, _ in stored(cluster, "demo")] == [b"a"]


@pytest.mark.parametrize("every", [1, 2, 50])
def test_rows_are_tried_once_however_many_cannot_be_written(cluster, monkeypatch, every):
    tried = collections.Counter()
    send_batch = MemorySender.send_batch

    def count(sender, batch, on_refused=None):
        tried.update(rows=len(batch), calls=1)
        send_batch(sender, batch, on_refused)

    monkeypatch.setattr(MemorySender, "send_batch", count)
    rows = [row(attributes=[("k", f"{number}{'' if number % every else ','}")]) for number in range(1, 1001)]
    message = write(rows, options={"topic": "demo"})
    assert message.dead_letters == 1000 // every
    assert len(stored(cluster, "demo")) == 1000 - message.dead_letters
    assert tried == {"rows": 1_000 + message.dead_letters, "calls": 2}


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["good", *BAD]), max_size=8).filter(bool),
        min_size=1,
        max_size=4,
    )
)
def test_every_row_is_stored_once_wherever_it_belongs(kinds):
    with pytest.MonkeyPatch.context() as patch:
        cluster = new_cluster()
        patch.setattr(task, "open_cluster", lambda _: cluster)
        rows = [[row() if kind == "good" else BAD[kind][0] for kind in some] for some in kinds]
        message = write(*rows, options={"stampMessageUid": "true"})
    kinds = [kind for some in kinds for kind in some]
    good, dead = stored(cluster, "demo"), stored(cluster, "dead")
    assert len(good) == kinds.count("good")
    assert len({attributes["messageUid"] for _, attributes in good + dead}) == len(kinds)
    numbers = [f"0:{number}" for number, kind in enumerate(kinds, 1) if kind != "good"]
    assert sorted(attributes["deadLetterRow"] for _, attributes in dead) == sorted(numbers)
    assert message.rows == len(kinds)
    assert message.dead_letters == len(dead)


def test_a_dead_letter_that_cannot_be_written_fails_the_task(cluster):
    with pytest.raises(ProduceError, match=r"Row 2 of this task .*nor its dead letter to topic 'gone'.*gone"):
        write([row(), row(attributes=[("k", "a,b")]), row()], options={"deadLetterTopic": "gone"})
    assert len(stored(cluster, "demo")) == 2


def test_a_row_whose_broker_is_away_fails_the_task():
    with EmbeddedTubeMQ(topics={"demo": (1, 1), "dead": (1, 1)}, brokers=2) as server:
        server.faults.stop_broker(2, graceful=True)
        options = {"tubemq.master.servers": server.master, "deliveryTimeoutMs": "1000"}
        with pytest.raises(ProduceError, match="TUBEMQ_PARTITION_AWAY"):
            write([row(), row(brokerId=2, partition=0)], options=options)
        assert server.stats().messages_in == 1, "the row before it, and no dead letter"


def test_without_dead_letters_the_error_names_the_row(cluster):
    parsed = TubeMQDataSource({"tubemq.master.servers": "master:8715"})._options.for_write()
    columns = task.SinkColumns.bind(SCHEMA, parsed)
    records = pa.RecordBatch.from_pylist([row(), row(topic="nowhere", value="lost")], ARROW)
    with pytest.raises(ProduceError) as failed:
        task.write_rows(iter([records]), columns, parsed, "a-run")
    copied = pickle.loads(pickle.dumps(failed.value))
    assert str(copied).endswith("correct its name. (row 2 of this task (b'lost'))")


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"onError": "deadLetter"}, "TUBEMQ_OPTION_NEEDED"),
        ({"deadLetterTopic": "dead"}, "TUBEMQ_OPTION_NEEDED"),
        ({"onError": "fail", "deadLetterTopic": "dead"}, "TUBEMQ_OPTION_NEEDED"),
        ({"onError": "deadLetter", "deadLetterTopic": "dead", "topic": "dead"}, "TUBEMQ_DEAD_LETTER_TOPIC"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(given, condition):
    with pytest.raises(OptionError) as refused:
        TubeMQDataSource({"tubemq.master.servers": "master:8715"} | given).writer(SCHEMA, False)
    assert refused.value.condition == condition
