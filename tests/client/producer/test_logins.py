"""Producing to brokers that check users and tokens: a refused token is renewed once; nothing gets lost."""

import contextlib

import pytest

from testkit.message_sender import MessageSender
from tests.client.producer.test_on_faults import stored
from tests.client.ranges import config_of
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError, RpcError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

TOPIC = "demo"
BROKERS = 3
PARTITIONS = [(broker, 0) for broker in range(1, BROKERS + 1)]
REFUSED = ErrCode.CERTIFICATE_FAILURE


@pytest.fixture
def server():
    settings = EmbeddedSettings(
        authenticate_producers=True, users={"writer": "secret"}, check_visit_tokens=True
    )
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=BROKERS, settings=settings) as running:
        yield running


@pytest.fixture
def producer(server, connections):
    """Heartbeats come only when they are asked for."""
    login = {"username": "writer", "password": "secret", "heartbeat_period_ms": 29_000}
    with contextlib.closing(MessageSender(config_of(server, **login), connections)) as sender:
        yield sender


def send_to_all(producer, first, count):
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.send(TOPIC, value, partition=PARTITIONS[number % BROKERS])
    return values


def refusals(producer):
    return {one.broker_id: one.refused.get(REFUSED, 0) for one in producer.statistics().brokers}


def test_tokens_that_expire_are_renewed_and_every_message_is_stored_once(server, connections, producer):
    values = send_to_all(producer, 0, 300)
    producer.flush()
    for round_ in (1, 2, 3):
        server.faults.expire_visit_tokens()
        values += send_to_all(producer, 300 * round_, 300)
        producer.flush()
        assert all(refusals(producer).values()), "each broker refused the old token"
    assert stored(server, connections) == dict.fromkeys(values, 1)
    assert sum(receipt.unanswered for receipt in producer.receipts()) == 0


def test_a_renewed_token_that_is_refused_ends_the_producer(server, connections, producer):
    send_to_all(producer, 0, 3)
    producer.flush()
    rule = server.faults.answer(Method.SEND_MESSAGE, REFUSED, "token refused", broker=2)
    send_to_all(producer, 3, 2)
    with pytest.raises(ProduceError, match=r"demo/2:0 \(attempts: 2\): .* 415 .*token refused"):
        producer.flush()
    assert rule.hits == 2


def test_a_wrong_password_is_refused_before_anything_is_sent(server, connections):
    settings = config_of(server, username="writer", password="wrong")
    with MessageSender(settings, connections) as producer, pytest.raises(RpcError) as refused:
        producer.send(TOPIC, b"x")
    assert refused.value.code == REFUSED
    assert "wrong" not in str(refused.value)
    assert server.stats().messages_in == 0


def test_a_producer_without_a_user_is_refused(server, connections):
    with (
        MessageSender(config_of(server), connections) as producer,
        pytest.raises(RpcError, match="userName is Blank"),
    ):
        producer.send(TOPIC, b"x")
