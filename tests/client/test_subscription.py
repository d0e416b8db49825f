"""What a group consumer asks for is checked before any server hears of it."""

import pytest

from tests.cases import in_one_test
from tubemq_spark.client.consumer_config import BoundStart, Node, Subscription
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC

PLACE = TopicPartition("demo", 1, 0)


def test_topics_and_filters():
    found = Subscription.of(["demo", "other", "demo"], {"demo": ["b", "a", "b"]})
    assert found.topics == ("demo", "other")
    assert found.message_types == {"demo": {"a", "b"}, "other": frozenset()}
    assert found.filtered_topics == {"demo"}
    assert found.start is None


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
