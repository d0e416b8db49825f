"""What members of a group and the master tell each other."""

import dataclasses
import threading
import time

import pytest

from testkit.connections import opened, opened_connections
from tests.client.scripted_master import ScriptedMaster, config_for, member_beat, member_registered, token
from tests.protocol.vectors import build, named
from tests.waiting import wait_until
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer_config import BoundStart, Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import EventType, RebalanceEvent, format_event
from tubemq_spark.protocol.packed_strings import PartitionInfo
from tubemq_spark.protocol.pb import master_pb2

HERE = PartitionInfo(1, Endpoint("10.1.2.10", 8123), "demo", 0)
THERE = PartitionInfo(2, Endpoint("10.1.2.11", 8200), "demo", 2)
EVENT = RebalanceEvent(47, EventType.ONLY_CONNECT, (HERE, THERE))


@pytest.fixture
def connections():
    with opened_connections(1_000) as connections:
        yield connections


class Member:
    """A session, and what it heard."""

    def __init__(self, connections, *masters, subscription=None, **config):
        self.held = []
        self.events = []
        self.control = FlowControl()
        self.session = GroupSession(
            config_for(*masters, **config),
            connections,
            subscription or Subscription.of("demo"),
            self.control,
            partitions=lambda: self.held,
            on_event=self.events.append,
        )


def recorded(name):
    vector = named(name)
    return build(getattr(master_pb2, vector["message"])(), vector["fields"])


def with_event(event=EVENT, **more):
    return member_beat(event=format_event(event, "c-1", "etl"), **more)


def test_the_recorded_register_is_sent(connections, monkeypatch):
    wanted = recorded("consumer_register_master_req")
    monkeypatch.setattr(identity, "local_ipv4", lambda: wanted.hostName)
    monkeypatch.setattr(identity, "RUNTIME", wanted.jdkVersion)
    monkeypatch.setattr(identity, "consumer_id", lambda group, kind: wanted.clientId)
    subscription = Subscription.of("demo", {"demo": ["fB", "fA"]})
    with ScriptedMaster() as master:
        member = Member(connections, master, subscription=subscription)
        member.session._subscribed_at_ms = wanted.sessionTime
        with opened(member.session):
            (sent,) = master.of(Method.CONSUMER_REGISTER)
    sent.groupName = wanted.groupName
    assert sent.SerializeToString().hex() == wanted.SerializeToString().hex()


def test_the_first_heartbeat_is_sent_at_once_and_says_what_the_recorded_one_says(connections):
    wanted = recorded("consumer_heartbeat_master_req")
    wanted.reportSubscribeInfo = True
    with ScriptedMaster() as master, opened(Member(connections, master, heartbeat_period_ms=60_000).session):
        (sent, *_) = master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
    sent.clientId, sent.groupName = wanted.clientId, wanted.groupName
    assert sent == wanted


def test_an_event_is_passed_on_and_answered_once_with_all_that_is_held(connections):
    wanted = recorded("consumer_heartbeat_master_ack_req")
    with ScriptedMaster(consumer_heartbeat=[with_event(), member_beat()]) as master:
        member = Member(connections, master, heartbeat_period_ms=60_000)
        member.session.client_id = wanted.clientId
        with opened(member.session):
            wait_until(lambda: member.events)
            member.held = [HERE, THERE]
            loop.call_soon(member.session.report, *member.events)
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 2)[1]
            loop.call_soon(member.session.report)
            after = master.wait_for(Method.CONSUMER_HEARTBEAT, 3)[2]

    assert member.events == [EVENT]
    assert after.reportSubscribeInfo
    assert not after.HasField("event")
    for item in (sent, wanted):
        item.groupName = "grp_a"
    assert [text.replace("@etl#", "@grp_a#") for text in sent.subscribeInfo] == list(wanted.subscribeInfo)
    assert sent.event.rebalanceId == wanted.event.rebalanceId
    assert (sent.event.opType, sent.event.status) == (wanted.event.opType, wanted.event.status)


