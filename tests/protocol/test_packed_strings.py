"""Packed strings: what peers write is read, what is read is written back, everything else is refused."""

import contextlib
import dataclasses

import pytest
from hypothesis import given, strategies as st

from testkit import wire
from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import VECTORS
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol import packed_strings as held, packed_strings as topics

sizes = st.tuples(st.integers(0, 10), st.integers(0, 2_500))
routes = st.builds(
    lambda broker_id, size: topics.RouteItem(broker_id, stores=size[0], partitions=size[1]),
    own.naturals,
    sizes,
)
items = st.builds(
    lambda broker_id, size, status: topics.MetaItem(broker_id, size[0], size[1], status),
    own.naturals,
    sizes,
    st.booleans(),
)


def some(strategy):
    return st.lists(strategy, min_size=1, max_size=4).map(tuple)


partition_infos = st.builds(held.PartitionInfo, own.naturals, own.endpoints, own.names, own.naturals)

DEMO = held.PartitionInfo(1, Endpoint("10.1.2.10", 8123), "demo", 10001)


@pytest.mark.parametrize(
    ("parse", "item"), [(topics.parse_topic_route, "1:10000:10"), (topics.parse_topic_meta, "1:10:10000:1")]
)
def test_the_partitions_of_all_brokers_together_are_bounded(parse, item):
    parse(f"t#{item}")
    with pytest.raises(RemoteProtocolError, match="200000 partitions of a topic are too many"):
        parse(f"t#{item},{item}")


@given(st.builds(topics.BrokerInfo, own.naturals, own.endpoints))
def test_broker_infos_round_trip(value):
    assert topics.parse_broker_info(topics.format_broker_info(value)) == value
    assert topics.parse_broker_info(topics.format_broker_info(value, None), default_port=1) == value
    assert topics.parse_broker_info(topics.format_broker_info(value, 8124), default_port=8124) == value


@given(st.builds(topics.TopicRoute, own.names, some(routes), st.none() | own.naturals))
def test_topic_routes_round_trip(value):
    assert topics.parse_topic_route(topics.format_topic_route(value)) == value


@given(st.builds(topics.TopicMeta, own.names, some(items)))
def test_topic_metas_round_trip(value):
    assert topics.parse_topic_meta(topics.format_topic_meta(value)) == value


@given(partition_infos)
def test_partitions_round_trip(value):
    text = held.format_partition(value.broker_id, value.endpoint, value.topic, value.partition_id)
    assert held.parse_partition(text) == value


@given(st.builds(held.SubscribeInfo, own.names, own.names, partition_infos))
def test_subscribe_infos_round_trip(value):
    assert held.parse_subscribe_info(held.format_subscribe_info(value)) == value


@given(st.builds(topics.TopicCondition, own.names, some(own.names)))
def test_topic_conditions_round_trip(value):
    assert topics.parse_topic_condition(topics.format_topic_condition(value)) == value


@given(st.dictionaries(own.partitions, st.integers(0, own.INT64_MAX), max_size=4))
def test_required_partitions_round_trip(value):
    assert wire.parse_required_partition(held.format_required_partition(value)) == value


@given(st.builds(held.FailureInfo, st.integers(0, 999), partition_infos))
def test_failure_infos_round_trip(value):
    assert held.parse_failure_info(wire.format_failure_info(value)) == value


@given(own.names, some(st.tuples(own.naturals, own.naturals)))
def test_part_sub_infos_round_trip(topic, pairs):
    value = tuple(TopicPartition(topic, *pair) for pair in pairs)
    assert held.parse_part_sub_info(held.format_part_sub_info(value)) == value


def reformat_partition(text: str) -> str:
    return held.format_partition(*(getattr(held.parse_partition(text), name) for name in PARTITION_FIELDS))


PARTITION_FIELDS = [field.name for field in dataclasses.fields(held.PartitionInfo)]

REFORMAT = {
    "brokerInfos": lambda text: topics.format_broker_info(topics.parse_broker_info(text)),
    "brokerConfigList": lambda text: topics.format_broker_info(topics.parse_broker_info(text)),
    "topicInfos": lambda text: topics.format_topic_route(topics.parse_topic_route(text)),
    "topicMetaInfoList": lambda text: topics.format_topic_meta(topics.parse_topic_meta(text)),
    "topicCondition": lambda text: topics.format_topic_condition(topics.parse_topic_condition(text)),
    "subscribeInfo": lambda text: held.format_subscribe_info(held.parse_subscribe_info(text)),
    "partitionInfo": reformat_partition,
    "failureInfo": lambda text: wire.format_failure_info(held.parse_failure_info(text)),
    "partSubInfo": lambda text: held.format_part_sub_info(held.parse_part_sub_info(text)),
}


