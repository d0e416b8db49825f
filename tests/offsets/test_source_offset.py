import json
import pickle

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge, Specific
from tubemq_spark.offsets.source_offset import (
    ReportedEnd,
    SourceOffset,
    StartToken,
    read_stream_offset,
    start_of,
)

ZERO, ONE = tp("demo/1:0"), tp("demo/1:10000")


def through_spark(offset):
    """What comes back after Spark kept an offset as text."""
    return json.loads(json.dumps(offset.to_json()))


@given(st.one_of(own.source_offsets(), own.positions_and_times.map(StartToken)))
def test_a_written_stream_offset_is_read_and_pickled(offset):
    assert read_stream_offset(through_spark(offset)) == offset
    assert pickle.loads(pickle.dumps(offset)) == offset


@given(own.source_offsets())
def test_an_end_is_read(offset):
    assert SourceOffset.from_json(through_spark(offset)) == offset


@given(own.source_offsets())
def test_equal_offsets_give_equal_text(offset):
    twin = SourceOffset(
        own.reordered(offset.next_offsets),
        own.reordered(offset.first_offsets),
        offset.partial,
        offset.marks,
        own.reordered(offset.replaced),
    )
    assert json.dumps(twin.to_json()) == json.dumps(offset.to_json())


@given(own.source_offsets(), own.source_offsets())
def test_equal_text_means_equal_offsets(one, other):
    assert (json.dumps(one.to_json()) == json.dumps(other.to_json())) == (one == other)


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (StartToken(Edge.LATEST), '{"v": 1, "start": "latest"}'),
        (
            StartToken(Specific({"orders": Edge.EARLIEST, "demo": {ONE: Edge.LATEST, ZERO: 28}})),
            '{"v": 1, "start": {"demo": {"1:0": 28, "1:10000": -1}, "orders": "earliest"}}',
        ),
        (SourceOffset({}), '{"v": 1, "topics": {}}'),
        (SourceOffset({ONE: 28, ZERO: 280}), '{"v": 1, "topics": {"demo": {"1:0": 280, "1:10000": 28}}}'),
        (
            SourceOffset({ZERO: 280}, {ZERO: 0}),
            '{"v": 1, "topics": {"demo": {"1:0": 280}}, "from": {"demo": {"1:0": 0}}}',
        ),
        (
            SourceOffset({ZERO: 280}, partial=True),
            '{"v": 1, "topics": {"demo": {"1:0": 280}}, "partial": true}',
        ),
    ],
)
def test_the_text_of_version_1_never_changes(offset, text):
    """Checkpoints of users hold these texts."""
    assert json.dumps(offset.to_json()) == text
    assert read_stream_offset(json.loads(text)) == offset


def test_no_wrong_offset_is_ever_written():
    with pytest.raises(OffsetFormatError, match="27 of demo/1:0"):
        SourceOffset({ZERO: 27})
    with pytest.raises(OffsetFormatError, match="-28 of demo/1:0"):
        SourceOffset({ZERO: 28}, {ZERO: -28})


@in_one_test(
    ("text", "problem"),
    [
        ("{}", "the field 'v' is missing"),
        ('{"topics":{}}', "the field 'v' is missing"),
        ('{"v":1}', "the field 'topics' is missing"),
        ('{"v":1,"topics":{},"more":1}', "the field 'more' is not known"),
        ('{"v":1,"topics":[]}', "the topics' value is [], not an object"),
        ('{"v":1,"topics":{"demo":{"1:0":-1}}}', "the offset -1 of demo/1:0 is not a multiple of 28"),
        ('{"v":1,"topics":{"demo":{"0":28}}}', "'0' of topic 'demo' is not brokerId:partitionId"),
        ('{"v":1,"topics":{},"from":{"demo":{"1:0":0}}}', "demo/1:0 is in 'from' but not in 'topics'"),
        ('{"v":1,"topics":{},"partial":1}', "the value of 'partial' is 1, neither true nor false"),
    ],
)
def test_other_data_is_refused(text, problem):
    for read in (read_stream_offset, SourceOffset.from_json):
        with pytest.raises(OffsetFormatError) as caught:
            read(json.loads(text))
        assert f"The stream's offset cannot be read: {problem}" in str(caught.value)
        assert "restore the checkpoint" in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"v":1,"start":"latest","topics":{}}', '{"v":1,"start":"newest"}', '{"v":1,"start":1}']
)
def test_a_wrong_token_is_refused(text):
    with pytest.raises(OffsetFormatError):
        read_stream_offset(json.loads(text))


def test_a_batch_does_not_end_at_a_token():
    with pytest.raises(OffsetFormatError, match="the field 'topics' is missing"):
        SourceOffset.from_json({"v": 1, "start": "latest"})


@pytest.mark.parametrize("data", [{"v": 3, "topics": {}}, {"v": 3, "start": "latest"}, {"v": 3, "else": 1}])
def test_a_checkpoint_of_a_newer_release_is_refused_with_both_versions(data):
    for read in (read_stream_offset, SourceOffset.from_json):
        with pytest.raises(OffsetFormatError, match=r"format version 3, .* up to version 2;") as caught:
            read(data)
        assert caught.value.condition == "TUBEMQ_OFFSETS_VERSION"


def test_a_partition_begins_at_the_start_offset_or_where_the_end_says():
    start, end = SourceOffset({ZERO: 280}), SourceOffset({ZERO: 560, ONE: 84}, {ONE: 28})
    assert start_of(ZERO, start, end) == 280
    assert start_of(ONE, start, end) == 28
    first = SourceOffset({ZERO: 280}, {ZERO: 56})
    assert start_of(ZERO, StartToken(Edge.LATEST), first) == 56
    # The start's own word wins: ``from`` speaks of the batch before.
    assert start_of(ZERO, first, first) == 280


@pytest.mark.parametrize("start", [StartToken(Edge.LATEST), SourceOffset({ONE: 28})])
def test_an_unknown_begin_is_refused(start):
    with pytest.raises(OffsetFormatError, match="it does not say where demo/1:0 begins"):
        start_of(ZERO, start, SourceOffset({ZERO: 28, ONE: 28}, {ONE: 0}))


LATEST = {TopicPartition("demo", 1, 0): 280, TopicPartition("demo", 2, 0): 0}


@pytest.mark.parametrize(
    "told", [ReportedEnd(LATEST), ReportedEnd(LATEST, (2, 10), 3), ReportedEnd(LATEST, (), 1)]
)
def test_what_is_written_is_read(told):
    assert ReportedEnd.from_json(told.to_json()) == told


def test_without_an_outage_it_is_an_offset_as_any_release_reads_it():
    assert SourceOffset.from_json(ReportedEnd(LATEST).to_json()).next_offsets == LATEST


@pytest.mark.parametrize("brokers", [7, {}, {"away": 7, "outages": "many"}, {"away": ["x"]}])
def test_brokers_as_no_release_writes_them(brokers):
    """Of a later release, perhaps: where topics end is still known, or the whole is refused."""
    data = {**ReportedEnd(LATEST).to_json(), "brokers": brokers}
    if isinstance(brokers, dict):
        assert ReportedEnd.from_json(data) == ReportedEnd(LATEST)
    else:
        with pytest.raises(OffsetFormatError):
            ReportedEnd.from_json(data)
