"""What members of a group and the master tell each other."""

import contextlib
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


class Member:
    """A session, and what it heard."""

    def __init__(self, connections, master, subscription=None, **config):
        self.held = []
        self.events = []
        self.control = FlowControl()
        self.session = GroupSession(
            config_for(master, **{"heartbeat_period_ms": 60_000, **config}),
            connections,
            subscription or Subscription.of("demo"),
            self.control,
            partitions=lambda: self.held,
            on_event=self.events.append,
        )


@contextlib.contextmanager
def new_member(*beats, registers=None, **config):
    """Yield a master that answers like that, and a member whose session is not open."""
    answers = {"consumer_heartbeat": list(beats)} if beats else {}
    if registers is not None:
        answers["consumer_register"] = registers
    with opened_connections(1_000) as connections, ScriptedMaster(**answers) as master:
        yield master, Member(connections, master, **config)


@contextlib.contextmanager
def open_member(*beats, **how):
    """As ``new_member``, with the member's session open."""
    with new_member(*beats, **how) as (master, member), opened(member.session):
        yield master, member


def recorded(name):
    vector = named(name)
    return build(getattr(master_pb2, vector["message"])(), vector["fields"])


def with_event(event=EVENT, **more):
    return member_beat(event=format_event(event, "c-1", "etl"), **more)


def test_the_recorded_register_is_sent(monkeypatch):
    wanted = recorded("consumer_register_master_req")
    monkeypatch.setattr(identity, "local_ipv4", lambda: wanted.hostName)
    monkeypatch.setattr(identity, "RUNTIME", wanted.jdkVersion)
    monkeypatch.setattr(identity, "consumer_id", lambda group, kind: wanted.clientId)
    with new_member(subscription=Subscription.of("demo", {"demo": ["fB", "fA"]})) as (master, member):
        member.session._subscribed_at_ms = wanted.sessionTime
        with opened(member.session):
            (sent,) = master.of(Method.CONSUMER_REGISTER)
    sent.groupName = wanted.groupName
    assert sent.SerializeToString().hex() == wanted.SerializeToString().hex()


def test_the_first_heartbeat_is_sent_at_once_and_says_what_the_recorded_one_says():
    wanted = recorded("consumer_heartbeat_master_req")
    wanted.reportSubscribeInfo = True
    with open_member() as (master, _):
        (sent, *_) = master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
    sent.clientId, sent.groupName = wanted.clientId, wanted.groupName
    assert sent == wanted


def test_an_event_is_passed_on_and_answered_once_with_all_that_is_held():
    wanted = recorded("consumer_heartbeat_master_ack_req")
    with new_member(with_event(), member_beat()) as (master, member):
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


def test_events_that_ended_together_are_answered_one_by_one_each_with_all_that_is_held():
    ended = threading.Event()

    def late(_):
        assert ended.wait(5)
        return member_beat()

    with open_member(late, member_beat(), rpc_timeout_ms=60_000) as (master, member):
        master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
        for number in (47, 48):
            loop.call_soon(member.session.report, dataclasses.replace(EVENT, rebalance_id=number))
        ended.set()
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 3)
    told = [(item.event.rebalanceId, item.reportSubscribeInfo) for item in sent[1:3]]
    assert told == [(47, True), (48, True)]


def test_an_answer_that_was_not_heard_is_repeated():
    with open_member(with_event(), member_beat(500), member_beat(), heartbeat_period_ms=20) as (
        master,
        member,
    ):
        wait_until(lambda: member.events)
        loop.call_soon(member.session.report, *member.events)
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 4)
    assert [item.event.rebalanceId for item in sent[1:4]] == [47, 47, 0]
    assert [item.reportSubscribeInfo for item in sent[1:3]] == [True, True]


def test_a_report_that_was_not_heard_is_repeated():
    with open_member(member_beat(), member_beat(500), member_beat()) as (master, member):
        master.wait_for(Method.CONSUMER_HEARTBEAT, 1)
        loop.call_soon(member.session.report)
        for count in (2, 3, 4):
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, count)
            member.session.refresh_soon()
    assert [item.reportSubscribeInfo for item in sent] == [True, True, True, False]


def test_what_is_held_is_told_every_few_heartbeats():
    with open_member(heartbeat_period_ms=5) as (master, _):
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 15)
    reports = [number for number, item in enumerate(sent[:15]) if item.reportSubscribeInfo]
    assert reports == [0, 7, 14]


def test_a_master_that_forgot_us_is_told_what_we_hold():
    with new_member(member_beat(), member_beat(411), member_beat(), heartbeat_period_ms=5) as (
        master,
        member,
    ):
        member.held = [HERE]
        with opened(member.session):
            again = master.wait_for(Method.CONSUMER_REGISTER, 2)[1]
            sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 3)
    assert list(again.subscribeInfo) == [f"{member.session.client_id}@etl#1:10.1.2.10:8123#demo:0"]
    assert sent[2].reportSubscribeInfo
    assert list(sent[2].subscribeInfo) == list(again.subscribeInfo)


