import json
import pickle

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import (
    LocalProtocolError,
    OffsetFormatError,
    OptionError,
    TubeMQConnectionError,
)
from tubemq_spark.model import OffsetBounds
from tubemq_spark.offsets.loss import LossRecorder, fail_on_loss
from tubemq_spark.offsets.notation import OffsetReader
from tubemq_spark.offsets.offset_spec import (
    Edge,
    Specific,
    Stored,
    Timestamp,
    format_offset_spec,
    format_timestamps,
    mentions,
    offset_spec_to_json,
    parse_offset_spec,
    parse_timestamps,
    read_offset_spec,
    resolve,
)
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, ONE, OTHER = tp("demo/1:0"), tp("demo/1:10000"), tp("orders/2:0")


def parse(text):
    return parse_offset_spec(text, "startingOffsets")


@given(own.positions_and_times)
def test_printing_and_parsing_is_the_identity(position):
    assert parse(format_offset_spec(position)) == position
    assert pickle.loads(pickle.dumps(position)) == position


@given(st.dictionaries(own.partitions, own.times_of_users, min_size=1, max_size=6))
def test_times_are_written_as_they_are_read(times):
    topics = {}
    for partition, time in times.items():
        topics.setdefault(partition.topic, {})[partition] = time
    assert parse_timestamps(format_timestamps(Specific(topics)), "startingOffsetsByTimestamp") == Specific(
        topics
    )


@in_one_test(
    ("text", "problem"),
    [
        ("yesterday", "it is not JSON"),
        ('{"demo":5}', "the value of topic 'demo' is 5, not an object"),
        ('{"demo":{"0":5}}', "'0' of topic 'demo' is not brokerId:partitionId"),
        ('{"demo":{"1:0":"noon"}}', 'the time of demo/1:0 is "noon", not a time such as 2026-01-31T12:00'),
        ('{"demo":{"1:0":-1}}', "the time of demo/1:0 is -1, not a time"),
        ('{"demo":{"1:0":true}}', "the time of demo/1:0 is true, not a time"),
        ('{"demo":{}}', "it names no partition"),
    ],
)
def test_wrong_times_are_refused_with_an_example(text, problem):
    with pytest.raises(OffsetFormatError) as refused:
        parse_timestamps(text, "startingOffsetsByTimestamp")
    assert problem in str(refused.value)
    assert 'write for example {"demo":{"1:0":"2026-01-31T12:00"}}' in str(refused.value)


@given(own.specifics())
def test_equal_positions_give_equal_text(position):
    inner = {
        topic: value if isinstance(value, Edge) else own.reordered(value)
        for topic, value in position.topics.items()
    }
    assert format_offset_spec(Specific(own.reordered(inner))) == format_offset_spec(position)


@in_one_test(
    ("text", "position"),
    [
        ("earliest", Edge.EARLIEST),
        (" LaTest\n", Edge.LATEST),
        ("{}", Specific({})),
        ('{"demo":{}}', Specific({"demo": {}})),
        ('{"demo":{"1:0":280}}', Specific({"demo": {ZERO: 280}})),
        (
            ' { "demo" : {"1:0":-2, "1:10000":-1} } ',
            Specific({"demo": {ZERO: Edge.EARLIEST, ONE: Edge.LATEST}}),
        ),
        ('{"orders":"earliest","demo":{"1:0":0}}', Specific({"demo": {ZERO: 0}, "orders": Edge.EARLIEST})),
        ('{"demo":" Latest "}', Specific({"demo": Edge.LATEST})),
        ('{"v":1,"topics":{"demo":{"1:0":280}}}', Specific({"demo": {ZERO: 280}})),
        ('{"from":{"demo":{"1:0":0}},"topics":{"demo":{"1:0":280}},"v":1}', Specific({"demo": {ZERO: 280}})),
        ('{"v":1,"start":"latest"}', Edge.LATEST),
        ('{"v":1,"start":{"demo":"latest"}}', Specific({"demo": Edge.LATEST})),
    ],
)
def test_texts(text, position):
    assert parse(text) == position