def test_events_that_ended_together_are_answered_one_by_one_each_with_all_that_is_held(connections):
    ended = threading.Event()

    def late(_):
        assert ended.wait(5)
        return member_beat()

    with ScriptedMaster(consumer_heartbeat=[late, member_beat()]) as master:
        member = Member(connections, master, heartbeat_period_ms=60_000, rpc_timeout_ms=60_000)
        with opened(member.session):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
            for number in (47, 48):
                loop.call_soon(member.session.report, dataclasses.replace(EVENT, rebalance_id=number))
            ended.set()
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 3)
    told = [(item.event.rebalanceId, item.reportSubscribeInfo) for item in sent[1:3]]
    assert told == [(47, True), (48, True)]


def test_an_answer_that_was_not_heard_is_repeated(connections):
    answers = [with_event(), member_beat(500), member_beat()]
    with ScriptedMaster(consumer_heartbeat=answers) as master:
        member = Member(connections, master, heartbeat_period_ms=20)
        with opened(member.session):
            wait_until(lambda: member.events)
            loop.call_soon(member.session.report, *member.events)
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 4)
    assert [item.event.rebalanceId for item in sent[1:4]] == [47, 47, 0]
    assert [item.reportSubscribeInfo for item in sent[1:3]] == [True, True]


def test_a_report_that_was_not_heard_is_repeated(connections):
    answers = [member_beat(), member_beat(500), member_beat()]
    with ScriptedMaster(consumer_heartbeat=answers) as master:
        member = Member(connections, master, heartbeat_period_ms=60_000)
        with opened(member.session):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
            loop.call_soon(member.session.report)
            for count in (2, 3, 4):
                sent = master.wait_for(Method.CONSUMER_HEARTBEAT, count)
                member.session.refresh_soon()
    assert [item.reportSubscribeInfo for item in sent] == [True, True, True, False]


def test_what_is_held_is_told_every_few_heartbeats(connections):
    with ScriptedMaster() as master, opened(Member(connections, master, heartbeat_period_ms=5).session):
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 15)
    reports = [number for number, item in enumerate(sent[:15]) if item.reportSubscribeInfo]
    assert reports == [0, 7, 14]


def test_a_master_that_forgot_us_is_told_what_we_hold(connections):
    answers = [member_beat(), member_beat(411), member_beat()]
    with ScriptedMaster(consumer_heartbeat=answers) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        member.held = [HERE]
        with opened(member.session):
            again = master.wait_for(Method.CONSUMER_REGISTER, 2)[1]
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 3)
    assert list(again.subscribeInfo) == [f"{member.session.client_id}@etl#1:10.1.2.10:8123#demo:0"]
    assert sent[2].reportSubscribeInfo
    assert list(sent[2].subscribeInfo) == list(again.subscribeInfo)


def test_each_registration_is_followed_by_a_report_also_of_nothing(connections):
    """A master keeps what it knew of a name, as long as a registration names no partition."""
    answers = [member_beat(), member_beat(), member_beat(411), member_beat()]
    with (
        ScriptedMaster(consumer_heartbeat=answers) as master,
        opened(Member(connections, master, heartbeat_period_ms=5).session),
    ):
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 5)
    assert [item.reportSubscribeInfo for item in sent[:5]] == [True, False, False, True, False]
    assert not any(item.subscribeInfo for item in sent[:5])


def test_a_bound_start_is_told(connections):
    offsets = {TopicPartition("demo", 1, 0): 56, TopicPartition("demo", 2, 2): 28}
    subscription = Subscription.of("demo", start=BoundStart("run-7", 3, offsets, select_big=False))
    with ScriptedMaster() as master, opened(Member(connections, master, subscription=subscription).session):
        (sent,) = master.of(Method.CONSUMER_REGISTER)
    assert (sent.requireBound, sent.sessionKey, sent.totalCount, sent.selectBig) == (True, "run-7", 3, False)
    assert sent.HasField("selectBig"), "without it, the largest counts"
    assert sent.requiredPartition == "1:demo:0=56,2:demo:2=28"
    assert sent.notAllocated
    assert abs(sent.sessionTime / 1000 - time.time()) < 60, "when it subscribed"


def test_the_flag_of_allocation_only_falls(connections):
    answers = [member_beat(notAllocated=False), member_beat(notAllocated=True)]
    with ScriptedMaster(consumer_heartbeat=answers) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        assert member.session.not_allocated
        with opened(member.session):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 4)
            assert not member.session.not_allocated


