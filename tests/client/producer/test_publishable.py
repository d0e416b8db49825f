"""To which partitions a topic can be published now, on three brokers; and what producers are set to."""

import dataclasses

import pytest

from testkit.connections import opened_connections
from tests.client.producer.test_custom_partitioner import Own, by_value
from tests.waiting import wait_until
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.client.metadata.topics import await_publishable
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import OptionError, ProduceError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.loop import run, submit
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC, Method

ALL = tuple(TopicPartition("demo", broker, store) for broker in (1, 2, 3) for store in (0, 10_000))


@pytest.fixture
def server():
    settings = EmbeddedSettings(broker_timeout_ms=1)
    with EmbeddedTubeMQ(topics={"demo": (2, 1)}, brokers=3, settings=settings) as running:
        yield running


@pytest.fixture
def client(server):
    with TubeMQClient.connect(server.master) as opened:
        yield opened


@pytest.fixture(params=["client", "producer"])
def ask(request, client):
    if request.param == "client":
        yield client.publishable
    else:
        with client.producer() as producer:
            yield producer.publishable


def test_a_topic_can_be_published_to_all_partitions(ask):
    assert ask("demo") == ALL


def test_a_broker_that_is_away_takes_nothing_now(server, ask):
    server.faults.stop_broker(2, graceful=True)
    assert ask("demo") == tuple(one for one in ALL if one.broker_id != 2)
    server.faults.start_broker(2)
    assert ask("demo") == ALL


def test_a_topic_closed_on_some_brokers_is_open_on_the_others(server, ask):
    server.close_topic("demo", brokers=[1, 2])
    assert ask("demo") == ALL[4:]


def test_a_closed_topic_exists_but_takes_nothing(server, ask):
    server.close_topic("demo")
    assert ask("demo") == ()


def patience(server, delivery_timeout_ms):
    here = Endpoint.parse(server.master)
    return ClientConfig((here,), "waits", delivery_timeout_ms=delivery_timeout_ms)


def test_a_closed_topic_is_waited_for_until_it_is_open(server):
    server.close_topic("demo")
    asked = server.faults.delay(Method.PRODUCER_HEARTBEAT, 0)
    with opened_connections(1_000) as connections:
        waiting = submit(await_publishable(patience(server, 60_000), connections, "demo"))
        wait_until(lambda: asked.hits == 2)
        assert not waiting.done()
        server.set_topic("demo", TopicSpec(2, 1))
        waiting.result(20)


def test_a_topic_that_stays_closed_is_an_error(server):
    server.close_topic("demo")
    with (
        opened_connections(1_000) as connections,
        pytest.raises(ProduceError, match=r"Topic 'demo' cannot be published to: .* for 300 ms"),
    ):
        run(await_publishable(patience(server, 300), connections, "demo"))


def test_a_topic_that_was_given_up_is_told_of_when_it_is_open_after_all(server, client, caplog):
    server.close_topic("demo")
    with client.producer() as producer:
        with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNPUBLISHABLE"):
            run(producer._queue.pipeline.place_once("demo", None))
        assert "topic demo is away" in caplog.text
        server.set_topic("demo", TopicSpec(2, 1))
        assert run(producer._queue.pipeline.place("demo", None))
    assert "topic demo is back" in caplog.text


def test_a_topic_that_does_not_exist_is_an_error(ask):
    with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNKNOWN"):
        ask("nowhere")


@pytest.mark.parametrize("name", ["", "x" * 65, OFFSET_HISTORY_TOPIC])
def test_a_name_that_no_master_takes_is_an_error_before_it_is_asked(server, ask, name):
    rule = server.faults.delay(Method.PRODUCER_HEARTBEAT, 0)
    with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_NAME"):
        ask(name)
    assert rule.hits == 0


def test_without_a_master_the_partitions_are_unknown(server):
    server.close()
    with TubeMQClient.connect(server.master, delivery_timeout_ms=1) as client:
        with pytest.raises(TubeMQConnectionError):
            client.publishable("demo")
        producer = client.producer()
        with pytest.raises(TubeMQConnectionError):
            producer.publishable("demo")


def test_asking_does_not_add_a_topic_to_a_producer(server, client):
    server.add_topic("other")
    with client.producer() as producer:
        producer.send("demo", b"x")
        assert len(producer.publishable("other")) == 3
        assert producer.publishable("demo") == ALL
        assert producer._queue.pipeline._session._topics == {"demo"}


def test_asking_goes_on_while_messages_are_under_way(server, client):
    server.faults.delay(Method.SEND_MESSAGE, 200, times=3)
    with client.producer() as producer:
        for number in range(6):
            producer.send("demo", b"%d" % number)
        assert producer.publishable("demo") == ALL
    assert server.stats().messages_in == 6


def test_a_closed_producer_does_not_ask(client):
    producer = client.producer()
    producer.close()
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        producer.publishable("demo")


def settings_of(producer) -> ClientConfig:
    producer.close()
    return producer._queue.pipeline.config


def test_a_producer_has_the_settings_of_its_client_unless_it_is_given_others(server):
    own = Own(by_value)
    with TubeMQClient.connect(server.master, delivery_timeout_ms=70_000) as client:
        usual = settings_of(client.producer())
        assert usual == ClientConfig(usual.masters, usual.group, delivery_timeout_ms=70_000)
        special = client.producer(
            "me", delivery_timeout_ms=50_000, retry_ambiguous=False, keep_order=True, partitioner=own
        )
        assert settings_of(special) == dataclasses.replace(
            usual, delivery_timeout_ms=50_000, retry_ambiguous=False, keep_order=True, partitioner=own
        )
        for name, one in {
            "sticky": BuiltInPartitioner.STICKY,
            "roundRobin": BuiltInPartitioner.ROUND_ROBIN,
        }.items():
            for given in (name, one):
                assert settings_of(client.producer(partitioner=given)).partitioner is one


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms is 0"),
        ({"partitioner": "turns"}, "partitioner is 'turns'"),
        ({"partitioner": 5}, "partitioner is 5"),
    ],
)
def test_wrong_settings_are_refused(client, wrong, named):
    with pytest.raises(OptionError, match=named):
        client.producer(**wrong)
