"""A run of ``availableNow`` that ends before the topics do, and the runs after it."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.source.query import Query, memory_cluster
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import TopicPartition

HOUR = 1767268800000
"""2026-01-01 12:00 UTC, in milliseconds."""


@pytest.fixture
def cluster(monkeypatch):
    """Thirty messages in each of two partitions, one for each minute of half an hour."""
    made = memory_cluster(monkeypatch, demo=(2, 1), shared=(1, 2))
    send(made, range(30))
    return made


def send(cluster, minutes, topic="demo", partitions=((1, 0), (1, 10_000))):
    with cluster.sender() as sender:
        for minute in minutes:
            for partition in partitions:
                time = f"2026010112{minute:02d}"
                sender.send(topic, b"%d" % minute, partition=partition, message_time=time)


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
    assert query.available_now() == [twice(range(20))]
    send(cluster, range(30, 40))
    assert query.available_now() == []
    later = Query(query.checkpoint, availablenowuntil=until(35))
    assert later.available_now() == [twice(range(20, 35))]
    assert Query(later.checkpoint).available_now() == [twice(range(35, 40))]


def test_a_run_that_was_killed_goes_on_to_the_same_end(cluster):
    """It has micro-batches of a limit, and messages come meanwhile."""
    options = {"availablenowuntil": until(20), "maxoffsetspertrigger": "12"}
    query = Query(**options)
    batches = query.available_now(most=2)
    send(cluster, range(30, 40))
    resumed = Query(query.checkpoint, **options)
    batches += resumed.available_now()
    assert [len(batch) for batch in batches] == [12, 12, 12, 4]
    assert sorted(all_of(batches)) == twice(range(20))
    assert Query(resumed.checkpoint, **options).available_now() == []


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
    assert all_of(Query(availablenowuntil=end).available_now()) == sorted(rows)


def test_an_end_before_the_start_reads_nothing(cluster):
    query = Query(availablenowuntil=until(20), startingtimestamp=until(25))
    assert all_of(query.available_now()) == []
    assert Query(query.checkpoint).available_now() == [twice(range(25, 30))]


def test_partitions_that_share_a_store_end_at_offsets_of_their_own(cluster):
    places = [(1, 0), (1, 1)]
    send(cluster, range(10), "shared", places)
    end = json.dumps({"shared": {"1:0": 28 * 4, "1:1": 28 * 12}})
    query = Query(subscribe="shared", availablenowuntil=end, maxoffsetspertrigger="3")
    rows = all_of(query.available_now())
    assert rows == sorted(rows)
    assert sorted(rows) == [0, 0, 1, 1, 2, 3, 4, 5]
    rest = Query(query.checkpoint, subscribe="shared").available_now()
    assert sorted(rows + all_of(rest)) == twice(range(10))


def test_the_end_must_name_each_partition(cluster):
    query = Query(availablenowuntil=ends(28, 28))
    cluster.partitions["demo"].append(TopicPartition("demo", 1, 20_000))
    with pytest.raises(OptionError) as refused:
        query.available_now()
    assert refused.value.condition == "TUBEMQ_OFFSETS_MISSING_PARTITIONS"
    assert "'availableNowUntil'" in str(refused.value)
    assert "-1 for latest" in str(refused.value)


def test_messages_without_a_time_have_no_end_by_time(cluster):
    with cluster.sender() as sender:
        sender.send("shared", b"1")
    with pytest.raises(OptionError) as refused:
        Query(subscribe="shared", availablenowuntil=until(1)).available_now()
    assert refused.value.condition == "TUBEMQ_NO_MESSAGE_TIME"
    assert "'availableNowUntil'" in str(refused.value)


def test_another_trigger_is_refused(cluster):
    """``once`` and an interval do not say that a run has an end."""
    query = Query(availablenowuntil=until(20))
    with pytest.raises(TubeMQError) as refused:
        query.reader.latestOffset(query.checkpoint, ReadAllAvailable())
    assert refused.value.condition == "TUBEMQ_UNTIL_WITHOUT_AVAILABLE_NOW"
    assert "trigger(availableNow=True)" in str(refused.value)
