"""A writing task: all rows are sent and acknowledged before its commit message goes back."""

import pickle

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import MapType, StringType, StructField, StructType

from tests.memory_cluster import MemoryCluster
from tests.micro_batches import enter_micro_batch
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError, ProduceError, TlsError, TubeMQConnectionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.payload import parse_attributes
from tubemq_spark.receipts import Receipt
from tubemq_spark.sink import task, writers
from tubemq_spark.sink.manifests import TubeMQCommitMessage, summary
from tubemq_spark.sink.uids import UID_CHARACTERS
from tubemq_spark.spark.edge import spare_collector

SCHEMA = StructType([StructField("value", StringType())])
OPTIONS = {"tubemq.master.servers": "master:8715", "topic": "demo"}


@pytest.fixture
def cluster(monkeypatch):
    """The cluster that every task writes to."""
    made = MemoryCluster(demo=(1, 1))
    monkeypatch.setattr(task, "open_cluster", lambda _: made)
    return made


def stored(cluster):
    return [value for log in cluster.logs.values() for _, (value, _) in log]


@pytest.fixture(autouse=True)
def master(monkeypatch):
    """What the driver's look at the topic meets."""

    class Master:
        def __init__(self):
            self.error = None
            self.asked = []

        def refuse_unknown_topic(self, topic):
            self._answer("whether it exists", topic)

        def await_publishable(self, topic):
            self._answer("until it can be published to", topic)

        def _answer(self, question, topic):
            self.asked.append((question, topic))
            if self.error is not None:
                raise self.error

    made = Master()
    monkeypatch.setattr(writers, "open_cluster", lambda _: made)
    return made


def batches(*values):
    return iter([pa.RecordBatch.from_pydict({"value": pa.array(some, pa.string())}) for some in values])


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_rows_are_stored_and_receipted(cluster, kind):
    writer = getattr(TubeMQDataSource(OPTIONS), kind)(SCHEMA, False)

    spare_collector.cache_clear()
    message = pickle.loads(pickle.dumps(writer)).write(batches(["a", "b"], [], ["c"]))

    assert spare_collector.cache_info().misses == 1
    assert stored(cluster) == [b"a", b"b", b"c"]
    assert summary([pickle.loads(pickle.dumps(message))]) == "3 rows (3 bytes) to 1 partition"


def test_a_row_that_cannot_be_sent_ends_the_task_without_receipts(cluster):
    writer = TubeMQDataSource(OPTIONS).writer(SCHEMA, False)

    with pytest.raises(ProduceError):
        writer.write(batches(["a", None, "c"]))

    assert stored(cluster) == [b"a"]


def test_the_driver_says_what_was_written(caplog):
    """Spark hands over nothing for tasks that failed."""
    caplog.set_level("INFO")
    receipts = tuple(Receipt(TopicPartition("demo", 1, number), 5, 0, 112, bytes=100) for number in range(3))
    messages = [TubeMQCommitMessage(receipts, 15), None, TubeMQCommitMessage(receipts[:1], 5)]
    source = TubeMQDataSource(OPTIONS)

    source.writer(SCHEMA, False).commit(messages)
    source.writer(SCHEMA, False).abort(messages)
    source.streamWriter(SCHEMA, False).commit(messages, 7)
    source.streamWriter(SCHEMA, False).abort(messages, 8)

    assert all("20 rows (400 bytes) to 3 partitions" in record.getMessage() for record in caplog.records)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]
    assert "micro-batch 7" in caplog.records[2].getMessage()


def test_the_driver_says_how_many_rows_may_be_stored_twice(caplog):
    caplog.set_level("INFO")
    receipts = tuple(Receipt(TopicPartition("demo", 1, number), 5, 0, 112, 3, 2, 100) for number in range(3))

    TubeMQDataSource(OPTIONS).writer(SCHEMA, False).commit([TubeMQCommitMessage(receipts, 15)])

    assert caplog.records[0].levelname == "WARNING"
    assert caplog.records[0].getMessage() == (
        "wrote 15 rows (300 bytes) to 3 partitions, 9 of them sent more than once; "
        "up to 6 extra copies may be stored"
    )


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_an_unknown_topic_is_refused_on_the_driver(master, kind):
    master.error = ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="demo")
    with pytest.raises(ProduceError, match="Topic 'demo' does not exist"):
        getattr(TubeMQDataSource(OPTIONS), kind)(SCHEMA, False)


@pytest.mark.parametrize(
    ("kind", "question"), [("writer", "until it can be published to"), ("streamWriter", "whether it exists")]
)
def test_a_batch_write_waits_for_its_topics_and_a_micro_batch_does_not(master, kind, question):
    """A micro-batch may be any of a query that runs well."""
    options = OPTIONS | {"onError": "deadLetter", "deadLetterTopic": "dead"}
    getattr(TubeMQDataSource(options), kind)(SCHEMA, False)
    assert master.asked == [(question, "demo"), (question, "dead")]


def test_a_batch_write_without_any_master_fails_on_the_driver(master):
    master.error = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="x", tried="y")
    with pytest.raises(TubeMQConnectionError):
        TubeMQDataSource(OPTIONS).writer(SCHEMA, False)


def test_a_micro_batch_begins_while_masters_are_away(master, cluster):
    """Its tasks wait for them."""
    master.error = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="x", tried="y")
    TubeMQDataSource(OPTIONS).streamWriter(SCHEMA, False).write(batches(["a"]))
    assert stored(cluster) == [b"a"]


def test_a_micro_batch_does_not_begin_where_waiting_does_not_help(master):
    master.error = TlsError("TUBEMQ_TLS_EXPECTED", endpoint="master:8715")
    with pytest.raises(TlsError):
        TubeMQDataSource(OPTIONS).streamWriter(SCHEMA, False)


