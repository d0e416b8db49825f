"""What a query reads: topics, a pattern, or partitions."""

import pickle

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets.strategies import tp
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.model import Endpoint, TopicsLayout
from tubemq_spark.offsets.subscription import (
    Assignment,
    TopicPattern,
    Topics,
    format_assignment,
    parse_assignment,
)

BROKER = Endpoint("broker", 8123)
FIRST, SECOND, OTHER = tp("demo/1:0"), tp("demo/1:1"), tp("orders/2:0")
LAYOUT = TopicsLayout(dict.fromkeys([FIRST, SECOND, OTHER], BROKER), 7)


def refuse():
    raise AssertionError("no master need be asked")


def test_named_topics_are_read_wholly():
    named = Topics(("orders", "demo"))
    assert named.topics(refuse) == ("orders", "demo")
    assert named.of(LAYOUT) is LAYOUT
    assert named.others([FIRST, OTHER]) == []
    assert Topics(("demo",)).others([FIRST, OTHER]) == [OTHER]
    assert named.label == "demo-orders"


def test_a_pattern_matches_whole_names():
    pattern = TopicPattern("demo|ord.*")
    assert pattern.topics(lambda: {"orders", "demo", "demo2", "my_demo"}) == ("demo", "orders")
    assert pattern.of(LAYOUT) is LAYOUT
    assert pattern.others([FIRST, OTHER, tp("demo2/1:0")]) == [tp("demo2/1:0")]
    assert pattern.label != TopicPattern("demo|ord.+").label


def test_assigned_partitions_are_read_and_the_others_of_their_topics_remembered():
    assigned = Assignment(frozenset({FIRST, OTHER}))
    assert assigned.topics(refuse) == ("demo", "orders")
    assert assigned.label == Topics(("orders", "demo")).label
    part = assigned.of(LAYOUT)
    assert list(part.partitions) == [FIRST, OTHER]
    assert part.unread == {SECOND}
    assert part.visit_token == 7
    assert part.alone_in_store == {OTHER.store_id: OTHER}, "the store of demo/1:0 has another partition"
    assert assigned.others([FIRST, SECOND]) == [SECOND]


def test_an_assigned_partition_must_exist():
    Assignment(frozenset({FIRST})).refuse_missing(LAYOUT)
    assigned = Assignment(frozenset({FIRST, tp("demo/9:0")}))
    with pytest.raises(OptionError) as refused:
        assigned.refuse_missing(assigned.of(LAYOUT))
    text = str(refused.value)
    assert "'assign' names partitions that do not exist: demo/9:0" in text
    assert "these exist: demo/1:0, demo/1:1, orders/2:0" in text


KEYS = ["demo/1:0", "demo/1:1", "demo/10:10000", "orders/2:0"]


@given(st.sets(st.builds(tp, st.sampled_from(KEYS)), min_size=1))
def test_a_written_assignment_is_read_and_pickled(partitions):
    assigned = Assignment(frozenset(partitions))
    assert parse_assignment(format_assignment(assigned)) == assigned
    assert pickle.loads(pickle.dumps(assigned)) == assigned


@in_one_test(
    ("text", "problem"),
    [
        ("demo:1", "it is not JSON"),
        ('["demo"]', "not an object"),
        ("{}", "names no partition"),
        ('{"demo":[]}', "not a list of brokerId:partitionId"),
        ('{"demo":"1:0"}', "not a list of brokerId:partitionId"),
        ('{"demo":[0,1]}', "not a list of brokerId:partitionId"),
        ('{"demo":["1"]}', "'1' of topic 'demo' is not brokerId:partitionId"),
        ('{"demo":["1:0","1:0"]}', "names demo/1:0 twice"),
        ('{"demo":["1:0"],"demo":["1:1"]}', "names 'demo' twice"),
    ],
)
def test_wrong_text_is_refused_with_an_example(text, problem):
    with pytest.raises(OffsetFormatError) as refused:
        parse_assignment(text)
    assert problem in str(refused.value)
    assert 'write for example {"demo":["1:0","1:10000"]}' in str(refused.value)
