"""Consumers that a master refuses: the error names what is wrong, and the master is asked once.

On the embedded server, which refuses with the words of the Java one.
"""

import time
import types

import pytest

from testkit.certificates import Authority
from testkit.connections import opened, opened_connections
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer_config import BoundStart, Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import RpcError, TlsError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.net.tls import ServerTls, TlsConfig

ADMIN = {"confModAuthToken": "abc", "createUser": "me"}


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}, brokers=3) as running:
        yield running


@pytest.fixture
def connections():
    with opened_connections() as connections:
        yield connections


def config(server, **changes):
    return ClientConfig((Endpoint.parse(server.master),), "etl", **changes).validate()


def member(server, connections, *, topics="demo", message_types=None, start=None, **changes):
    """A member of a group that the master balances."""
    subscription = Subscription.of(topics, message_types, start)
    settings = config(server, **changes)
    return GroupSession(
        settings,
        connections,
        subscription,
        FlowControl(),
        partitions=tuple,
        on_event=lambda event: None,
    )


def refusal(session):
    """What is told when a session cannot be opened."""
    with pytest.raises(RpcError) as caught, opened(session):
        pass
    return caught.value


def start(key="run-1", count=3, *, big=True):
    return BoundStart(key, count, select_big=big)


@pytest.mark.parametrize(
    ("first", "second", "condition"),
    [
        ({}, {"start": start()}, "CONSUME_TYPE"),
        ({}, {"topics": ["demo", "other"]}, "TOPICS"),
        ({"message_types": {"demo": ["a"]}}, {}, "MESSAGE_TYPES"),
        ({"message_types": {"demo": ["a"]}}, {"message_types": {"demo": ["a", "b"]}}, "MESSAGE_TYPES"),
        ({"start": start()}, {"start": start(key="run-2")}, "SESSION_KEY"),
        ({"start": start()}, {"start": start(big=False)}, "SELECT_BIG"),
        ({"start": start()}, {"start": start(count=4)}, "SOURCE_COUNT"),
    ],
)
def test_members_that_do_not_agree(server, connections, first, second, condition):
    with opened(member(server, connections, **first)):
        error = refusal(member(server, connections, **second))
        assert error.condition == f"TUBEMQ_GROUP_CONFLICT.{condition}"
        assert not error.retriable
    with opened(member(server, connections, **second)):
        pass  # the group has no members any more, and so no rules of theirs


def test_a_group_consumes_in_one_way(server, connections):
    with opened(BalanceSession(config(server), connections, ["demo"])):
        assert refusal(member(server, connections)).condition == "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE"
    with opened(member(server, connections)):
        other = BalanceSession(config(server), connections, ["demo"])
        assert refusal(other).condition == "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE"


def test_a_topic_that_does_not_exist(server, connections):
    error = refusal(member(server, connections, topics=["demo", "nowhere"]))
    assert error.condition == "TUBEMQ_TOPIC_NOT_DEPLOYED"
    assert "] Topic 'nowhere' does not exist, as " in str(error)


def test_groups_and_types_that_are_not_authorised(server, connections):
    admin = MasterAdmin(server.master_web)
    admin.ask(method="admin_set_topic_authorize_control", topicName="demo", isEnable="true", **ADMIN)
    assert refusal(member(server, connections)).condition == "TUBEMQ_GROUP_FORBIDDEN"

    may = {"groupName": "etl", "topicName": "demo", "filterEnable": "true", "filterConds": "a,b"}
    admin.ask(method="admin_add_group_csmctrl_info", **may, **ADMIN)
    assert refusal(member(server, connections)).condition == "TUBEMQ_MESSAGE_TYPES_FORBIDDEN"
    error = refusal(member(server, connections, message_types={"demo": ["a", "c"]}))
    assert error.condition == "TUBEMQ_MESSAGE_TYPES_FORBIDDEN"
    assert "{demo=[c]}" in str(error)
    with opened(member(server, connections, message_types={"demo": ["a"]})):
        pass


@pytest.mark.parametrize(
    ("login", "condition"),
    [
        ({}, "NO_CREDENTIALS"),
        ({"username": "reader", "password": "wrong"}, "WRONG_PASSWORD"),
        ({"username": "nobody", "password": "secret"}, "WRONG_PASSWORD"),
    ],
)
@pytest.mark.parametrize("kind", ["member", "assigned", "producer"])
def test_a_login_that_fails(connections, login, condition, kind):
    settings = EmbeddedSettings(
        authenticate_consumers=True, authenticate_producers=True, users={"reader": "secret"}
    )
    running = EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=3, settings=settings)
    with running as server, pytest.raises(RpcError) as caught:
        begin(kind, server, connections, **login)
    error = caught.value
    assert error.condition == f"TUBEMQ_NOT_AUTHENTICATED.{condition}"
    for secret in ("wrong", "secret"):
        assert secret not in str(error) + repr(error.parameters)


def begin(kind, server, connections, **changes):
    """Begin to be a client of that kind; only for those that cannot."""
    if kind == "member":
        run(member(server, connections, **changes).open())
    elif kind == "assigned":
        run(BalanceSession(config(server, **changes), connections, ["demo"]).open())
    else:
        with TubeMQClient(config(server, **changes)) as client:
            client.producer().send("demo", b"x")


@pytest.mark.parametrize("kind", ["member", "assigned", "producer"])
def test_a_certificate_that_has_expired(connections, tmp_path, kind):
    authority = Authority(tmp_path)
    pair = authority.issue("old", expired=True)
    settings = EmbeddedSettings(tls=ServerTls(str(pair.cert), str(pair.key)))
    tls = TlsConfig(str(authority.cert))
    running = EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2, settings=settings)
    with running as server, pytest.raises(TlsError, match="it has expired, or its CA's has") as caught:
        begin(kind, server, connections, tls=tls)
    assert caught.value.condition == "TUBEMQ_TLS_CERTIFICATE"
    assert not caught.value.retriable


def test_a_proof_of_another_time(connections, monkeypatch):
    """A clock that is 21 s behind: what is signed with its time has expired."""
    settings = EmbeddedSettings(authenticate_consumers=True, users={"reader": "secret"})
    login = {"username": "reader", "password": "secret"}
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=3, settings=settings) as server:
        with opened(member(server, connections, **login)):
            pass
        late = types.SimpleNamespace(
            time_ns=lambda: time.time_ns() - 21_000_000_000, monotonic_ns=time.monotonic_ns
        )
        monkeypatch.setattr(identity, "time", late)
        error = refusal(member(server, connections, **login))
    assert error.condition == "TUBEMQ_NOT_AUTHENTICATED.CLOCK"