def test_topics_of_a_column_are_not_looked_at(master):
    master.error = ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic="demo")
    options = {key: value for key, value in OPTIONS.items() if key != "topic"}
    schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    assert TubeMQDataSource(options).writer(schema, False)
    assert master.asked == []


@pytest.mark.parametrize(("setting", "stamped"), [({}, True), ({"messageTime": "column"}, False)])
def test_rows_without_timestamp_get_the_time_of_writing_unless_told_otherwise(cluster, setting, stamped):
    TubeMQDataSource(OPTIONS | setting).writer(SCHEMA, False).write(batches(["a"]))
    ((_, (_, attributes)),) = next(iter(cluster.logs.values()))
    assert ("$msgTime$" in (attributes or "")) is stamped


STAMPED = OPTIONS | {"stampMessageUid": "true"}


def ids(cluster):
    """The ids of the stored messages with their values, in the order of storing."""
    return [
        (value, parse_attributes(text or "").get("messageUid"))
        for log in cluster.logs.values()
        for _, (value, text) in log
    ]


def write_stamped(kind, *some, given=SCHEMA, options=STAMPED):
    getattr(TubeMQDataSource(options), kind)(given, False).write(batches(*some))


def test_a_repeated_task_gives_its_rows_the_ids_they_had(cluster, monkeypatch):
    """Whatever the order in which they come, and though some are equal."""
    enter_micro_batch(monkeypatch, 7, "query", task=3)
    write_stamped("streamWriter", ["a", "b"], ["a", "c"])
    first = ids(cluster)
    cluster.logs.clear()
    write_stamped("streamWriter", ["c", "a"], ["a"], ["b"])
    assert sorted(ids(cluster)) == sorted(first)
    assert len({uid for _, uid in first}) == 4


def test_other_micro_batches_tasks_and_runs_give_other_ids(cluster, monkeypatch):
    for batch_id, task_number in [(7, 0), (7, 1), (8, 0)]:
        enter_micro_batch(monkeypatch, batch_id, "query", task=task_number)
        write_stamped("streamWriter", ["a"])
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    for _ in range(2):
        write_stamped("writer", ["a"])
    assert len({uid for _, uid in ids(cluster)}) == 5


def test_what_is_written_by_a_batch_within_a_micro_batch_has_its_ids(cluster, monkeypatch):
    """foreachBatch: a repeated micro-batch writes with another writer."""
    enter_micro_batch(monkeypatch, 7, "query")
    for _ in range(2):
        write_stamped("writer", ["a"])
    assert len({uid for _, uid in ids(cluster)}) == 1


def test_rows_have_no_ids_unless_asked_for(cluster):
    write_stamped("writer", ["a"], options=OPTIONS)
    assert ids(cluster) == [(b"a", None)]


def test_ids_come_with_receipts(cluster, tmp_path):
    write_stamped("writer", ["a"], options=OPTIONS | {"receiptsPath": tmp_path.as_uri()})
    ((_, uid),) = ids(cluster)
    assert len(uid) == UID_CHARACTERS
    cluster.logs.clear()
    without = {"receiptsPath": tmp_path.as_uri(), "stampMessageUid": "false"}
    write_stamped("writer", ["a"], options=OPTIONS | without)
    assert ids(cluster) == [(b"a", None)]


ATTRIBUTES = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize("stamp", ["true", "false"])
def test_a_row_keeps_the_id_it_has(cluster, stamp):
    """Its column comes before its attributes, and a row without either is stamped."""
    text = StringType()
    schema = StructType(
        [
            StructField("value", text),
            StructField("messageUid", text),
            StructField("attributes", MapType(text, text)),
        ]
    )
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", "b", "c", "d"]),
            pa.array(["own", "own too", None, None]),
            pa.array([{"messageUid": "other"}, None, None, {"messageUid": "other"}], ATTRIBUTES),
        ],
        names=schema.names,
    )
    TubeMQDataSource(OPTIONS | {"stampMessageUid": stamp}).writer(schema, False).write(iter([rows]))
    found = dict(ids(cluster))
    assert (found[b"a"], found[b"b"]) == ("own", "own too")
    assert (found[b"c"] is None) == (found[b"d"] is None) == (stamp == "false")
    texts = [text or "" for log in cluster.logs.values() for _, (_, text) in log]
    assert not [text for text in texts if "other" in text], "nor is it sent besides"


def test_an_id_among_the_attributes_stays_where_it_is(cluster):
    """A topic that is mirrored keeps the ids of its messages."""
    schema = StructType(
        [StructField("value", StringType()), StructField("attributes", MapType(StringType(), StringType()))]
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array([{"messageUid": "own", "k": "v"}, {"k": "v"}], ATTRIBUTES)],
        names=schema.names,
    )
    TubeMQDataSource(STAMPED).writer(schema, False).write(iter([rows]))
    found = dict(ids(cluster))
    assert found[b"a"] == "own"
    assert len(found[b"b"]) == UID_CHARACTERS


def test_an_id_that_cannot_be_an_attribute_is_refused(cluster):
    schema = StructType([StructField("value", StringType()), StructField("messageUid", StringType())])
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "messageUid": ["1", "2,3"]})
    with pytest.raises(OptionError, match="messageUid '2,3' contains"):
        TubeMQDataSource(OPTIONS).writer(schema, False).write(iter([rows]))


@pytest.mark.parametrize("writer", ["writer", "streamWriter"])
def test_what_is_stored_cannot_be_replaced(writer):
    """No master is asked before: there is none."""
    source = TubeMQDataSource({"tubemq.master.servers": "127.0.0.1:1", "topic": "demo"})
    with pytest.raises(OptionError, match="TUBEMQ_SINK_OVERWRITE"):
        getattr(source, writer)(SCHEMA, True)
