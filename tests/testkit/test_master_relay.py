"""The relay in front of a master: producers go where it tells them."""

import contextlib

import pytest

from testkit.connections import opened_connections
from testkit.forwarder import Forwarder
from testkit.master_relay import MasterRelay
from testkit.sessions import opened
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2) as running:
        yield running


@contextlib.contextmanager
def session_of(address):
    config = ClientConfig((Endpoint.parse(address),), "test", register_attempts=1)
    with opened_connections() as connections, opened(ProducerSession(config, connections)) as session:
        yield session


def test_a_broker_is_where_the_relay_says(server):
    with (
        Forwarder(server.brokers[2]) as way,
        MasterRelay(server.master, {2: way.address}) as relay,
        session_of(relay.address) as session,
    ):
        run(session.publish(["demo"]))
        routes = session.routes("demo").partitions
        told = {partition.broker_id: str(endpoint) for partition, endpoint in routes.items()}
    assert told == {1: server.brokers[1], 2: way.address}


def test_routes_are_hidden_and_shown_again(server):
    with MasterRelay(server.master, {}) as relay, session_of(relay.address) as session:
        counts = []
        for change in (relay.hide_routes, relay.show_routes):
            change()
            run(session.publish(["demo"]))
            counts.append(len(session.routes("demo").partitions))
    assert counts == [0, 2]


def test_a_master_that_is_away_hangs_up(server):
    with MasterRelay(server.master, {}) as relay:
        server.close()
        with pytest.raises(TubeMQError), session_of(relay.address):
            pass
