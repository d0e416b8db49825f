"""The ends of topics, and publishing through a producer."""

import json

import pytest

from tubemq_spark.cli.demo.check import Truth
from tubemq_spark.cli.demo.input import select_paths
from tubemq_spark.cli.demo.topics import TopicEnds, publish, topic_ends
from tubemq_spark.errors import OptionError, RpcError
from tubemq_spark.model import Endpoint, OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.protocol.errcodes import rpc_error

BROKER = Endpoint("127.0.0.1", 8123)


class FakeCluster:
    """Topics with their partitions, every store holding offsets up to ``latest``."""

    def __init__(self, topics, latest=56, error=None):
        self.topics = topics
        self.latest = latest
        self.error = error

    def layout(self, topics, *, missing_ok=False):
        if self.error is not None:
            raise self.error
        return TopicsLayout({tp: BROKER for topic in topics for tp in self.topics.get(topic, [])}, 1)

    def bounds(self, layout):
        return StoreBounds({store: OffsetBounds(0, self.latest) for store in layout.stores}, {})


def _tp(topic, partition):
    return TopicPartition(topic, 1, partition)


def test_a_stand_has_the_end_of_every_partition_of_every_topic():
    cluster = FakeCluster({"a": [_tp("a", 0), _tp("a", 1)], "b": [_tp("b", 10000)]})
    stand = topic_ends(cluster, ["a", "b"])
    assert stand.ends == {_tp("a", 0): 56, _tp("a", 1): 56, _tp("b", 10000): 56}
    assert json.loads(stand.as_option()) == {"a": {"1:0": 56, "1:1": 56}, "b": {"1:10000": 56}}
    assert stand.of("b").ends == {_tp("b", 10000): 56}


def test_messages_are_counted_by_store_and_not_by_partition():
    before = TopicEnds({_tp("a", 0): 28, _tp("a", 1): 28})
    after = TopicEnds({_tp("a", 0): 84, _tp("a", 1): 84, _tp("a", 10000): 28})
    assert after.by_store() == {StoreId("a", 1, 0): 84, StoreId("a", 1, 1): 28}
    assert after.rows_since(before) == 3


@pytest.mark.parametrize(
    "cluster",
    [
        FakeCluster({}),
        FakeCluster({}, error=rpc_error(431, "no such topic", peer="master", during="asking")),
    ],
)
def test_a_missing_topic_is_refused_with_the_command_that_makes_it(cluster):
    with pytest.raises(OptionError, match=r"tubemq-spark topics create a "):
        topic_ends(cluster, ["a"])


def test_other_refusals_stay_what_they_are():
    refusal = rpc_error(450, "not you", peer="master", during="asking")
    with pytest.raises(RpcError) as caught:
        topic_ends(FakeCluster({}, error=refusal), ["a"])
    assert caught.value is refusal


class FakeProducer:
    def __init__(self):
        self.sent = []
        self.flushed = False

    def send(self, topic, value, *, attributes, message_type):
        self.sent.append((topic, value, attributes, message_type))

    def flush(self):
        self.flushed = True


def test_every_line_goes_out_with_its_file_and_number(tmp_path):
    (tmp_path / "a.py").write_bytes(b"x\n\n")
    (tmp_path / "b.md").write_bytes(b"y")
    producer, truth, advanced = FakeProducer(), Truth(), []
    files = select_paths([str(tmp_path / "a.py"), str(tmp_path / "b.md")]).files
    publish(producer, "topic", files, truth, advanced.append)
    assert producer.sent == [
        ("topic", b"x\n", {"file": "a.py", "line": "1"}, "py"),
        ("topic", b"\n", {"file": "a.py", "line": "2"}, "py"),
        ("topic", b"y", {"file": "b.md", "line": "1"}, "md"),
    ]
    assert producer.flushed
    assert advanced == [2, 1]
    assert truth.line_count == 3
