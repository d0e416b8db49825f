"""A writing task: all rows are sent and acknowledged before its commit message goes back."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tubemq_spark.client.producer import Receipt
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.sink import task
from tubemq_spark.sink.receipts import TubeMQCommitMessage, summary

SCHEMA = StructType([StructField("value", StringType())])
OPTIONS = {"tubemq.master.servers": "master:8715", "topic": "demo"}


class FakeProducer:
    """Notes what it is told to do."""

    def __init__(self):
        self.said = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said.append("close")

    def send(self, topic, value, **how):
        self.said.append((topic, value))

    def flush(self):
        self.said.append("flush")

    def receipts(self):
        count = sum(isinstance(what, tuple) for what in self.said)
        return [Receipt(TopicPartition("demo", 1, 0), count, 0, 28 * (count - 1))]


@pytest.fixture
def producer(monkeypatch):
    fake = FakeProducer()

    class FakeCluster:
        def producer(self):
            return fake

    monkeypatch.setattr(task, "open_cluster", lambda _: FakeCluster())
    return fake


def batches(*values):
    return iter([pa.RecordBatch.from_pydict({"value": pa.array(some, pa.string())}) for some in values])


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_rows_are_sent_and_flushed_and_receipted(producer, kind):
    writer = getattr(TubeMQDataSource(OPTIONS), kind)(SCHEMA, False)

    message = pickle.loads(pickle.dumps(writer)).write(batches(["a", "b"], [], ["c"]))

    sent = [("demo", value) for value in (b"a", b"b", b"c")]
    assert producer.said == [*sent, "flush", "close"]
    assert summary([pickle.loads(pickle.dumps(message))]) == "3 rows to 1 partitions"


def test_a_row_that_cannot_be_sent_ends_the_task_without_receipts(producer):
    writer = TubeMQDataSource(OPTIONS).writer(SCHEMA, False)

    with pytest.raises(ProduceError):
        writer.write(batches(["a", None, "c"]))

    assert producer.said == [("demo", b"a"), "close"]


def test_the_driver_says_what_was_written(caplog):
    """Spark hands over nothing for tasks that failed."""
    caplog.set_level("INFO")
    receipts = tuple(Receipt(TopicPartition("demo", 1, number), 5, 0, 112) for number in range(3))
    messages = [TubeMQCommitMessage(receipts), None, TubeMQCommitMessage(receipts[:1])]
    source = TubeMQDataSource(OPTIONS)

    source.writer(SCHEMA, False).commit(messages)
    source.writer(SCHEMA, False).abort(messages)
    source.streamWriter(SCHEMA, False).commit(messages, 7)
    source.streamWriter(SCHEMA, False).abort(messages, 8)

    assert all("20 rows to 3 partitions" in record.getMessage() for record in caplog.records)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]
    assert "micro-batch 7" in caplog.records[2].getMessage()


def test_a_topic_is_not_overwritten():
    with pytest.raises(OptionError, match="TUBEMQ_SINK_OVERWRITE"):
        TubeMQDataSource(OPTIONS).writer(SCHEMA, True)
