"""What an assigned consumer and the master tell each other.

Splitting partitions by number: everything belongs to exactly one node, the same as in Java.
"""

import contextlib
import time

import pytest
from hypothesis import given, strategies as st

from testkit.connections import opened, opened_connections
from tests.cases import in_one_test
from tests.client.scripted_master import (
    FIRST,
    ScriptedMaster,
    beat,
    config_for,
    meta,
    partition,
    registered,
    token,
)
from tests.waiting import wait_until
from tubemq_spark.client.consumer.assigned.session import AssignedSession, share_of
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer_config import ConsumerConfig, Node, Subscription
from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import master_pb2

EMPTY_FETCHES = '[{"type": 1, "rule": [{"zeroCnt": 2, "freqInMs": 700}]}]'


class Consumer:
    """A session, and what it holds and knows."""

    def __init__(self, connections, master, subscription=None, node=None, held=(), **config):
        self.held = set(held)
        self.control = FlowControl()
        self.session = AssignedSession(
            config_for(master, **{"heartbeat_period_ms": 5, **config}),
            connections,
            subscription or Subscription.of("demo"),
            self.control,
            node=node,
            partitions=lambda: self.held,
        )


@contextlib.contextmanager
def open_consumer(*beats, registers=None, layout=None, **how):
    """Yield a master that answers like that, and a consumer whose session is open."""
    answers = {"balance_heartbeat": list(beats)} if beats else {}
    if registers is not None:
        answers["balance_register"] = registers
    if layout is not None:
        answers["balance_partition_meta"] = layout
    with opened_connections(1_000) as connections, ScriptedMaster(**answers) as master:
        consumer = Consumer(connections, master, **how)
        with opened(consumer.session):
            yield master, consumer


def ops(**known):
    return master_pb2.OpsTaskInfo(**known)


def reports(master):
    return [
        list(request.subRepInfo.partSubInfo)
        for request in master.of(Method.BALANCE_HEARTBEAT)
        if request.subRepInfo.reportSubInfo
    ]


def test_a_register_tells_topics_filters_and_the_node():
    subscription = Subscription.of(["other", "demo"], {"demo": ["b", "a"]})
    with open_consumer(subscription=subscription, node=Node(3, 2)) as (master, consumer):
        (request,) = master.of(Method.BALANCE_REGISTER)

    assert (request.sourceCount, request.nodeId) == (3, 2)
    assert list(request.topicList) == ["demo", "other"]
    assert list(request.topicCondition) == ["demo#a,b"]
    assert not request.HasField("opsTaskInfo")
    assert consumer.session.registered_at is not None


def test_without_a_node_the_master_is_told_to_check_nothing():
    with open_consumer() as (master, _):
        (request,) = master.of(Method.BALANCE_REGISTER)
    assert (request.sourceCount, request.nodeId) == (-2, -2)


def test_the_first_heartbeat_is_sent_at_once():
    with open_consumer(heartbeat_period_ms=3_600_000) as (master, _):
        master.wait_for(Method.BALANCE_HEARTBEAT, 1)


def test_what_is_held_is_told_when_it_changes_and_from_time_to_time():
    settings = ConsumerConfig(report_interval=4)
    with open_consumer(consumer=settings) as (master, consumer):
        wait_until(lambda: reports(master) == [[]])
        changed_at = len(master.of(Method.BALANCE_HEARTBEAT))
        consumer.held = {partition(1, 1), partition(1, 0)}
        held = ["demo#1:0,1:1"]
        wait_until(lambda: reports(master)[1:4] == [held] * 3)
        told = [
            number
            for number, request in enumerate(master.of(Method.BALANCE_HEARTBEAT))
            if request.subRepInfo.reportSubInfo
        ]
    assert told[0] == 0
    assert told[1] <= changed_at + 1, "one may have been on its way"
    assert told[3] - told[2] == told[2] - told[1] == settings.report_interval + 1


def test_a_report_of_which_no_answer_came_is_repeated():
    with open_consumer(beat(code=500), beat(code=500), beat(), held=[partition(1, 0)]) as (master, _):
        wait_until(lambda: len(reports(master)) >= 3)
    assert reports(master)[:3] == [["demo#1:0"]] * 3