def recorded(fields: dict):
    """Find the packed strings of a recorded message, also inside nested messages."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from recorded(value)
        elif name in REFORMAT:
            yield from ((name, text) for text in value)


RECORDED = sorted({pair for vector in VECTORS for pair in recorded(vector.get("fields", {}))})


def test_recorded_strings_of_every_kind_are_there():
    assert {name for name, _ in RECORDED} == REFORMAT.keys()


@in_one_test(("name", "text"), RECORDED)
def test_recorded_strings_are_written_back_as_they_were(name, text):
    assert REFORMAT[name](text) == text


def test_a_blank_port_is_the_default():
    assert topics.parse_broker_info("1:10.1.2.10: ").endpoint.port == 8123
    assert topics.parse_broker_info("1:10.1.2.10: ", default_port=8124).endpoint.port == 8124
    assert topics.format_broker_info(topics.BrokerInfo(1, Endpoint("h", 8124)), 8124) == "1:h: "
    assert topics.format_broker_info(topics.BrokerInfo(1, Endpoint("h", 8123)), 8124) == "1:h:8123"
    assert topics.format_broker_info(topics.BrokerInfo(1, Endpoint("h", 8123)), None) == "1:h:8123"


@pytest.mark.parametrize("text", ["1:10.1.2.10:", "1:10.1.2.10"])
def test_a_missing_port_is_the_default_too(text):
    """Peers that trim lose the blank."""
    assert topics.parse_broker_info(text) == topics.BrokerInfo(1, Endpoint("10.1.2.10", 8123))


def test_one_format_names_partitions_first_and_the_other_stores_first():
    """One store of three partitions."""
    (route,) = topics.parse_topic_route("demo2#1:3:1#").routes
    (item,) = topics.parse_topic_meta("demo2#1:1:3:1").items

    assert (route.partitions, route.stores) == (item.partitions, item.stores) == (3, 1)
    assert topics.format_topic_route(topics.TopicRoute("t", (route,))) == "t#1:3:1#"
    assert topics.format_topic_meta(topics.TopicMeta("t", (item,))) == "t#1:1:3:1"


def test_a_route_may_lack_its_last_separator():
    assert topics.parse_topic_route("demo#1:2:2") == topics.parse_topic_route("demo#1:2:2#")
    assert topics.parse_topic_route("demo#1:2:2#2097152").max_message_bytes == 2097152


def test_a_topic_without_filter_is_read_but_not_written():
    """The Go client sends it; Java's master fails on it."""
    assert topics.parse_topic_condition("demo#") == topics.TopicCondition("demo", ())
    with pytest.raises(LocalProtocolError, match="without items"):
        topics.format_topic_condition(topics.TopicCondition("demo", ()))


def test_filter_items_are_trimmed():
    assert topics.parse_topic_condition("demo# fA ,fB").message_types == ("fA", "fB")


def test_conditions_name_only_topics_with_filters_and_sort_them():
    """A group whose members list the same filters in another order would be refused (426)."""
    filters = {"b": ("two", "one"), "none": (), "a": {"x"}}
    assert topics.topic_conditions(filters) == ["a#x", "b#one,two"]
    assert topics.topic_conditions({"none": ()}) == []


def test_subscribe_infos_may_have_blanks_around_their_parts():
    text = " c-1 @ grp # 1 : 10.1.2.10 : 8123 # demo : 10001 "
    assert held.parse_subscribe_info(text) == held.SubscribeInfo("c-1", "grp", DEMO)
    with pytest.raises(RemoteProtocolError):
        held.parse_subscribe_info("c-1@grp#1 2:10.1.2.10:8123#demo:10001")


def test_required_partitions_may_be_empty():
    assert wire.parse_required_partition("") == {}
    assert held.format_required_partition({}) == ""


def test_required_partitions_example():
    offsets = {TopicPartition("demo", 1, 0): 56, TopicPartition("demo", 1, 10000): 28}
    assert held.format_required_partition(offsets) == "1:demo:0=56,1:demo:10000=28"


def test_a_partition_info_knows_its_partition():
    assert DEMO.partition == TopicPartition("demo", 1, 10001)


@pytest.mark.parametrize(
    ("stores", "partitions", "expected"),
    [(1, 1, [0]), (2, 3, [0, 1, 2, 10000, 10001, 10002]), (0, 5, []), (3, 0, [])],
)
def test_partition_ids(stores, partitions, expected):
    assert topics.partition_ids(stores, partitions) == expected


def test_the_largest_numbers_are_read():
    largest = held.PartitionInfo(own.INT32_MAX, Endpoint("h", 65_535), "demo", own.INT32_MAX)
    assert held.parse_partition("2147483647:h:65535#demo:2147483647") == largest


