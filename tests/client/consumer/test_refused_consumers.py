"""Consumers that a master refuses: the error names what is wrong, and the master is asked once.

On the embedded server, which refuses with the words of the Java one.
"""

import time
import types

import pytest

from testkit.certificates import Authority
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.subscription import BoundStart, Subscription
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import RpcError, TlsError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Sleep
from tubemq_spark.net.tls import ServerTls, TlsConfig

ADMIN = {"confModAuthToken": "abc", "createUser": "me"}


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}, brokers=3) as running:
        yield running


@pytest.fixture
def pool():
    with ChannelPool() as made:
        yield made


def config(server, **changes):
    return ClientConfig((Endpoint.parse(server.master),), "etl", **changes).validate()


def member(server, pool, *, topics="demo", message_types=None, start=None, **changes):
    """A member of a group that the master balances."""
    subscription = Subscription.of(topics, message_types, start)
    settings = config(server, **changes)
    return GroupSession(
        settings,
        pool,
        subscription,
        FlowControl(),
        partitions=tuple,
        on_event=lambda event: None,
        wait=Sleep(no_wait),
    )


def no_wait(seconds):
    pytest.fail("a refusal is not a trouble that passes")


def refusal(session):
    """What is told when a session cannot be opened."""
    with pytest.raises(RpcError) as caught, session:
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
def test_members_that_do_not_agree(server, pool, first, second, condition):
    with member(server, pool, **first):
        error = refusal(member(server, pool, **second))
        assert error.condition == f"TUBEMQ_GROUP_CONFLICT.{condition}"
        assert not error.retriable
    with member(server, pool, **second):
        pass  # the group has no members any more, and so no rules of theirs


def test_a_group_consumes_in_one_way(server, pool):
    with BalanceSession(config(server), pool, ["demo"], wait=Sleep(no_wait)):
        assert refusal(member(server, pool)).condition == "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE"
    with member(server, pool):
        other = BalanceSession(config(server), pool, ["demo"], wait=Sleep(no_wait))
        assert refusal(other).condition == "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE"


def test_a_topic_that_does_not_exist(server, pool):
    error = refusal(member(server, pool, topics=["demo", "nowhere"]))
    assert error.condition == "TUBEMQ_TOPIC_NOT_DEPLOYED"
    assert "] Topic 'nowhere' does not exist, as " in str(error)


def test_groups_and_types_that_are_not_authorised(server, pool):
    admin = TubeMQClient.admin(server.master_web)
    admin.ask(method="admin_set_topic_authorize_control", topicName="demo", isEnable="true", **ADMIN)
    assert refusal(member(server, pool)).condition == "TUBEMQ_GROUP_FORBIDDEN"

    may = {"groupName": "etl", "topicName": "demo", "filterEnable": "true", "filterConds": "a,b"}
    admin.ask(method="admin_add_group_csmctrl_info", **may, **ADMIN)
    assert refusal(member(server, pool)).condition == "TUBEMQ_MESSAGE_TYPES_FORBIDDEN"
    error = refusal(member(server, pool, message_types={"demo": ["a", "c"]}))
    assert error.condition == "TUBEMQ_MESSAGE_TYPES_FORBIDDEN"
    assert "{demo=[c]}" in str(error)
    with member(server, pool, message_types={"demo": ["a"]}):
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
def test_a_login_that_fails(pool, login, condition, kind):
    settings = EmbeddedSettings(
        authenticate_consumers=True, authenticate_producers=True, users={"reader": "secret"}
    )
    running = EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=3, settings=settings)
    with running as server, pytest.raises(RpcError) as caught:
        begin(kind, server, pool, **login)
    error = caught.value
    assert error.condition == f"TUBEMQ_NOT_AUTHENTICATED.{condition}"
    for secret in ("wrong", "secret"):
        assert secret not in str(error) + repr(error.parameters)


def begin(kind, server, pool, **changes):
    """Begin to be a client of that kind; only for those that cannot."""
    if kind == "member":
        member(server, pool, **changes).open()
    elif kind == "assigned":
        BalanceSession(config(server, **changes), pool, ["demo"], wait=Sleep(no_wait)).open()
    else:
        with TubeMQClient(config(server, **changes)) as client:
            client.producer().send("demo", b"x")


@pytest.mark.parametrize("kind", ["member", "assigned", "producer"])
def test_a_certificate_that_has_expired(pool, tmp_path, kind):
    authority = Authority(tmp_path)
    pair = authority.issue("old", expired=True)
    settings = EmbeddedSettings(tls=ServerTls(str(pair.cert), str(pair.key)))
    tls = TlsConfig(str(authority.cert))
    running = EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2, settings=settings)
    with running as server, pytest.raises(TlsError, match="it has expired, or its CA's has") as caught:
        begin(kind, server, pool, tls=tls)
    assert caught.value.condition == "TUBEMQ_TLS_CERTIFICATE"
    assert not caught.value.retriable


def test_a_proof_of_another_time(pool, monkeypatch):
    """A clock that is 21 s behind: what is signed with its time has expired."""
    settings = EmbeddedSettings(authenticate_consumers=True, users={"reader": "secret"})
    login = {"username": "reader", "password": "secret"}
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=3, settings=settings) as server:
        with member(server, pool, **login):
            pass
        late = types.SimpleNamespace(
            time_ns=lambda: time.time_ns() - 21_000_000_000, monotonic_ns=time.monotonic_ns
        )
        monkeypatch.setattr(identity, "time", late)
        error = refusal(member(server, pool, **login))
    assert error.condition == "TUBEMQ_NOT_AUTHENTICATED.CLOCK"