def test_a_master_that_forgot_us_is_told_everything_again():
    beats = (beat(), beat(code=411), beat())
    with open_consumer(*beats, node=Node(2, 1), held=[partition(1, 0)]) as (master, _):
        wait_until(lambda: len(reports(master)) >= 2)
    assert [request.nodeId for request in master.of(Method.BALANCE_REGISTER)] == [1, 1]


def test_rules_and_the_priority_are_taken_over_and_their_ids_are_told():
    rules = ops(
        defFlowCheckId=4, defFlowControlInfo="", groupFlowCheckId=5, groupFlowControlInfo=EMPTY_FETCHES
    )
    rules.qryPriorityId = 303
    ids = beat(opsTaskInfo=ops(defFlowCheckId=4, groupFlowCheckId=5, qryPriorityId=303))
    registers = registered(opsTaskInfo=rules, authorizedInfo=token())
    with open_consumer(ids, registers=registers) as (master, consumer):
        told = master.wait_for(Method.BALANCE_HEARTBEAT, 2)[1].opsTaskInfo
        assert consumer.control.pause_after_empty(2, 0) == 700
        assert consumer.control.query_priority == 303
    assert (told.defFlowCheckId, told.groupFlowCheckId, told.qryPriorityId) == (4, 5, 303)


def test_rules_and_the_priority_end_when_an_answer_does_not_name_them():
    """Java's client keeps them for ever."""
    rules = ops(groupFlowCheckId=5, groupFlowControlInfo=EMPTY_FETCHES, qryPriorityId=303)
    registers = registered(opsTaskInfo=rules, authorizedInfo=token())
    with open_consumer(beat(opsTaskInfo=ops()), registers=registers) as (_, consumer):
        wait_until(lambda: consumer.control.query_priority == -2)
        assert consumer.control.pause_after_empty(2, 0) == 0
        assert consumer.control.group.check_id == -2


def resets(*beats):
    """Return how often a reset was taken while the master answered that to heartbeats, and the last one."""
    with open_consumer(*beats) as (master, consumer):
        master.wait_for(Method.BALANCE_HEARTBEAT, len(beats) + 2)
        taken = [consumer.session.take_reset(), consumer.session.take_reset()]
        return taken, master.of(Method.BALANCE_HEARTBEAT)[-1].opsTaskInfo


def test_a_reset_counts_once():
    taken, told = resets(beat(), beat(opsTaskInfo=ops(csmFrmMaxOffsetCtrlId=77)))
    assert taken == [True, False]
    assert told.csmFrmMaxOffsetCtrlId == 77


def test_a_reset_from_before_we_came_does_not_count():
    """Java's client compares the clocks of two machines."""
    before = ops(csmFrmMaxOffsetCtrlId=2**61)
    taken, _ = resets(beat(opsTaskInfo=before), beat())
    assert taken == [False, False]


def test_a_layout_that_comes_with_a_heartbeat_counts():
    news = beat(topicMetaInfoId=10, topicMetaInfoList=["demo#1:1:2:1"])

    def layout(request):
        return meta(meta_id=request.topicMetaInfoId)

    with open_consumer(news, layout=layout) as (master, consumer):
        session = consumer.session
        master.wait_for(Method.BALANCE_HEARTBEAT, 2)
        wait_until(lambda: run(session.layout()).partitions)
        assert run(session.layout()).partitions == {partition(1, 0): FIRST, partition(1, 1): FIRST}
        assert master.of(Method.BALANCE_HEARTBEAT)[-1].subRepInfo.lstAssignedTime > 0


def test_heartbeats_come_less_often_after_many_misses_but_before_the_master_forgets():
    with open_consumer(beat(code=500), consumer=ConsumerConfig(misses_before_pause=3)) as (master, _):
        master.wait_for(Method.BALANCE_HEARTBEAT, 3)
        time.sleep(0.05)
    assert len(master.of(Method.BALANCE_HEARTBEAT)) == 3


def test_a_token_is_asked_for():
    fresh = beat(authorizedInfo=token(9, "user's"))
    with open_consumer(beat(), fresh, heartbeat_period_ms=3_600_000) as (master, consumer):
        session = consumer.session
        master.wait_for(Method.BALANCE_HEARTBEAT, 1)
        assert session.visit_token == 7
        run(session.refresh_token())
        assert (session.visit_token, session.authorized_token) == (9, "user's")


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
