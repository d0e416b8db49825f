"""Splitting partitions by number: everything belongs to exactly one node, the same as in Java."""

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tubemq_spark.client.consumer.assigned.session import share_of
from tubemq_spark.client.consumer_config import Node
from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition

partitions = st.builds(
    TopicPartition,
    st.sampled_from(["demo", "other_topic", "Z9"]),
    st.integers(1, 2**31 - 1),
    st.integers(0, 99_999),
)


@given(st.sets(partitions, max_size=30), st.integers(1, 7))
def test_every_partition_is_in_exactly_one_share(some, count):
    shares = [share_of(some, Node(count, number)) for number in range(count)]
    assert sorted(one for share in shares for one in share) == sorted(some)


@in_one_test(
    ("partition", "java"),
    [
        # Integer.toUnsignedLong("1:demo:0".hashCode()) of Java 17, and so on.
        (TopicPartition("demo", 1, 0), 2_393_512_898),
        (TopicPartition("demo", 2, 10_001), 3_098_063_779),
        (TopicPartition("a_long_topic_name", 123_456, 20_003), 183_600_260),
    ],
)
@in_one_test("count", [1, 2, 3, 1_000_003])
def test_shares_are_those_of_javas_hash_codes(partition, java, count):
    assert share_of([partition], Node(count, java % count)) == (partition,)
    assert count == 1 or share_of([partition], Node(count, (java + 1) % count)) == ()


@pytest.mark.parametrize(("count", "number"), [(0, 0), (2, 2), (2, -1), (2, "1"), (True, 0)])
def test_numbers_that_no_node_can_have_are_refused(count, number):
    with pytest.raises(OptionError, match=r"source_count|node_id"):
        Node(count, number).validate()
