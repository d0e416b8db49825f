"""``spark.read.format("tubemq")`` on every server."""

import datetime
import json

import pytest

from integration_tests.rig.messages import assert_same_rows, produce, produce_numbers, samples
from integration_tests.rig.queries import numbers, read
from integration_tests.rig.servers import SHAPES, partitions


@pytest.mark.parametrize("shape", SHAPES)
def test_every_message_comes_back_with_its_columns(spark, server, shape):
    """Value, attributes, type and time are what was sent; the place is where it was stored."""
    topic = server.fresh_topic(shape)
    sent = list(samples(server.pick(embedded=600, real=2000), seed=1))
    produce(server.master, topic, sent)

    rows = read(spark, server, topic, includeAttributes="true").collect()

    found = []
    for row in rows:
        attributes = {k: v for k, v in (row.attributes or {}).items() if not k.startswith("$")}
        time = row.timestamp and row.timestamp.astimezone(datetime.UTC).strftime("%Y%m%d%H%M")
        found.append((bytes(row.value), tuple(attributes.items()), row.messageType, time))
    assert_same_rows(found, [(s.body, s.attributes, s.message_type, s.message_time) for s in sent])
    assert {row.topic for row in rows} == {topic}
    offsets = [(row.partition, row.offset) for row in rows if row.offset is not None]
    assert len(set(offsets)) == len(offsets)
    if shape != "2x3":
        assert len(offsets) == len(sent)
        assert all(offset % 28 == 0 for _, offset in offsets)


@pytest.mark.smoke
def test_only_the_asked_columns_are_there_in_the_asked_order(spark, server):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(50))

    frame = (
        spark.read.format("tubemq")
        .options(**server.options(subscribe=topic))
        .schema("offset long, value binary, topic string")
        .load()
    )

    assert frame.columns == ["offset", "value", "topic"]
    assert [(row.offset, int(row.value)) for row in frame.collect()] == [(28 * n, n) for n in range(50)]


@pytest.mark.smoke
def test_ranges_by_offsets(spark, server):
    """JSON offsets cut exactly; -2 and -1 stand for the log's ends."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(100))

    part = read(
        spark,
        server,
        topic,
        startingOffsets=json.dumps({topic: {"1:0": 280}}),
        endingOffsets=json.dumps({topic: {"1:0": 1400}}),
    )
    everything = read(
        spark,
        server,
        topic,
        startingOffsets=json.dumps({topic: {"1:0": -2}}),
        endingOffsets=json.dumps({topic: {"1:0": -1}}),
    )

    assert numbers(part) == list(range(10, 50))
    assert numbers(everything) == list(range(100))


def test_ranges_partition_a_topic_whose_partitions_share_stores(spark, server):
    """Two adjoining ranges hold every message once, also where offsets of partitions are interleaved."""
    topic = server.fresh_topic("2x3")
    produce_numbers(server.master, topic, range(3000))
    cut = json.dumps({topic: dict.fromkeys(partitions("2x3"), 28 * 700)})

    first = numbers(read(spark, server, topic, endingOffsets=cut))
    second = numbers(read(spark, server, topic, startingOffsets=cut))

    assert_same_rows(first + second, range(3000))
    assert len(first) == 1400


def test_an_empty_topic_has_no_rows(spark, server):
    assert read(spark, server, server.fresh_topic("3x1")).count() == 0


def test_several_topics(spark, server):
    one, other = server.fresh_topic(), server.fresh_topic()
    produce_numbers(server.master, one, range(10))
    produce_numbers(server.master, other, range(10, 30))

    rows = read(spark, server, f"{one}, {other}").collect()

    assert_same_rows(
        [(row.topic, int(row.value)) for row in rows],
        [(one, n) for n in range(10)] + [(other, n) for n in range(10, 30)],
    )


def test_a_limited_read_gives_its_partition_back(spark, server):
    """LIMIT abandons tasks half way; the next read finds every partition free."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(20_000))

    for _ in range(3):
        assert len(read(spark, server, topic).limit(5).collect()) == 5
    assert read(spark, server, topic).count() == 20_000


def test_a_frame_joined_with_itself_reads_a_partition_twice_at_once(spark, server):
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(3000))

    frame = read(spark, server, topic).selectExpr("cast(value as string) as number")

    assert frame.alias("a").join(frame.alias("b"), "number").count() == 3000


@pytest.mark.any_server
def test_a_frame_has_the_same_rows_at_each_action_and_in_a_union(spark, server):
    """A fixed end stays where it is; the latest is where the topic ended at the first action."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(20))
    fixed = read(spark, server, topic, endingOffsets=json.dumps({topic: {"1:0": 28 * 10}}))
    everything = read(spark, server, topic)
    assert numbers(everything) == list(range(20))

    produce_numbers(server.master, topic, range(20, 30))

    assert numbers(fixed) == list(range(10))
    assert numbers(everything) == list(range(20))
    assert_same_rows(numbers(fixed.union(fixed)), [*range(10), *range(10)])
    assert_same_rows(numbers(everything.union(everything)), [*range(20), *range(20)])
    assert numbers(read(spark, server, topic)) == list(range(30))


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_a_frame_made_before_retention_begins_behind_it(spark, server):
    """Where the log begins is looked up by the first action, not when the frame is made."""
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(20))
    frame = read(spark, server, topic)
    server.expire(topic)
    produce_numbers(server.master, topic, range(20, 25))

    assert numbers(frame) == list(range(20, 25))
