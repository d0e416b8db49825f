"""Groups and their members, as a master knows them, wherever the members are."""

import contextlib
import json
import threading

import pytest

from tests.embedded.web import change
from tests.gateway.fleet import attach, fleet_of, fresh
from tests.gateway.running import RefusedError, refused
from tests.waiting import wait_until
from tubemq_spark.gateway.admission import ADMINISTRATION_THREADS


@pytest.fixture(autouse=True)
def always_asked(monkeypatch):
    """Otherwise an answer of the moment before would be used."""
    monkeypatch.setattr("tubemq_spark.gateway.control._FRESH_S", -1.0)


def members(client, **asked):
    return [one.client_id for one in client("ListMembers", **asked).members]


def test_members_at_different_gateways_are_members_of_one_group(fleet):
    topic, group = fleet.topic(), fresh("group")
    here = fleet.reader(topic, 1, group=group)
    with fleet_of(fleet.server) as others:
        there = others.reader(topic, 2, group=group)
        ids = sorted(one.session.client_id for one in (here, there))
        assert sorted(members(here)) == ids
        assert sorted(members(fleet.client(), group=group)) == ids
        answer = there("ListMembers")
        assert list(answer.topics) == [topic]


def test_members_are_listed_page_by_page(fleet):
    topic, group = fleet.topic(), fresh("group")
    readers = [fleet.reader(topic, broker, group=group) for broker in (1, 2, 3)]
    ids = sorted(one.session.client_id for one in readers)
    first = readers[0]("ListMembers", page_size=2)
    assert ([one.client_id for one in first.members], first.next_page_token) == (ids[:2], ids[1])
    assert list(first.topics) == [topic]
    rest = readers[0]("ListMembers", page_size=2, page_token=first.next_page_token)
    assert ([one.client_id for one in rest.members], rest.next_page_token) == (ids[2:], "")


def test_questions_about_groups_and_topics_are_asked_in_the_name_of_who_asks(server, monkeypatch):
    """Otherwise one client's questions would stand before those of all others."""
    token = "any"
    with fleet_of(server, new_groups=False) as fleet:
        owners = []
        administration = fleet.gateway._admission.administration
        run = administration.run_in_thread

        def noted(work, *who):
            owners.append(who)
            return run(work, *who)

        monkeypatch.setattr(administration, "run_in_thread", noted)
        monkeypatch.setattr(fleet.gateway._topics, "_token", token)
        client = fleet.client(group=fresh("group"))
        who = ("ipv4:127.0.0.1", client.session.client_id)
        for name, asked in (
            ("ListMembers", {}),
            ("ListGroups", {}),
            ("CreateTopic", {"topic": fresh("topic")}),
            ("AttachPartitions", {"topics": ["demo"]}),
        ):
            with contextlib.suppress(RefusedError):  # such as that of a group that is not known
                client(name, **asked)
        assert owners == [(who,)] * 4


def test_an_unknown_group_differs_from_a_group_without_members(fleet):
    topic, group = fleet.topic(), fresh("group")
    fleet.publish(topic, b"one")
    reader = fleet.reader(topic, group=group)
    reader("Commit", batch=reader("Fetch", wait_ms=10_000).batch)
    reader("CloseSession")
    asker = fleet.client()
    assert refused(asker, "ListMembers", group="nobody_at_all").end == ("NOT_FOUND", "TUBEMQ_GROUP_NOT_FOUND")
    wait_until(lambda: members(asker, group=group) == [])


def test_groups_are_listed_by_topic(fleet):
    one, two = fleet.topic(), fleet.topic()
    groups = sorted(fresh("group") for _ in range(2))
    for group in groups:
        fleet.reader(one, group=group)
    other = fresh("group")
    reader = fleet.client(other)
    attach(reader, two, 1)
    found = reader("ListGroups", topic=one).groups
    assert [(group.name, list(group.topics), group.members) for group in found] == [
        (name, [one], 1) for name in groups
    ]
    assert other in {group.name for group in reader("ListGroups").groups}
    page = reader("ListGroups", topic=one, page_size=1)
    assert ([group.name for group in page.groups], page.next_page_token) == (groups[:1], groups[0])