def test_the_first_round_ends_when_it_has_brought_nothing(connections):
    """The answer that says that the group is allocated may bring our part of it."""
    answers = [member_beat(), with_event(notAllocated=False), member_beat(notAllocated=False)]
    with ScriptedMaster(consumer_heartbeat=answers) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        first = []
        member.session._on_event = lambda event: first.append(member.session.first_round)
        with opened(member.session):
            wait_until(lambda: not member.session.first_round)
    assert first == [True]


def test_who_comes_to_an_allocated_group_is_not_in_its_first_round(connections):
    allocated = member_registered(notAllocated=False)
    with (
        ScriptedMaster(consumer_register=allocated) as master,
        opened(Member(connections, master).session) as session,
    ):
        assert not session.first_round
        assert not session.not_allocated


def test_rules_priorities_and_tokens_are_taken_over_and_told(connections):
    rules = '[{"type":3,"rule":[{"normFreqInMs":7}]}]'
    flow = {"defFlowCheckId": 3, "defFlowControlInfo": rules, "groupFlowCheckId": -2, "qryPriorityId": 301}
    first = member_registered(groupFlowControlInfo=" ", authorizedInfo=token(9, "proof"), **flow)
    answer = member_beat(authorizedInfo=token(10, " "))
    with ScriptedMaster(consumer_register=first, consumer_heartbeat=answer) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        with opened(member.session):
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 2)[-1]
            wait_until(lambda: member.session.visit_token == 10)
    assert (sent.defFlowCheckId, sent.groupFlowCheckId, sent.qryPriorityId) == (3, -2, 301)
    assert member.control.pauses.usual_ms == 7
    assert member.session.authorized_token == "proof"


@pytest.mark.parametrize("code", [424, 425, 426, 427, 428, 429, 431, 450, 455, 415])
def test_a_refusal_is_told_at_once(connections, code):
    with ScriptedMaster(consumer_register=member_registered(code, "no")) as master:
        member = Member(connections, master)
        with pytest.raises(RpcError) as caught:
            run(member.session.open())
        assert caught.value.code == code
        assert len(master.requests) == 1
        assert member.session.refused is caught.value


def test_a_member_that_is_refused_later_knows_it_until_it_is_taken_again(connections):
    registers = [member_registered(), member_registered(425, "other topics")]
    with ScriptedMaster(consumer_register=registers, consumer_heartbeat=member_beat(411)) as master:
        member = Member(connections, master, heartbeat_period_ms=50)
        with opened(member.session):
            wait_until(lambda: member.session.refused is not None)
            assert member.session.refused.code == 425
            master.answers[Method.CONSUMER_REGISTER] = member_registered()
            wait_until(lambda: member.session.refused is None)


def test_a_refusal_is_forgotten_when_the_master_answers_heartbeats_after_all(connections):
    """What it assigns then is kept."""
    registers = [member_registered(), member_registered(425, "other topics")]
    with ScriptedMaster(consumer_register=registers, consumer_heartbeat=member_beat(411)) as master:
        member = Member(connections, master, heartbeat_period_ms=50)
        with opened(member.session):
            wait_until(lambda: member.session.refused is not None)
            master.answers[Method.CONSUMER_HEARTBEAT] = member_beat()
            wait_until(lambda: member.session.refused is None)


def test_a_member_that_is_refused_asks_once_per_heartbeat(connections):
    """And less often after some of them: a refusal is no reason to hurry."""
    registers = [member_registered(), member_registered(450, "group not authorized")]
    with ScriptedMaster(consumer_register=registers, consumer_heartbeat=member_beat(411)) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        with opened(member.session):
            master.wait_for(Method.CONSUMER_REGISTER, 6)
            time.sleep(0.05)
            asked = [method for method, _ in master.requests]
    assert asked == [Method.CONSUMER_REGISTER, *[Method.CONSUMER_HEARTBEAT, Method.CONSUMER_REGISTER] * 5]


def test_after_many_misses_heartbeats_come_less_often_and_never_too_late(connections):
    with ScriptedMaster(consumer_heartbeat=member_beat(500)) as master:
        member = Member(connections, master, heartbeat_period_ms=5)
        with opened(member.session):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 5)
            time.sleep(0.05)
            assert len(master.of(Method.CONSUMER_HEARTBEAT)) == 5
            master.answers[Method.CONSUMER_HEARTBEAT] = member_beat()
            member.session.refresh_soon()
            master.wait_for(Method.CONSUMER_HEARTBEAT, 9)