@given(own.source_offsets())
def test_a_checkpoint_is_accepted(offset):
    position = parse(json.dumps(offset.to_json()))
    flat = {partition: value for inner in position.topics.values() for partition, value in inner.items()}
    assert flat == offset.next_offsets


@given(own.positions_and_times)
def test_a_start_token_is_accepted(position):
    assert parse(json.dumps(StartToken(position).to_json())) == position


@in_one_test(
    ("text", "problem"),
    [
        ('{"demo":', "it is not JSON"),
        ('"earliest"', 'the text is "earliest", not an object'),
        ('{"demo":28}', "the value of topic 'demo' is 28, not an object"),
        ('{"demo":"newest"}', "the value of topic 'demo' is \"newest\", neither earliest nor latest"),
        ('{"demo":{"0":28}}', "'0' of topic 'demo' is not brokerId:partitionId"),
        ('{"demo":{"1:0":"28"}}', 'the offset "28" of demo/1:0 is not a whole number'),
        ('{"demo":{"1:0":"latest"}}', 'the offset "latest" of demo/1:0 is not a whole number'),
        ('{"demo":{"1:0":-1.0}}', "the offset -1.0 of demo/1:0 is not a whole number"),
        ('{"demo":{"1:0":100}}', "the offset 100 of demo/1:0 is not a multiple of 28"),
        ('{"v":1}', "the field 'topics' is missing"),
        ('{"v":1,"topics":{"demo":{"1:0":-1}}}', "the offset -1 of demo/1:0 is not a multiple of 28"),
        ('{"v":1,"topics":{"demo":"latest"}}', "the value of topic 'demo' is \"latest\", not an object"),
        ('{"v":1,"topics":{},"to":{}}', "the field 'to' is not known"),
        ('{"v":1,"start":"latest","topics":{}}', "the field 'topics' is not known"),
        ('{"v":1,"start":"newest"}', 'the position is "newest", neither earliest nor latest'),
        ('{"v":1,"start":5}', "the position is 5, not an object"),
        ('{"v":0,"topics":{}}', "0 is not a format version"),
    ],
)
def test_wrong_texts_are_refused_with_the_value_and_an_example(text, problem):
    with pytest.raises(OffsetFormatError) as caught:
        parse(text)
    message = str(caught.value)
    assert f"Option 'startingOffsets' cannot be read: {problem}" in message
    assert f"in {text};" in message
    assert message.endswith('write earliest, latest, group or for example {"demo":{"1:0":280,"1:10000":-2}}.')


def test_a_position_is_read_from_data():
    reader = OffsetReader("The test", "", "")
    assert read_offset_spec("earliest", reader) is Edge.EARLIEST
    assert read_offset_spec({"demo": "latest"}, reader) == Specific({"demo": Edge.LATEST})
    assert offset_spec_to_json(Specific({"demo": {ONE: Edge.LATEST, ZERO: 28}})) == {
        "demo": {"1:0": 28, "1:10000": -1}
    }


@pytest.mark.parametrize(
    ("position", "edge", "text"),
    [
        (Edge.LATEST, Edge.LATEST, "every partition"),
        (Edge.EARLIEST, Edge.LATEST, ""),
        (Specific({"demo": {ZERO: 0, ONE: Edge.EARLIEST}, "orders": Edge.EARLIEST}), Edge.LATEST, ""),
        (
            Specific({"orders": Edge.LATEST, "demo": {ONE: Edge.LATEST, ZERO: Edge.LATEST}}),
            Edge.LATEST,
            "demo/1:0, demo/1:10000, topic orders",
        ),
    ],
)
def test_mentions(position, edge, text):
    assert mentions(position, edge) == text


def test_a_long_list_is_cut():
    many = {tp(f"demo/1:{number}"): Edge.LATEST for number in range(12)}
    assert mentions(Specific({"demo": many}), Edge.LATEST).endswith("demo/1:9 and 2 more")
    del many[tp("demo/1:3")], many[tp("demo/1:4")]
    assert mentions(Specific({"demo": many}), Edge.LATEST).endswith("demo/1:10, demo/1:11")


