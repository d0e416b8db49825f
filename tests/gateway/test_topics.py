"""Clients create topics where the operator lets them, and nothing is changed that exists."""

import pytest

from testkit.certificates import Authority
from tests.gateway.running import BAD_REQUEST, RefusedError, gateway, settings
from tests.gateway.secured import TOKENS, SecuredClient, policy_text
from tests.waiting import wait_until
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import GatewayError

pytestmark = pytest.mark.usefixtures("nothing_left_behind_by_the_module")

SECRET = "token of the cluster"


@pytest.fixture(scope="module")
def server(nothing_left_behind_by_the_module):
    upstream = EmbeddedSettings(admin_token=SECRET)
    with EmbeddedTubeMQ(topics={"old": (2, 3)}, brokers=3, settings=upstream) as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """An authority, and the settings of a gateway with a policy that lets ``writer`` create some topics."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    pair, policy = authority.issue("gateway"), directory / "policy.toml"
    rights = policy_text().replace('write = ["clicks"]', 'write = ["*"]\ncreate = ["new_*", "gap_*", "old"]')
    policy.write_text(rights)
    return authority, {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "policy": str(policy)}


@pytest.fixture(scope="module")
def served(server, secured):
    with gateway(server, **secured[1], master_admin_token=SECRET) as running:
        yield running


@pytest.fixture
def connect(secured):
    made = []

    def connect(served, name):
        client = SecuredClient(served.address, secured[0], f"client of {name}", f"Bearer {TOKENS[name]}")
        made.append(client)
        client.open(group="" if name == "writer" else "reader")
        return client

    yield connect
    for client in made:
        client.channel.close()


def refusal(client, **fields):
    with pytest.raises(RefusedError) as caught:
        client("CreateTopic", **fields)
    assert SECRET not in str(caught.value)
    return caught.value.status, caught.value.condition, str(caught.value.error)


def published(server, name="new_shape"):
    return {
        (broker, shape.stores, shape.partitions)
        for (topic, broker), shape in MasterAdmin(server.master_web).published_topics().items()
        if topic == name
    }


def test_a_topic_is_created_once_and_used(server, served, connect):
    writer = connect(served, "writer")
    made = writer("CreateTopic", topic="new_shape", stores=2, partitions=4)
    assert (made.created, list(made.broker_ids)) == (True, [1, 2, 3])
    wait_until(lambda: published(server) == {(1, 2, 4), (2, 2, 4), (3, 2, 4)})
    again = writer("CreateTopic", topic="new_shape", stores=1)
    assert (again.created, list(again.broker_ids)) == (False, [1, 2, 3])
    assert published(server) == {(1, 2, 4), (2, 2, 4), (3, 2, 4)}
    # As large as it is without being told, and where it is told.
    made = writer("CreateTopic", topic="new_small", broker_ids=[2])
    assert (made.created, list(made.broker_ids)) == (True, [2])
    wait_until(lambda: published(server, "new_small") == {(2, 1, 1)})
    writer("CheckTopic", topic="new_small", publishable=True)


def test_a_topic_that_exists_is_left_as_it_is(server, served, connect):
    writer = connect(served, "writer")
    answer = writer("CreateTopic", topic="old", stores=9)
    assert (answer.created, list(answer.broker_ids)) == (False, [1, 2, 3])
    shapes = MasterAdmin(server.master_web).published_topics()
    assert {(shape.stores, shape.partitions) for (topic, _), shape in shapes.items() if topic == "old"} == {
        (2, 3)
    }
    # No broker gets it that did not have it.
    writer("CreateTopic", topic="new_narrow", broker_ids=[2])
    answer = writer("CreateTopic", topic="new_narrow")
    assert (answer.created, list(answer.broker_ids)) == (False, [2])


def delete_on(server, topic, broker_id):
    """Leave a record of a deleted topic on one broker, where the master then refuses to create it."""
    MasterAdmin(server.master_web, token=SECRET).delete_topic(topic, [broker_id])


def test_a_topic_that_only_some_brokers_take_is_told_with_those_that_have_it(server, served, connect):
    writer = connect(served, "writer")
    writer("CreateTopic", topic="gap_partly", broker_ids=[2])
    delete_on(server, "gap_partly", 2)
    status, condition, text = refusal(writer, topic="gap_partly")
    assert (status, condition) == ("INTERNAL", "TUBEMQ_TOPIC_PARTLY_CREATED")
    assert "is on the brokers [1, 3]" in text
    assert "create it on [2]" in text


def test_a_deleted_topic_does_not_count_as_one_that_exists(server, served, connect):
    writer = connect(served, "writer")
    writer("CreateTopic", topic="gap_deleted", broker_ids=[3])
    delete_on(server, "gap_deleted", 3)
    assert refusal(writer, topic="gap_deleted", broker_ids=[3])[1] == "TUBEMQ_ADMIN_REFUSED"


def test_a_client_without_the_right_creates_nothing(server, served, connect):
    writer, reader = connect(served, "writer"), connect(served, "reader")
    for client, topic in ((writer, "other"), (reader, "new_one"), (reader, "clicks")):
        status, condition, text = refusal(client, topic=topic)
        assert (status, condition) == ("PERMISSION_DENIED", "TUBEMQ_GATEWAY_FORBIDDEN")
        assert f"create the topic {topic}" in text
    assert not {"other", "new_one", "clicks"} & MasterAdmin(server.master_web).topics()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"topic": "new_ä"}, "2 to 64 letters"),
        ({"topic": "new_" + "x" * 61}, "2 to 64 letters"),
        ({"topic": "new_wide", "stores": 1_001}, "1001 stores, but may have 1000"),
        ({"topic": "new_wide", "partitions": 1 << 31}, "2147483648 partitions"),
        ({"topic": "new_wide", "stores": 1_000, "partitions": 1_000, "broker_ids": [4]}, "no broker 4"),
        ({"topic": "new_there", "broker_ids": [1, 4]}, r"no broker 4, but [1, 2, 3]"),
    ],
    ids=str,
)
def test_bad_requests_are_refused(server, served, connect, fields, told):
    status, condition, text = refusal(connect(served, "writer"), **fields)
    assert (status, condition) == BAD_REQUEST
    assert told in text
    assert fields["topic"] not in MasterAdmin(server.master_web).topics()


def test_by_default_a_gateway_creates_nothing(server, secured, connect):
    with gateway(server, **secured[1]) as served:
        status, condition, text = refusal(connect(served, "writer"), topic="new_never")
    assert (status, condition) == ("FAILED_PRECONDITION", "TUBEMQ_GATEWAY_CREATES_NONE")
    assert "master_admin_token" in text
    assert "new_never" not in MasterAdmin(server.master_web).topics()


def test_a_token_that_masters_refuse_is_not_in_the_error(server, secured, connect):
    with gateway(server, **secured[1], master_admin_token="guessed") as served:
        _, condition, text = refusal(connect(served, "writer"), topic="new_never")
    assert condition == "TUBEMQ_ADMIN_TOKEN"
    assert "guessed" not in text


def test_the_token_needs_a_policy_and_is_hidden(server, secured):
    with pytest.raises(GatewayError, match=r"master_admin_token.*together with policy"):
        settings(server, master_admin_token=SECRET)
    shown = settings(server, **secured[1], master_admin_token=SECRET)
    assert SECRET not in str(shown.shown())
    assert SECRET not in repr(shown)
