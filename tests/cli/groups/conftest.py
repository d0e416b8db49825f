"""Groups on two brokers, one of which has a topic whose partitions share stores."""

import contextlib

import pytest

from tubemq_spark.client import ClientConfig, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint

FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


@pytest.fixture
def server(tmp_path):
    topics = {"clicks": (1, 1), "orders": (1, 2)}
    settings = EmbeddedSettings(balance_period_ms=50)
    with EmbeddedTubeMQ(tmp_path / "tubemq", topics, brokers=2, settings=settings) as running:
        with TubeMQClient.connect(running.master) as client, client.producer() as producer:
            for broker in 1, 2:
                for number in range(10 * broker):
                    producer.send("clicks", b"%d" % number, partition=(broker, 0))
            for number in range(6):
                producer.send("orders", b"%d" % number, partition=(1, number % 2))
        yield running


@pytest.fixture
def run(server, command_on):
    return command_on(server, "groups")


def client_config(master, group):
    return ClientConfig((Endpoint.parse(master),), group, heartbeat_period_ms=50)


@pytest.fixture
def member(server):
    """Return what opens a member of a group, which begins at the beginning if it is new."""

    @contextlib.contextmanager
    def join(group, *topics):
        with (
            TubeMQClient(client_config(server.master, group)) as client,
            client.group_consumer(topics, settings=FIRST) as consumer,
        ):
            yield consumer

    return join