def test_each_registration_is_followed_by_a_report_also_of_nothing():
    """A master keeps what it knew of a name, as long as a registration names no partition."""
    beats = (member_beat(), member_beat(), member_beat(411), member_beat())
    with open_member(*beats, heartbeat_period_ms=5) as (master, _):
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 5)
    assert [item.reportSubscribeInfo for item in sent[:5]] == [True, False, False, True, False]
    assert not any(item.subscribeInfo for item in sent[:5])


def test_a_bound_start_is_told():
    offsets = {TopicPartition("demo", 1, 0): 56, TopicPartition("demo", 2, 2): 28}
    start = BoundStart("run-7", 3, offsets, select_big=False)
    with open_member(subscription=Subscription.of("demo", start=start)) as (master, _):
        (sent,) = master.of(Method.CONSUMER_REGISTER)
    assert (sent.requireBound, sent.sessionKey, sent.totalCount, sent.selectBig) == (True, "run-7", 3, False)
    assert sent.HasField("selectBig"), "without it, the largest counts"
    assert sent.requiredPartition == "1:demo:0=56,2:demo:2=28"
    assert sent.notAllocated
    assert abs(sent.sessionTime / 1000 - time.time()) < 60, "when it subscribed"


def test_the_flag_of_allocation_only_falls():
    beats = (member_beat(notAllocated=False), member_beat(notAllocated=True))
    with new_member(*beats, heartbeat_period_ms=5) as (master, member):
        assert member.session.not_allocated
        with opened(member.session):
            master.wait_for(Method.CONSUMER_HEARTBEAT, 4)
            assert not member.session.not_allocated


def test_the_first_round_ends_when_it_has_brought_nothing():
    """The answer that says that the group is allocated may bring our part of it."""
    first, beats = [], (member_beat(), with_event(notAllocated=False), member_beat(notAllocated=False))
    with new_member(*beats, heartbeat_period_ms=5) as (_, member):
        member.session._on_event = lambda event: first.append(member.session.first_round)
        with opened(member.session):
            wait_until(lambda: not member.session.first_round)
    assert first == [True]


def test_who_comes_to_an_allocated_group_is_not_in_its_first_round():
    with open_member(registers=member_registered(notAllocated=False)) as (_, member):
        assert not member.session.first_round
        assert not member.session.not_allocated


def test_rules_priorities_and_tokens_are_taken_over_and_told():
    rules = '[{"type":3,"rule":[{"normFreqInMs":7}]}]'
    flow = {"defFlowCheckId": 3, "defFlowControlInfo": rules, "groupFlowCheckId": -2, "qryPriorityId": 301}
    first = member_registered(groupFlowControlInfo=" ", authorizedInfo=token(9, "proof"), **flow)
    beat = member_beat(authorizedInfo=token(10, " "))
    with open_member(beat, registers=first, heartbeat_period_ms=5) as (master, member):
        sent = master.wait_for(Method.CONSUMER_HEARTBEAT, 2)[-1]
        wait_until(lambda: member.session.visit_token == 10)
    assert (sent.defFlowCheckId, sent.groupFlowCheckId, sent.qryPriorityId) == (3, -2, 301)
    assert member.control.pauses.usual_ms == 7
    assert member.session.authorized_token == "proof"


@pytest.mark.parametrize("code", [424, 425, 426, 427, 428, 429, 431, 450, 455, 415])
def test_a_refusal_is_told_at_once(code):
    with new_member(registers=member_registered(code, "no")) as (master, member):
        with pytest.raises(RpcError) as caught:
            run(member.session.open())
        assert caught.value.code == code
        assert len(master.requests) == 1
        assert member.session.refused is caught.value


def refused_later(code, period_ms):
    """Open a session that a master forgets, and refuses from then on."""
    registers = [member_registered(), member_registered(code, "other topics")]
    return open_member(member_beat(411), registers=registers, heartbeat_period_ms=period_ms)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (Method.CONSUMER_REGISTER, member_registered()),
        # What a master assigns that answers heartbeats after all is kept.
        (Method.CONSUMER_HEARTBEAT, member_beat()),
    ],
    ids=["taken again", "heard after all"],
)
def test_a_member_that_is_refused_later_knows_it_until_it_is_taken_again(method, answer):
    with refused_later(425, 50) as (master, member):
        wait_until(lambda: member.session.refused is not None)
        assert member.session.refused.code == 425
        master.answers[method] = answer
        wait_until(lambda: member.session.refused is None)


def test_a_member_that_is_refused_asks_once_per_heartbeat():
    """And less often after some of them: a refusal is no reason to hurry."""
    with refused_later(450, 5) as (master, _):
        master.wait_for(Method.CONSUMER_REGISTER, 6)
        time.sleep(0.05)
        asked = [method for method, _ in master.requests]
    assert asked == [Method.CONSUMER_REGISTER, *[Method.CONSUMER_HEARTBEAT, Method.CONSUMER_REGISTER] * 5]


def test_after_many_misses_heartbeats_come_less_often_and_never_too_late():
    with open_member(member_beat(500), heartbeat_period_ms=5) as (master, member):
        master.wait_for(Method.CONSUMER_HEARTBEAT, 5)
        time.sleep(0.05)
        assert len(master.of(Method.CONSUMER_HEARTBEAT)) == 5
        master.answers[Method.CONSUMER_HEARTBEAT] = member_beat()
        member.session.refresh_soon()
        master.wait_for(Method.CONSUMER_HEARTBEAT, 9)
