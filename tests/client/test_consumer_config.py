"""The settings of consumers: their defaults, and what is refused.

What a group consumer asks for is checked before any server hears of it.
"""

import dataclasses
import pickle
import typing

import pytest

from tests.cases import in_one_test
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer_config import (
    BoundStart,
    ConsumePosition,
    ConsumerConfig,
    ConsumerSettings,
    Node,
    Subscription,
)
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC, ReadStatus

FORGOTTEN_AFTER_MS = 30_000
"""A master forgets a member that is silent for so long (consumerHeartbeatTimeoutMs)."""


def test_the_defaults_are_those_of_tubemqs_clients():
    """Of Go's and C++'s, and of Java's where only its consumers have the setting; one differs on purpose."""
    config = ConsumerConfig().validate()
    assert dataclasses.asdict(config) == {
        "consume_position": ConsumePosition.LATEST,
        "confirm_timeout_ms": 60_000,
        "rollback": True,
        "ready_wait_ms": 60_000,
        "not_found_wait_ms": 400,
        "rebalance_wait_ms": 3_000,
        "shutdown_wait_ms": 10_000,
        "report_interval": 6,
        "misses_before_pause": 5,
        "pause_after_misses_ms": 20_000,
        "confirm_locally": False,
        "layout_period_ms": 10_000,
    }


def test_a_master_never_forgets_a_consumer_that_pauses():
    """TubeMQ's clients pause for 60 s, which loses the registration that they wait for."""
    assert ConsumerConfig().pause_after_misses_ms < FORGOTTEN_AFTER_MS
    with pytest.raises(OptionError, match="setting pause_after_misses_ms is 30000"):
        ConsumerConfig(pause_after_misses_ms=FORGOTTEN_AFTER_MS).validate()


@pytest.mark.parametrize(
    ("position", "status"),
    [
        ("first", ReadStatus.STORED_OR_EARLIEST),
        ("latest", ReadStatus.STORED_OR_LATEST),
        ("alwaysLatest", ReadStatus.LATEST_ALWAYS),
    ],
)
def test_a_position_says_where_a_first_registration_begins(position, status):
    assert ConsumePosition.of(position).read_status is status
    assert ConsumePosition.of(ConsumePosition(position)).read_status is status


@pytest.mark.parametrize("given", ["", "earliest", "LATEST", "0"])
def test_an_unknown_start_position_is_refused_with_the_names(given):
    with pytest.raises(OptionError, match="must be one of 'first', 'latest', 'alwaysLatest'"):
        ConsumePosition.of(given)


NUMBERS = [name for name, value in dataclasses.asdict(ConsumerConfig()).items() if type(value) is int]


@in_one_test("name", NUMBERS)
@in_one_test("value", [-2, 86_400_001, "60000", 1.5, None, True])
def test_a_number_that_makes_no_sense_is_named(name, value):
    with pytest.raises(OptionError, match=f"The setting {name} is {value!r}; it must be a whole number from"):
        ConsumerConfig(**{name: value}).validate()


@pytest.mark.parametrize("name", ["rollback", "confirm_locally"])
@pytest.mark.parametrize("value", ["true", 1, None])
def test_a_switch_that_is_neither_true_nor_false_is_refused(name, value):
    with pytest.raises(OptionError, match=f"The setting {name} is .*; it must be True or False"):
        ConsumerConfig(**{name: value}).validate()


@pytest.mark.parametrize("value", ["first", 0, None])
def test_a_position_has_its_type(value):
    with pytest.raises(OptionError, match="The setting consume_position is"):
        ConsumerConfig(consume_position=value).validate()


@pytest.mark.parametrize(
    "changes",
    [
        {"ready_wait_ms": -1},
        {"ready_wait_ms": 0},
        {"not_found_wait_ms": 0, "rebalance_wait_ms": 0, "shutdown_wait_ms": 0, "layout_period_ms": 0},
        {"confirm_timeout_ms": 1, "report_interval": 1, "misses_before_pause": 1, "pause_after_misses_ms": 0},
    ],
)
def test_settings_at_their_bounds_are_good(changes):
    config = ConsumerConfig(**changes)
    assert config.validate() is config


def test_a_client_checks_the_settings_of_its_consumers():
    client = ClientConfig((Endpoint("m", 8715),), "etl", consumer=ConsumerConfig(report_interval=0))
    with pytest.raises(OptionError, match="setting report_interval is 0"):
        client.validate()
    assert pickle.loads(pickle.dumps(client)) == client


# Settings by name.


def test_each_setting_has_its_name_and_its_type_as_a_keyword():
    by_name = typing.get_type_hints(ConsumerSettings)
    assert by_name == typing.get_type_hints(ConsumerConfig) | {"consume_position": ConsumePosition | str}


@pytest.fixture(params=[TubeMQClient, AsyncTubeMQClient])
def client(request):
    """A client with settings of its own, which has reached no server."""
    return request.param.from_url("tubemq://127.0.0.1:1?group=etl&ready_wait_ms=777&rollback=false")


@pytest.fixture(params=["group_consumer", "assigned_consumer"])
def make(request, client):
    return getattr(client, request.param)


