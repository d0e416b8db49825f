"""The phases of the demo with a real TubeMQ and without Spark: what a fault is, and what a good run shows."""

import io
import itertools
import json
import random
import zlib
from collections import Counter

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from testkit.connections import opened_connections
from tests.cases import in_one_test
from tubemq_spark.cli.demo import run
from tubemq_spark.cli.demo.command import select_paths
from tubemq_spark.cli.demo.job import Plan
from tubemq_spark.cli.demo.run import (
    Truth,
    as_option,
    compare_counts,
    compare_lines,
    publish,
    rows_since,
    topic_ends,
)
from tubemq_spark.cli.screen import Screen
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, RpcError, TubeMQError
from tubemq_spark.model import Endpoint, OffsetBounds, StoreBounds, TopicPartition, TopicsLayout
from tubemq_spark.protocol.errcodes import rpc_error

numbers = itertools.count(1)
TEXT = b"one two two\nthree\none\n\n" * 10


@pytest.fixture(scope="module")
def server():
    with EmbeddedTubeMQ() as running:
        yield running


class Spark:
    """Reads topics by the client, in place of Spark; a test may spoil what it finds."""

    def __init__(self, server):
        self.client = TubeMQClient.connect(server.master, group="spark")
        self.batches = [(0, 20), (1, 20)]
        self.starts = []
        self.stops = 0
        self.lines = self.counts = lambda found: found

    def start_query(self, session, plan, starting_offsets, *, available_now):
        assert session is self
        assert json.loads(starting_offsets) == {plan.lines_topic: {"1:0": 28}}
        self.counts_topic = plan.counts_topic
        self.starts.append(available_now)
        return self

    def stop(self):
        self.stops += 1

    def follow(self, query, on_batch, enough):
        assert query is self
        while self.batches and not enough():
            on_batch(*self.batches.pop(0))
        if self.starts == [False, True]:
            with self.client.producer() as producer:
                producer.send(self.counts_topic, b"the counts")

    def read_lines(self, session, plan, offsets):
        topic = plan.lines_topic
        assert list(map(json.loads, offsets)) == [{topic: {"1:0": 28}}, {topic: {"1:0": 28 * 41}}]
        rows = [
            (message.attributes["file"], message.attributes["line"], zlib.crc32(message.value))
            for message in list(self.client.read(topic))[1:]
        ]
        return self.lines(rows)

    def read_counts(self, session, plan, offsets):
        topic = plan.counts_topic
        assert list(map(json.loads, offsets)) == [{topic: {"1:0": 0}}, {topic: {"1:0": 28}}]
        return self.counts({("txt", "one"): 20, ("txt", "two"): 20, ("txt", "three"): 10})


@pytest.fixture
def demo(server, tmp_path, monkeypatch):
    """A run over 40 lines, what it prints, and its Spark."""
    number = next(numbers)
    topics = f"lines_{number}", f"counts_{number}"
    for topic in topics:
        server.add_topic(topic)
    (tmp_path / "a.txt").write_bytes(TEXT)
    spark, shown = Spark(server), io.StringIO()
    with spark.client, opened_connections() as connections:
        monkeypatch.setattr("tubemq_spark.cluster.open.process_connections", lambda: connections)
        with spark.client.producer() as producer:
            producer.send(topics[0], b"an older message")
        for name in ("start_query", "follow", "read_lines", "read_counts"):
            monkeypatch.setattr(run, name, getattr(spark, name))
        plan = Plan(
            masters=server.master,
            group="demo",
            lines_topic=topics[0],
            counts_topic=topics[1],
            rows_per_batch=20,
            checkpoint=tmp_path,
        )
        screen = Screen(Console(file=shown, width=200))
        yield run.DemoRun(plan, select_paths([str(tmp_path)]), spark, screen), shown, spark


def test_a_good_run_stops_once_and_shows_what_it_found(demo):
    running, shown, spark = demo
    running.run()
    assert (spark.starts, spark.stops) == ([False, True], 1)
    text = shown.getvalue()
    assert "40 lines were published, counted in 2 micro-batches with a restart in between" in text
    rows = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "txt 40 50 one 20, two 20, three 10" in rows
    assert any(row.endswith("1:0 28 1,148 40") for row in rows)
    assert any(row.endswith("1:0 0 28 1") for row in rows)
    phases = {row.partition(" s ")[0].rpartition(" ")[0]: row.rpartition(" lines/s ")[2] for row in rows}
    assert phases.keys() >= {
        "publish lines 40 lines",
        "count words, first half 20 lines",
        "count words, after a restart 20 lines",
        "read lines back and compare 40 lines",
        "read results and compare 1 results",
    }
    assert phases["count words, first half 20 lines"] == "stopped after micro-batch 1"
    assert phases["count words, after a restart 20 lines"] == "up to micro-batch 2"
    assert "3 words" in text


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda spark: setattr(spark, "lines", lambda rows: rows[1:]), "1 lines were published but not read"),
        (
            lambda spark: setattr(spark, "counts", lambda words: {**words, ("txt", "one"): 21}),
            "21 instead of 20",
        ),
        (
            lambda spark: setattr(spark, "batches", [(0, 21), (1, 22)]),
            "micro-batch 1 read 22 lines, more than",
        ),
    ],
    ids=["lost", "miscounted", "limit"],
)
def test_a_fault_ends_the_run_with_an_error(demo, spoil, told):
    running, shown, spark = demo
    spoil(spark)
    with pytest.raises(TubeMQError, match="TUBEMQ_DEMO_FAULTS") as faults:
        running.run()
    assert told in str(faults.value)
    assert "micro-batch 0" not in str(faults.value)
    assert "none was lost" not in shown.getvalue()


