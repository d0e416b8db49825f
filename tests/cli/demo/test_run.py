"""The phases of the demo with a real TubeMQ and without Spark: what a fault is, and what a good run shows."""

import io
import itertools
import json
import zlib

import pytest
from rich.console import Console

from testkit.connections import opened_connections
from tubemq_spark.cli.demo import run
from tubemq_spark.cli.demo.input import select_paths
from tubemq_spark.cli.demo.screen import Screen
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError

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

    def job(self, session, options, **how):
        assert session is self
        assert json.loads(how["starting_offsets"]) == {how["lines_topic"]: {"1:0": 28}}
        self.counts_topic = how["counts_topic"]
        return self

    def start(self, *, available_now):
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

    def read_lines(self, session, options, topic, offsets):
        assert list(map(json.loads, offsets)) == [{topic: {"1:0": 28}}, {topic: {"1:0": 28 * 41}}]
        rows = [
            (message.attributes["file"], message.attributes["line"], zlib.crc32(message.value))
            for message in list(self.client.read(topic))[1:]
        ]
        return self.lines(rows)

    def read_counts(self, session, options, topic, offsets):
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
        monkeypatch.setattr(run, "WordCountJob", spark.job)
        for name in ("follow", "read_lines", "read_counts"):
            monkeypatch.setattr(run, name, getattr(spark, name))
        plan = run.Plan(select_paths([str(tmp_path)]), server.master, "demo", *topics, 20, tmp_path)
        yield run.DemoRun(plan, spark, Screen(Console(file=shown, width=200))), shown, spark


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
