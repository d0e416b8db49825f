"""What a read is asked for: all that fits, and the combinations that are refused before a server is asked."""

import datetime
from unittest import mock

import pytest

from tubemq_spark.client import TopicPartition, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.reader.selection import Selection
from tubemq_spark.client.reader.topic_reader import range_request
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.model import Endpoint, OffsetRange, TopicsLayout

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
NOON_MS = round(NOON.timestamp() * 1000)
FIRST, SECOND = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 10_000)
OTHER = TopicPartition("orders", 1, 0)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, Selection(("clicks",))),
        ({"start": "earliest", "end": "latest"}, Selection(("clicks",))),
        ({"start": None, "end": None, "partitions": None}, Selection(("clicks",))),
        ({"start": NOON, "end": NOON_MS}, Selection(("clicks",), NOON_MS, NOON_MS)),
        ({"start": 0}, Selection(("clicks",), 0)),
        ({"start": {FIRST: 28}, "end": {"1:0": 28}}, Selection(("clicks",), {FIRST: 28}, {FIRST: 28})),
        ({"start": {FIRST: 28}, "end": NOON}, Selection(("clicks",), {FIRST: 28}, NOON_MS)),
        ({"limit": 3, "last": 2, "end": NOON}, Selection(("clicks",), None, NOON_MS, 3, 2)),
        ({"partitions": ["1:0", (1, 10_000), FIRST]}, Selection(("clicks",), partitions={FIRST, SECOND})),
    ],
)
def test_what_can_be_asked_for(asked, expected):
    assert Selection.of(["clicks"], **asked) == expected


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"start": NOON.replace(tzinfo=None)}, "start is .* 'earliest', a datetime with a time zone, mill"),
        ({"start": "2026-01-31"}, "start is '2026-01-31'; it must be 'earliest', a datetime"),
        ({"start": "latest"}, "start is 'latest'; .* to wait for more, use a consumer"),
        ({"end": "earliest"}, "end is 'earliest'; it must be 'latest', a datetime"),
        ({"start": 280}, "start is 280; .* before the year 2000, and an offset has a partition"),
        ({"end": NOON_MS // 1000}, "end is 1769860800; .* before the year 2000"),
        ({"start": True}, "start is True"),
        ({"start": -1}, "start is -1"),
        ({"end": NOON, "start": NOON_MS + 1}, "end is before start"),
        ({"start": {FIRST: 56}, "end": {"1:0": 28}}, "end is 28 for clicks/1:0; it must be 56 or more"),
        ({"start": {FIRST: True}}, "start is True for clicks/1:0; it must be an offset"),
        ({"start": {OTHER: 28}}, "start is with orders/1:0; it must be of partitions of clicks"),
        ({"start": {"1": 28}}, "start is with '1'; .* or of its topic such as \"1:10000\""),
        ({"start": {FIRST: 28}, "partitions": [SECOND]}, "start is for clicks/1:0; .* of partitions"),
        ({"last": 3, "start": NOON}, "start is given with last; it must be left out"),
        ({"last": 0}, "last is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": True}, "limit is True"),
        ({"limit": "5"}, "limit is '5'"),
        ({"partitions": []}, "partitions is empty; it must be at least one partition, or left out"),
        ({"partitions": FIRST}, "partitions is .*; it must be a list of partitions"),
        ({"partitions": "1:0"}, "partitions is '1:0'; it must be a list of partitions"),
        ({"partitions": [OTHER]}, "partitions is with orders/1:0"),
        ({"partitions": [1]}, "partitions is with 1; it must be of partitions, each a TopicPartition"),
        ({"partitions": ["a:b"]}, "partitions is with 'a:b'"),
    ],
)
@pytest.mark.parametrize("kind", [TubeMQClient, AsyncTubeMQClient])
def test_what_is_refused_at_once(kind, asked, told):
    """No server listens at this address."""
    client = kind.connect("127.0.0.1:1")
    with pytest.raises(OptionError, match=rf"^\[TUBEMQ_BAD_SETTING\] The setting {told}"):
        client.read("clicks", **asked)


def test_offsets_are_multiples_of_28():
    with pytest.raises(OffsetFormatError, match="the nearest are 0 and 28"):
        Selection.of(["clicks"], start={FIRST: 27})


def test_of_several_topics_partitions_are_named_with_theirs():
    assert Selection.of(["clicks", "orders"], partitions=[FIRST, OTHER]).partitions == {FIRST, OTHER}
    with pytest.raises(OptionError, match=r"each a TopicPartition\.$"):
        Selection.of(["clicks", "orders"], partitions=["1:0"])


@pytest.mark.parametrize(("types", "exact"), [((), True), (("book",), False)])
def test_offsets_of_records_are_not_told_where_a_broker_passes_over_some(types, exact):
    """Which batches have all of their records depends on the borders of fetches."""
    questions = mock.create_autospec(Questions, instance=True)
    questions.config = ClientConfig((), "etl", message_types=types)
    layout = TopicsLayout({FIRST: Endpoint("127.0.0.1", 9)}, 0)
    assert range_request(questions, layout, OffsetRange(FIRST, 0, 28)).own_store is exact


def test_an_unknown_word_is_refused():
    with pytest.raises(
        TypeError, match=r"^TubeMQClient\.read\(\) got an unexpected keyword argument 'from_'"
    ):
        TubeMQClient.connect("127.0.0.1:1").read("clicks", from_=NOON)