def test_settings_by_name_count_more_than_the_clients(make):
    consumer = make("clicks", consume_position="first", rollback=True, confirm_timeout_ms=5)
    assert consumer.config.consumer == ConsumerConfig(
        consume_position=ConsumePosition.FIRST, ready_wait_ms=777, confirm_timeout_ms=5
    )
    assert make("clicks").config.consumer == ConsumerConfig(ready_wait_ms=777, rollback=False)
    position = make("clicks", consume_position=ConsumePosition.ALWAYS_LATEST).config.consumer.consume_position
    assert position is ConsumePosition.ALWAYS_LATEST


def test_settings_are_given_in_one_way(make):
    with pytest.raises(
        OptionError, match="settings is given with rollback; it must be given without settings by name"
    ):
        make("clicks", settings=ConsumerConfig(), rollback=False)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"consume_position": "newest"}, "consume_position is 'newest'; it must be one of 'first'"),
        ({"ready_wait_ms": "1"}, "ready_wait_ms is '1'"),
        ({"confirm_timeout_ms": 0}, "confirm_timeout_ms is 0"),
    ],
)
def test_a_wrong_setting_by_name_is_refused(make, named, told):
    with pytest.raises(OptionError, match=told):
        make("clicks", **named)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "consumer_position",
            "unexpected keyword argument 'consumer_position'. Did you mean 'consume_position'?",
        ),
        ("zzz", "unexpected keyword argument 'zzz'. It takes: topics, .*, consume_position, confirm"),
    ],
)
def test_a_setting_that_there_is_not_is_refused_with_those_that_there_are(make, name, told):
    with pytest.raises(TypeError, match=told):
        make("clicks", **{name: 1})


PLACE = TopicPartition("demo", 1, 0)


def test_topics_and_filters():
    subscription = Subscription.of(["demo", "other", "demo"], {"demo": ["b", "a", "b"]})
    assert subscription.topics == ("demo", "other")
    assert subscription.message_types == {"demo": {"a", "b"}, "other": frozenset()}
    assert subscription.filtered_topics == {"demo"}
    assert subscription.start is None


def test_one_text_is_one_topic():
    assert Subscription.of("demo").topics == ("demo",)


def test_the_topic_that_brokers_write_themselves_can_be_read():
    assert Subscription.of(OFFSET_HISTORY_TOPIC).topics == ("__offset_history__",)


@in_one_test(
    "topics", [[], "", [""], ["demo", " "], ["de:mo"], ["1demo"], ["x" * 65], [f"t{n}" for n in range(1025)]]
)
def test_topics_that_cannot_be_read_are_refused(topics):
    with pytest.raises(OptionError, match="The setting topics is"):
        Subscription.of(topics)


@in_one_test(
    "types", ["abc", [""], [" "], [" a"], ["a,b"], ["a#b"], ["x" * 257], [f"t{n}" for n in range(501)]]
)
def test_filters_that_cannot_be_sent_are_refused(types):
    with pytest.raises(OptionError, match="The setting message_types is"):
        Subscription.of("demo", {"demo": types})


def test_filters_at_their_limits_are_taken():
    longest = [f"{number:0256}" for number in range(500)]
    assert Subscription.of("demo", {"demo": longest}).message_types["demo"] == set(longest)


def test_a_filter_for_another_topic_is_refused():
    with pytest.raises(OptionError, match="for 'other'; it must be for topics among demo"):
        Subscription.of("demo", {"other": ["a"]})


def test_a_bound_start():
    start = BoundStart("run-7", 3, {PLACE: 56}, select_big=False)
    assert Subscription.of("demo", start=start).start == start


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"session_key": ""}, "session_key"),
        ({"session_key": " "}, "session_key"),
        ({"session_key": "a,b"}, "session_key"),
        ({"session_key": "x" * 1025}, "session_key"),
        ({"source_count": 0}, "source_count"),
        ({"source_count": -2}, "source_count"),
        ({"offsets": {TopicPartition("other", 1, 0): 28}}, "offsets"),
    ],
)
def test_an_invalid_bound_start_is_refused(change, name):
    start = BoundStart(**{"session_key": "run-7", "source_count": 3, **change})
    with pytest.raises(OptionError, match=f"The setting {name} is"):
        Subscription.of("demo", start=start)


@pytest.mark.parametrize("value", [None, "3", 2.0, True])
def test_counts_are_whole_numbers_and_choices_are_true_or_false(value):
    with pytest.raises(OptionError, match="The setting source_count is"):
        Subscription.of("demo", start=BoundStart("run-7", value))
    if value is not True:
        with pytest.raises(OptionError, match="The setting select_big is"):
            Subscription.of("demo", start=BoundStart("run-7", 3, select_big=value))


@pytest.mark.parametrize(("count", "number"), [(1, 0), (3, 0), (3, 2)])
def test_a_node_number_below_the_count_is_valid(count, number):
    node = Node(count, number)
    assert node.validate() is node


@pytest.mark.parametrize(
    ("count", "number", "name"),
    [
        (0, 0, "source_count"),
        (-2, -2, "source_count"),
        (3, 3, "node_id"),
        (3, -1, "node_id"),
        (1, "0", "node_id"),
    ],
)
def test_an_invalid_node_is_refused(count, number, name):
    with pytest.raises(OptionError, match=f"The setting {name} is .*; it must be a whole number from"):
        Node(count, number).validate()


@pytest.mark.parametrize("offset", [-28, 27, 1 << 63])
def test_invalid_offsets_are_refused(offset):
    with pytest.raises(OffsetFormatError, match="demo/1:0"):
        Subscription.of("demo", start=BoundStart("run-7", 3, {PLACE: offset}))