BOUNDS = {
    ZERO.store_id: OffsetBounds(280, 560),
    ONE.store_id: OffsetBounds(0, 0),
    OTHER.store_id: OffsetBounds(28, 280),
}
ALL = [OTHER, ONE, ZERO]


def resolved(position, on_loss=fail_on_loss, partitions=ALL, bounds=BOUNDS):
    return resolve(position, partitions, bounds, option="startingOffsets", on_loss=on_loss)


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        (Edge.EARLIEST, {ZERO: 280, ONE: 0, OTHER: 28}),
        (Edge.LATEST, {ZERO: 560, ONE: 0, OTHER: 280}),
        (Specific({"demo": Edge.LATEST, "orders": Edge.EARLIEST}), {ZERO: 560, ONE: 0, OTHER: 28}),
        (
            Specific({"demo": {ZERO: 308, ONE: Edge.LATEST}, "orders": {OTHER: Edge.EARLIEST}}),
            {ZERO: 308, ONE: 0, OTHER: 28},
        ),
        (Specific({"demo": {ZERO: 280, ONE: 0}, "orders": {OTHER: 280}}), {ZERO: 280, ONE: 0, OTHER: 280}),
    ],
)
def test_resolve(position, offsets):
    assert resolved(position) == offsets


@given(
    own.positions, st.dictionaries(own.partitions.map(lambda known: known.store_id), own.bounds()), st.data()
)
def test_resolved_offsets_are_inside_the_log_or_the_position_is_refused(position, bounds, data):
    partitions = [tp(f"{store.topic}/{store.broker_id}:{store.store * 10_000}") for store in bounds]
    recorder = LossRecorder()
    try:
        offsets = resolved(position, recorder, partitions, bounds)
    except OptionError:
        return
    assert list(offsets) == sorted(partitions)
    for partition, offset in offsets.items():
        assert bounds[partition.store_id].earliest <= offset <= bounds[partition.store_id].latest
    for record in recorder.records:
        assert offsets[record.partition] == record.end


@pytest.mark.parametrize("position", [Stored.GROUP, Timestamp(0)])
def test_what_only_a_cluster_can_tell_is_not_resolved(position):
    with pytest.raises(LocalProtocolError, match="demo/1:0 has no offset yet"):
        resolved(position)


@pytest.mark.parametrize(
    ("topics", "unknown"),
    [
        ({"demo": Edge.LATEST, "orders": Edge.LATEST, "typo": Edge.LATEST}, "topic typo"),
        ({"demo": Edge.LATEST, "orders": {OTHER: 28, tp("orders/3:0"): 0}}, "orders/3:0"),
        (
            {"demo": {ZERO: 280, tp("demo/7:1"): 0}, "typo": {tp("typo/1:0"): 0}, "other": {}},
            "topic other, topic typo, demo/7:1",
        ),
    ],
)
def test_unknown_partitions_are_listed(topics, unknown):
    with pytest.raises(OptionError) as caught:
        resolved(Specific(topics))
    assert caught.value.condition == "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS"
    assert (
        f"names partitions that do not exist: {unknown}; these exist: demo/1:0, demo/1:10000, orders/2:0."
        in str(caught.value)
    )


def test_a_store_without_bounds_cannot_be_resolved_now():
    with pytest.raises(TubeMQConnectionError, match="no broker answered for demo/1:10000") as caught:
        resolved(Edge.LATEST, bounds={store: held for store, held in BOUNDS.items() if store != ONE.store_id})
    assert caught.value.retriable


def test_the_offset_of_a_checkpoint_resolves_to_itself():
    offset = SourceOffset({ZERO: 308, ONE: 0, OTHER: 28}, {ONE: 0})
    assert resolved(parse(json.dumps(offset.to_json()))) == offset.next_offsets