PARSERS = {
    topics.parse_broker_info: ["", "1", "x:h:1", "1:h:0", "1:h:65536", "1:h:1:2", "1: :8123", " 1:h:1"],
    topics.parse_topic_route: [
        *("", "#1:2:2#", "demo##", "demo#1:2#", "demo#1:2:2:2#", "demo#1:2:2,#", "demo#1:-2:2#"),
        *("demo#1:2:2#x", "demo#1:2:2#1#", "demo#1:10001:1#", "demo#1:10000:11#", "demo#2147483648:1:1#"),
    ],
    topics.parse_topic_meta: [
        *("", "demo#", "demo#1:1:3", "demo#1:1:3:2", "demo#1:1:3:1#", "demo#1:1:3:1,", "demo#1:1:10001:1"),
        "demo#1:2147483647:2147483647:1",
    ],
    held.parse_partition: [
        *("", "1:h:8123", "1:h: #demo:0", "1:h#demo:0", "1:h:8123#demo", "1:h:8123#demo:0:1", "1:h:8123#:0"),
        "1:h:8123#demo:2147483648",
        *(f"1:h:8123#demo:{number}" for number in ("x", "\u0663", "1_0", "+1", "9" * 5000)),
    ],
    held.parse_subscribe_info: ["", "c@g", "c#1:h:1#t:0", "c@g@x#1:h:1#t:0", "@g#1:h:1#t:0", "c@ #1:h:1#t:0"],
    topics.parse_topic_condition: ["", "demo", "#fA", "demo#fA,", "demo#,fA", "demo#fA#fB", "demo#f=A"],
    wire.parse_required_partition: [
        "1",
        "1:demo:0",
        "1:demo:0=",
        "1:demo:0=-28",
        "1:demo:0=28,",
        "1:demo=28",
    ],
    held.parse_failure_info: ["", "411", "411:", "x:1:h:1#t:0", ":1:h:1#t:0", "411:1:h:1"],
    held.parse_part_sub_info: ["", "demo", "demo#", "demo#1", "demo#1:0,", "#1:0", "demo#1:0:0"],
}


@in_one_test(("parse", "text"), [(parse, text) for parse, texts in PARSERS.items() for text in texts])
def test_malformed_strings_are_refused(parse, text):
    with pytest.raises(RemoteProtocolError) as caught:
        parse(text)
    assert caught.value.condition == "TUBEMQ_BAD_PACKED_STRING"
    assert repr(text[:200])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("parse", list(PARSERS), ids=lambda parse: parse.__name__)
@given(st.text(st.sampled_from(":#@,= 019xé٣-"), max_size=30))
def test_any_text_is_read_or_refused_as_the_peers_fault(parse, text):
    with contextlib.suppress(RemoteProtocolError):
        parse(text)


@in_one_test("bad", ["", " ", "a:b", "a#b", "a@b", "a,b", "a=b"])
def test_names_that_would_break_the_format_are_never_written(bad):
    good = Endpoint("h", 1)
    attempts = [
        lambda: topics.format_broker_info(topics.BrokerInfo(1, Endpoint(bad, 1))),
        lambda: topics.format_topic_route(topics.TopicRoute(bad, (topics.RouteItem(1, 1, 1),))),
        lambda: topics.format_topic_meta(topics.TopicMeta(bad, (topics.MetaItem(1, 1, 1, True),))),
        lambda: held.format_partition(1, Endpoint(bad, 1), "t", 0),
        lambda: held.format_partition(1, good, bad, 0),
        lambda: held.format_subscribe_info(held.SubscribeInfo(bad, "g", DEMO)),
        lambda: held.format_subscribe_info(held.SubscribeInfo("c", bad, DEMO)),
        lambda: topics.format_topic_condition(topics.TopicCondition(bad, ("fA",))),
        lambda: topics.format_topic_condition(topics.TopicCondition("t", (bad,))),
        lambda: held.format_required_partition({TopicPartition(bad, 1, 0): 0}),
        lambda: held.format_part_sub_info([TopicPartition(bad, 1, 0)]),
    ]
    for attempt in attempts:
        with pytest.raises(LocalProtocolError, match="in a packed string"):
            attempt()


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: topics.format_topic_route(topics.TopicRoute("t", ())),
        lambda: topics.format_topic_meta(topics.TopicMeta("t", ())),
        lambda: held.format_part_sub_info([]),
        lambda: held.format_part_sub_info([TopicPartition("a", 1, 0), TopicPartition("b", 1, 0)]),
    ],
    ids=["route", "meta", "nothing held", "two topics"],
)
def test_lists_that_have_no_form_are_never_written(attempt):
    with pytest.raises(LocalProtocolError):
        attempt()
