"""A run of ``availableNow`` that ends before the topics do, and the runs after it."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.memory_cluster import MemoryCluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.source import planner, task
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)
HOUR = 1767268800000
"""2026-01-01 12:00 UTC, in milliseconds."""


@pytest.fixture
def cluster(monkeypatch):
    """Thirty messages in each of two partitions, one for each minute of half an hour."""
    made = MemoryCluster(demo=(2, 1), shared=(1, 2))
    monkeypatch.setattr(planner, "open_cluster", lambda _: made)
    monkeypatch.setattr(task, "open_cluster", lambda *_, **__: made)
    send(made, range(30))
    return made


def send(cluster, minutes, topic="demo", partitions=((1, 0), (1, 10_000))):
    with cluster.sender() as sender:
        for minute in minutes:
            for partition in partitions:
                time = f"2026010112{minute:02d}"
                sender.send(topic, b"%d" % minute, partition=partition, message_time=time)


class Query:
    """A stream with its checkpoint."""

    def __init__(self, checkpoint=None, **options):
        source = {"tubemq.master.servers": "m:1", "subscribe": "demo", "startingoffsets": "earliest"}
        self.reader = TubeMQDataSource({**source, **options}).streamReader(SCHEMA)
        self.checkpoint = checkpoint or self.reader.initialOffset()

    def run(self, most=None):
        """Run as the trigger does, or up to so many micro-batches; return the values of each."""
        self.reader.prepareForTriggerAvailableNow()
        batches = []
        while len(batches) != most:
            start = self.checkpoint
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
            self.checkpoint = json.loads(json.dumps(end))
            if self.checkpoint == start:
                break
            batches.append(self.read(start))
        return batches

    def read(self, start):
        copy = pickle.loads(pickle.dumps(self.reader))
        tasks = self.reader.partitions(start, self.checkpoint)
        rows = [row for one in tasks for batch in copy.read(one) for row in batch.to_pylist()]
        return sorted(int(row["value"]) for row in rows)


def twice(numbers):
    return sorted([*numbers] * 2)


def all_of(batches):
    return [value for batch in batches for value in batch]


def until(minute):
    return str(HOUR + 60_000 * minute)


def ends(first, second):
    return json.dumps({"demo": {"1:0": first, "1:10000": second}})


def test_a_run_ends_before_a_time(cluster):
    query = Query(availablenowuntil=until(20))
    assert query.run() == [twice(range(20))]
    send(cluster, range(30, 40))
    assert query.run() == []
    later = Query(query.checkpoint, availablenowuntil=until(35))
    assert later.run() == [twice(range(20, 35))]
    assert Query(later.checkpoint).run() == [twice(range(35, 40))]


def test_a_run_that_was_killed_goes_on_to_the_same_end(cluster):
    """It has micro-batches of a limit, and messages come meanwhile."""
    options = {"availablenowuntil": until(20), "maxoffsetspertrigger": "12"}
    query = Query(**options)
    batches = query.run(most=2)
    send(cluster, range(30, 40))
    resumed = Query(query.checkpoint, **options)
    batches += resumed.run()
    assert [len(batch) for batch in batches] == [12, 12, 12, 4]
    assert sorted(all_of(batches)) == twice(range(20))
    assert Query(resumed.checkpoint, **options).run() == []


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (ends(28 * 7, 0), [*range(7)]),
        (ends(-1, 28), [0, *range(30)]),
        (ends(28 * 999, 28 * 999), twice(range(30))),
        ("latest", twice(range(30))),
        (until(999), twice(range(30))),
        (json.dumps({"demo": {"1:0": {"time": HOUR + 60_000}, "1:10000": 0}}), [0]),
    ],
)
def test_a_run_ends_at_offsets_and_no_later_than_the_topics(cluster, end, rows):
    assert all_of(Query(availablenowuntil=end).run()) == sorted(rows)


def test_an_end_before_the_start_reads_nothing(cluster):
    query = Query(availablenowuntil=until(20), startingtimestamp=until(25))
    assert all_of(query.run()) == []
    assert Query(query.checkpoint).run() == [twice(range(25, 30))]


def test_partitions_that_share_a_store_end_at_offsets_of_their_own(cluster):
    places = [(1, 0), (1, 1)]
    send(cluster, range(10), "shared", places)
    end = json.dumps({"shared": {"1:0": 28 * 4, "1:1": 28 * 12}})
    query = Query(subscribe="shared", availablenowuntil=end, maxoffsetspertrigger="3")
    rows = all_of(query.run())
    assert rows == sorted(rows)
    assert sorted(rows) == [0, 0, 1, 1, 2, 3, 4, 5]
    rest = Query(query.checkpoint, subscribe="shared").run()
    assert sorted(rows + all_of(rest)) == twice(range(10))


def test_the_end_must_name_each_partition(cluster):
    query = Query(availablenowuntil=ends(28, 28))
    cluster.partitions["demo"].append(TopicPartition("demo", 1, 20_000))
    with pytest.raises(OptionError) as refused:
        query.run()
    assert refused.value.condition == "TUBEMQ_OFFSETS_MISSING_PARTITIONS"
    assert "'availableNowUntil'" in str(refused.value)
    assert "-1 for latest" in str(refused.value)


def test_messages_without_a_time_have_no_end_by_time(cluster):
    with cluster.sender() as sender:
        sender.send("shared", b"1")
    with pytest.raises(OptionError) as refused:
        Query(subscribe="shared", availablenowuntil=until(1)).run()
    assert refused.value.condition == "TUBEMQ_NO_MESSAGE_TIME"
    assert "'availableNowUntil'" in str(refused.value)


def test_another_trigger_is_refused(cluster):
    """``once`` and an interval do not say that a run has an end."""
    query = Query(availablenowuntil=until(20))
    with pytest.raises(TubeMQError) as refused:
        query.reader.latestOffset(query.checkpoint, ReadAllAvailable())
    assert refused.value.condition == "TUBEMQ_UNTIL_WITHOUT_AVAILABLE_NOW"
    assert "trigger(availableNow=True)" in str(refused.value)