def test_an_answer_of_the_moment_before_is_used_and_says_how_old_it_is(fleet, monkeypatch):
    monkeypatch.setattr("tubemq_spark.gateway.control._FRESH_S", 5.0)
    now = 1_000.0
    monkeypatch.setattr(fleet.gateway._members, "_clock", lambda: now)
    topic, group = fleet.topic(), fresh("group")
    first = fleet.reader(topic, 1, group=group)
    assert first("ListMembers").age_ms == 0
    second = fleet.reader(topic, 2, group=group)
    now += 4
    answer = first("ListMembers")
    assert ([one.client_id for one in answer.members], answer.age_ms) == ([first.session.client_id], 4_000)
    now += 2
    answer = first("ListMembers")
    both = sorted([first.session.client_id, second.session.client_id])
    assert ([one.client_id for one in answer.members], answer.age_ms) == (both, 0)


def test_members_of_other_settings_are_refused_and_change_nothing(fleet):
    """The master compares the sets of topics: the last one to come does not win."""
    one, two, group = fleet.topic(), fleet.topic(), fresh("group")
    first = fleet.reader(one, group=group)
    second = fleet.client(group)
    refusal = refused(attach, second, two, 1)
    assert refusal.status == "FAILED_PRECONDITION"
    assert "topic" in str(refusal.error)
    assert members(first) == [first.session.client_id]


def test_members_with_other_filters_are_refused(fleet):
    topic, group = fleet.topic(), fresh("group")
    fleet.reader(topic, 1, group=group)
    second = fleet.client(group, message_types=["wanted"])
    assert refused(attach, second, topic, 2).status == "FAILED_PRECONDITION"


def test_members_hear_the_policy_that_administrators_set_for_their_group(fleet):
    topic, filtered, group = fleet.topic(), fleet.topic(), fresh("group")
    reader = fleet.reader(topic, group=group)
    policy = reader("ListMembers").policy
    assert (policy.flow_control, policy.flow_rules, list(policy.topics), policy.changed) == (
        False,
        "",
        [],
        "",
    )
    rules = [{"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 200}]}]
    change(
        fleet.server,
        "admin_add_group_resctrl_info",
        groupName=group,
        flowCtrlEnable="true",
        flowCtrlInfo=json.dumps(rules),
        alwdBrokerClientRate=7,
    )
    forbidden = {"consumeEnable": "false", "disableCsmRsn": "too slow"}
    change(fleet.server, "admin_add_group_csmctrl_info", groupName=group, topicName=topic, **forbidden)
    allowed = {"consumeEnable": "true", "filterEnable": "true", "filterConds": "clicks,views"}
    change(fleet.server, "admin_add_group_csmctrl_info", groupName=group, topicName=filtered, **allowed)
    answer = reader("ListMembers")
    policy = answer.policy
    assert (policy.flow_control, json.loads(policy.flow_rules), policy.brokers_per_consumer) == (
        True,
        rules,
        7,
    )
    by_topic = {one.topic: (one.consume, one.reason, one.filters) for one in policy.topics}
    assert by_topic == {topic: (False, "too slow", ""), filtered: (True, "", "clicks,views")}
    assert policy.changed


def test_questions_about_groups_have_threads_of_their_own(server, monkeypatch):
    """While they are used up, others are answered, and further such questions are refused."""
    asked, gate = threading.Semaphore(0), threading.Event()

    def slow(_, group):
        asked.release()
        gate.wait(20)
        return {"data": [{"consumerId": group, "parInfo": []}], "topicSet": []}

    monkeypatch.setattr("tubemq_spark.client.metadata.admin.MasterAdmin.consumer_group", slow)
    with fleet_of(server, waiting_calls=1, queue_ms=50) as fleet:
        client = fleet.client()
        groups = [f"group_{number}" for number in range(ADMINISTRATION_THREADS)]
        calls = [client.begin("ListMembers", group=group) for group in groups]
        assert all(asked.acquire(timeout=10) for _ in groups)
        assert refused(client, "ListMembers", group="another").status == "RESOURCE_EXHAUSTED"
        assert client("QueryRoute", topics=["demo"]).partitions
        client("Heartbeat")
        gate.set()
        assert [call.result(10).members[0].client_id for call in calls] == groups


def test_a_new_group_is_refused_where_the_settings_want_that(server, fleet):
    topic, known = fleet.topic(), fresh("group")
    fleet.publish(topic, b"one")
    reader = fleet.reader(topic, group=known)
    with fleet_of(server, new_groups=False) as strict:
        assert attach(strict.client(known), topic, 2)[0].WhichOneof("result") == "offset"
        assert refused(attach, strict.client(fresh("group")), topic, 1).end == (
            "NOT_FOUND",
            "TUBEMQ_GROUP_NOT_FOUND",
        )
    assert known in {group.name for group in reader("ListGroups").groups}
