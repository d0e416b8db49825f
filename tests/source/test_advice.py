"""A warning, once, of offsets that will be null, and of stores that begin at very different times."""

import pytest

from tests.memory_cluster import MemoryCluster
from tests.source.fake_cluster import BROKER
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.source.advice import NullOffsetWarning, StartTimes

OWN = [TopicPartition("own", 1, 0), TopicPartition("own", 1, 10_000), TopicPartition("own", 2, 0)]
SHARED = [TopicPartition("shared", 1, 0), TopicPartition("shared", 1, 1), TopicPartition("shared", 2, 0)]
LATER = [TopicPartition("later", 3, 10_000), TopicPartition("later", 3, 10_001)]


def layout(partitions, unread=()):
    return TopicsLayout(dict.fromkeys(partitions, BROKER), 0, unread=frozenset(unread))


@pytest.mark.parametrize(
    ("columns", "types", "layouts", "topics"),
    [
        (["value", "offset"], False, [layout(OWN + SHARED)] * 3, ["shared"]),
        (["offset"], False, [layout(OWN + SHARED), layout(OWN + SHARED + LATER)], ["shared", "later"]),
        (["offset"], False, [layout(SHARED[:1], SHARED[1:])], ["shared"]),
        (["offset"], True, [layout(SHARED)], []),
        (["value", "topic"], False, [layout(SHARED)], []),
        (["offset"], False, [layout(OWN)], []),
    ],
    ids=["once", "when it begins", "partitions not read", "of types", "no column", "own stores"],
)
def test_a_topic_that_shares_stores_is_named_once(columns, types, layouts, topics, caplog):
    warning = NullOffsetWarning(columns, filtered=types)
    for each in layouts:
        warning.check(each)
    assert [record.args[0] for record in caplog.records] == topics


ROW = 28


@pytest.fixture
def cluster(clock):
    return MemoryCluster(demo=(2, 1), orders=(1, 2))


def fill(cluster, **times):
    """Give each store messages with these times."""
    for name, texts in times.items():
        topic, _, store = name.partition("_")
        partition = cluster.partitions[topic][int(store)]
        cluster.logs[partition.store_id] += [
            (partition, (b"x", text and f"$msgType$=a,$msgTime$={text}")) for text in texts
        ]


def look(cluster, *, start=0):
    layout = cluster.layout(cluster.partitions)
    ends = {partition: cluster.held(partition.store_id).latest for partition in layout.partitions}
    ranges = {partition: (min(ROW * start, end), end) for partition, end in ends.items()}
    StartTimes(cluster, "Asia/Shanghai").look(layout, ranges)


def test_stores_that_begin_hours_apart_are_named_with_their_times(cluster, caplog):
    fill(cluster, demo_0=["202611200901", "202611200900"], demo_1=["202611200930"], orders_0=["202611201100"])
    look(cluster)
    (told,) = caplog.messages
    assert told == (
        "what is read first is of very different times: demo/1:0 begins at 2026-11-20 01:00, and orders/1:0 "
        "at 2026-11-20 03:00 (UTC). A watermark with a delay below 120 minutes takes rows of the former for "
        "late ones, which Spark drops"
    )


def test_what_counts_is_where_the_run_begins(cluster, caplog):
    fill(cluster, demo_0=["202611200900", "202611201100"], demo_1=["202611201030", "202611201101"])
    look(cluster, start=1)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"demo_0": ["202611200900"]},
        {"demo_0": ["202611200900"], "demo_1": ["202611200959"]},
        {"demo_0": ["202611200900"], "demo_1": [None, "soon"]},
    ],
)
def test_stores_of_much_the_same_time_or_of_none_are_not_worth_a_word(times, cluster, caplog):
    fill(cluster, **times)
    look(cluster)
    assert caplog.messages == []


def test_a_broker_that_does_not_answer_holds_up_nothing(cluster, caplog, monkeypatch):
    def no_answer(*_):
        raise TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="broker", timeout_ms=1, during="testing")

    fill(cluster, demo_0=["202611200900"], demo_1=["202611201200"])
    monkeypatch.setattr(cluster, "read_range", no_answer)
    look(cluster)
    assert caplog.messages == []


def test_of_many_stores_one_of_each_topic_is_looked_at(clock, caplog):
    cluster = MemoryCluster(demo=(17, 1), orders=(1, 1))
    for partition in cluster.partitions["demo"]:
        cluster.logs[partition.store_id].append((partition, (b"x", "$msgTime$=202611200900")))
    fill(cluster, orders_0=["202611201000"])
    look(cluster)
    assert cluster.fetches == 2
    assert "demo/1:" in caplog.text
    assert "orders/1:0" in caplog.text
