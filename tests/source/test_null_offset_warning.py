"""One warning where a topic's offsets will be null and are asked for."""

import pytest

from tests.source.fake_cluster import BROKER
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.source.advice import NullOffsetWarning

OWN = [TopicPartition("own", 1, 0), TopicPartition("own", 1, 10_000), TopicPartition("own", 2, 0)]
SHARED = [TopicPartition("shared", 1, 0), TopicPartition("shared", 1, 1), TopicPartition("shared", 2, 0)]
LATER = [TopicPartition("later", 3, 10_000), TopicPartition("later", 3, 10_001)]


def layout(partitions, unread=()):
    return TopicsLayout(dict.fromkeys(partitions, BROKER), 0, unread=frozenset(unread))


@pytest.fixture
def told(caplog):
    return lambda: [record.args[0] for record in caplog.records]


def test_a_topic_that_shares_stores_is_named_once(told):
    warning = NullOffsetWarning(["value", "offset"])
    for _ in range(3):
        warning.check(layout(OWN + SHARED))
    assert told() == ["shared"]


def test_a_topic_that_begins_to_share_is_named_then(told):
    warning = NullOffsetWarning(["offset"])
    warning.check(layout(OWN + SHARED))
    warning.check(layout(OWN + SHARED + LATER))
    assert told() == ["shared", "later"]


def test_a_partition_that_is_not_read_shares_its_store_all_the_same(told):
    NullOffsetWarning(["offset"]).check(layout(SHARED[:1], SHARED[1:]))
    assert told() == ["shared"]


def test_a_read_of_message_types_is_not_warned(told):
    NullOffsetWarning(["offset"], filtered=True).check(layout(SHARED))
    assert told() == []


def test_a_read_without_the_offset_column_is_not_warned(told):
    NullOffsetWarning(["value", "topic"]).check(layout(SHARED))
    assert told() == []


def test_topics_whose_partitions_have_a_store_each_are_fine(told):
    NullOffsetWarning(["offset"]).check(layout(OWN))
    assert told() == []
