"""Consumers that a master refuses: the error says what is wrong, whichever server it is, and comes at once.

The servers say it in the same words, which the causes of a failed login are told from.
"""

import time
import types

import pytest

from integration_tests.rig.servers import USER
from testkit.connections import opened, opened_connections
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer_config import BoundStart, Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint

ADMIN = {"confModAuthToken": "abc", "createUser": "it"}
LOGIN = {"username": USER.user, "password": USER.password}


@pytest.fixture
def connections():
    with opened_connections() as connections:
        yield connections


def settings(master, group, **more):
    return ClientConfig((Endpoint.parse(master),), group, **more).validate()


def member(config, connections, topics, message_types=None, start=None):
    asked = Subscription.of(topics, message_types, start)
    return GroupSession(
        config, connections, asked, FlowControl(), partitions=tuple, on_event=lambda event: None
    )


def refusal(session):
    with pytest.raises(RpcError) as caught, opened(session):
        pass
    return caught.value


def test_members_that_do_not_agree(server, connections):
    """Each of the seven settings in turn, in groups of their own."""
    start = {"session_key": "run-1", "source_count": 3}
    topic, other = server.load_topic("1x1"), server.load_topic("3x1")  # nothing of them is read
    cases = {
        "CONSUME_TYPE": ({}, {"start": BoundStart(**start)}),
        "TOPICS": ({}, {"topics": [topic, other]}),
        "MESSAGE_TYPES": ({"message_types": {topic: ["a"]}}, {"message_types": {topic: ["b"]}}),
        "SESSION_KEY": ({"start": BoundStart(**start)}, {"start": BoundStart("run-2", 3)}),
        "SELECT_BIG": ({"start": BoundStart(**start)}, {"start": BoundStart(**start, select_big=False)}),
        "SOURCE_COUNT": ({"start": BoundStart(**start)}, {"start": BoundStart("run-1", 4)}),
    }
    for name, (first, second) in cases.items():
        config = settings(server.master, f"it_differs_{name.lower()}")
        with opened(member(config, connections, **{"topics": [topic], **first})):
            error = refusal(member(config, connections, **{"topics": [topic], **second}))
        assert error.condition == f"TUBEMQ_GROUP_CONFLICT.{name}"
    config = settings(server.master, "it_differs_kinds")
    with opened(BalanceSession(config, connections, [topic])):
        assert refusal(member(config, connections, [topic])).condition == "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE"


def test_topics_groups_and_types_that_may_not_be_read(server, connections):
    topic = server.fresh_topic()
    config = settings(server.master, "it_barred")
    unknown = refusal(member(config, connections, [topic, "nowhere"]))
    assert unknown.condition == "TUBEMQ_TOPIC_NOT_DEPLOYED"
    assert "] Topic 'nowhere' does not exist, as master " in str(unknown)

    server.admin.ask(method="admin_set_topic_authorize_control", topicName=topic, isEnable="true", **ADMIN)
    try:
        assert refusal(member(config, connections, [topic])).condition == "TUBEMQ_GROUP_FORBIDDEN"
        may = {"groupName": config.group, "topicName": topic, "filterEnable": "true", "filterConds": "a,b"}
        server.admin.ask(method="admin_add_group_csmctrl_info", **may, **ADMIN)
        for types_asked in (None, {topic: ["a", "c"]}):
            error = refusal(member(config, connections, [topic], types_asked))
            assert error.condition == "TUBEMQ_MESSAGE_TYPES_FORBIDDEN"
        with opened(member(config, connections, [topic], {topic: ["a"]})):
            pass
    finally:
        server.admin.ask(
            method="admin_set_topic_authorize_control", topicName=topic, isEnable="false", **ADMIN
        )


def test_logins_that_fail(secured_server, connections, monkeypatch):
    """The Java server knows no passwords, and looks only at the name and the time."""

    def session(**login):
        return member(
            settings(secured_server.master, "it_refused", **login), connections, secured_server.topic
        )

    with opened(session(**LOGIN)):
        pass
    assert refusal(session()).condition == "TUBEMQ_NOT_AUTHENTICATED.NO_CREDENTIALS"
    if secured_server.name == "embedded":
        wrong = refusal(session(username=USER.user, password="wrong"))
        assert wrong.condition == "TUBEMQ_NOT_AUTHENTICATED.WRONG_PASSWORD"
    late = types.SimpleNamespace(
        time_ns=lambda: time.time_ns() - 21_000_000_000, monotonic_ns=time.monotonic_ns
    )
    monkeypatch.setattr(identity, "time", late)
    assert refusal(session(**LOGIN)).condition == "TUBEMQ_NOT_AUTHENTICATED.CLOCK"