LINES = [b"import os\n", b"\n", b"\xff Os OS a1b2 xyzzy"]


@pytest.fixture
def truth():
    truth = Truth()
    assert truth.add("f.py", "py", LINES[:2]) == 1
    assert truth.add("f.py", "py", LINES[2:]) == 3
    assert truth.add("g.txt", "txt", [b"xyzzy"]) == 1
    return truth


def _rows():
    rows = [("f.py", str(number), zlib.crc32(line)) for number, line in enumerate(LINES, 1)]
    return [*rows, ("g.txt", "1", zlib.crc32(b"xyzzy"))]


def test_truth_counts_lines_and_words_of_three_letters_without_case(truth):
    assert truth.lines == {"py": 3, "txt": 1}
    assert truth.word_counts() == {("py", "import"): 1, ("py", "xyzzy"): 1, ("txt", "xyzzy"): 1}


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(["py", "c"]), st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b)
        )
    )
)
def test_words_of_many_lines_are_the_sum_of_each_lines_words(lines):
    truth, expected = Truth(), Counter()
    for extension, line in lines:
        truth.add("f", extension, [line + b"\n"])
        alone = Truth()
        alone.add("f", extension, [line])
        expected.update(alone.word_counts())
    assert truth.word_counts() == expected


def test_every_line_once_in_any_order_is_right(truth):
    rows = _rows()
    random.Random(7).shuffle(rows)
    assert compare_lines(truth, rows) == (4, [])


def test_a_lost_line_is_told(truth):
    _, faults = compare_lines(truth, [row for row in _rows() if row[:2] != ("f.py", "2")])
    assert faults == ["1 lines were published but not read back", "for example f.py:2"]


def test_a_repeated_line_is_told(truth):
    assert compare_lines(truth, [*_rows(), _rows()[0]]) == (5, ["1 rows repeat a line", "for example f.py:1"])


def test_a_changed_line_is_told_and_not_called_lost(truth):
    _, faults = compare_lines(truth, [("f.py", "1", 0), *_rows()[1:]])
    assert faults == ["1 lines came back with different bytes", "for example f.py:1"]


@in_one_test(
    "row",
    [
        (None, None, 0),
        ("h.py", "1", 0),
        ("f.py", None, 0),
        ("f.py", "0", 0),
        ("f.py", "4", 0),
        ("f.py", "-1", 0),
        ("f.py", "one", 0),
        ("f.py", "²", 0),
    ],
)
def test_a_row_that_is_no_line_of_the_run_is_told(truth, row):
    _, faults = compare_lines(truth, [*_rows(), row])
    assert faults == ["1 rows are not lines of this run", f"for example {row[0]}:{row[1]}"]


def test_few_examples_stand_for_many_faults(truth):
    _, faults = compare_lines(truth, [_rows()[0]] * 10)
    assert faults == [
        "3 lines were published but not read back",
        "9 rows repeat a line",
        "for example f.py:1, f.py:1, f.py:1",
    ]


def test_equal_counts_are_right(truth):
    assert compare_counts(truth.word_counts(), dict(truth.word_counts())) == []


def test_missing_wrong_and_surplus_counts_are_told(truth):
    found = {("py", "import"): 2, ("py", "xyzzy"): 1, ("py", "zzz"): 5}
    (fault,) = compare_counts(truth.word_counts(), found)
    assert fault.startswith("3 of 3 word counts are wrong, for example py/import: 2 instead of 1, ")
    assert fault.endswith("py/zzz: 5 instead of 0, txt/xyzzy: 0 instead of 1")


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


def test_the_end_of_every_partition_of_every_topic_is_asked_for():
    cluster = FakeCluster({"a": [_tp("a", 0), _tp("a", 1)], "b": [_tp("b", 10000)]})
    ends = topic_ends(cluster, ["a", "b"])
    assert ends == {_tp("a", 0): 56, _tp("a", 1): 56, _tp("b", 10000): 56}
    assert json.loads(as_option(ends, "a")) == {"a": {"1:0": 56, "1:1": 56}}
    assert json.loads(as_option(ends, "b")) == {"b": {"1:10000": 56}}


def test_messages_are_counted_by_store_and_not_by_partition():
    before = {_tp("a", 0): 28, _tp("a", 1): 28, _tp("b", 0): 28}
    after = {_tp("a", 0): 84, _tp("a", 1): 84, _tp("a", 10000): 28, _tp("b", 0): 280}
    assert rows_since(before, after, "a") == 3


@pytest.mark.parametrize(
    "cluster",
    [FakeCluster({}), FakeCluster({}, error=rpc_error(431, "no such topic", peer="master", during="asking"))],
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
    assert truth.lines.total() == 3
