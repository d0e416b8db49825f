import contextlib
import dataclasses
import socket

import pytest

from testkit.connections import opened_connections
from tests.client.model_broker import BROKER_ID, TOKEN, ModelBroker, Store, swallow, swallow_answer
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.positions import group_positions, move_group
from tubemq_spark.errors import RpcError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net import loop
from tubemq_spark.net.retry import Sleep
from tubemq_spark.protocol.constants import Method

ROW = 28
PARTITION = TopicPartition("demo", BROKER_ID, 0)


@pytest.fixture
def broker():
    store = Store()
    store.append(0, [b"x"] * 10)
    with ModelBroker({StoreId("demo", BROKER_ID, 0): store}) as running:
        yield running


@contextlib.contextmanager
def connected(broker):
    """Yield what both functions take first."""
    settings = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=500)
    layout = TopicsLayout({PARTITION: broker.endpoint}, TOKEN)
    with opened_connections() as connections:
        yield settings, connections, layout


def test_an_old_token_is_renewed(broker):
    broker.valid_tokens = {TOKEN + 1}
    with connected(broker) as where:
        assert loop.run(move_group(*where, {PARTITION: 3 * ROW})) == {}
        assert loop.run(group_positions(*where)) == {PARTITION: 3 * ROW}


def test_a_consumer_of_the_group_keeps_its_position(broker):
    broker.holdings["etl", "demo", 0].owner = "somebody else"
    with connected(broker) as where:
        with pytest.raises(RpcError, match="410"):
            loop.run(group_positions(*where))
        assert loop.run(move_group(*where, {PARTITION: 3 * ROW}))[PARTITION].code == 410


def test_a_broker_that_is_away_moves_no_group_and_keeps_no_other_from_it(broker):
    away = TopicPartition("demo", BROKER_ID + 1, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = Endpoint("127.0.0.1", taken.getsockname()[1])
    with connected(broker) as (settings, connections, layout):
        wider = TopicsLayout({**layout.partitions, away: closed}, TOKEN)
        failures = loop.run(move_group(settings, connections, wider, {PARTITION: 3 * ROW, away: 3 * ROW}))
        assert list(failures) == [away]
        assert isinstance(failures[away], TubeMQConnectionError)
        assert loop.run(group_positions(settings, connections, layout)) == {PARTITION: 3 * ROW}
        with pytest.raises(TubeMQConnectionError):
            loop.run(group_positions(settings, connections, wider))


def test_a_question_that_is_given_up_leaves_no_call_in_flight(broker):
    """Also none that was not awaited: a connection with calls in flight is never closed for being idle."""
    broker.partitions = 2
    broker.fault_of_method[Method.PARTITION_REGISTER] = [swallow] * 4
    with connected(broker) as (settings, connections, layout):
        patient = dataclasses.replace(settings, rpc_timeout_ms=600_000)
        both = TopicsLayout(
            {**layout.partitions, TopicPartition("demo", BROKER_ID, 1): broker.endpoint}, TOKEN
        )

        def give_up():
            if len(broker.requests) == 2:
                raise KeyError

        with pytest.raises(KeyError):
            loop.run(group_positions(patient, connections, both), Sleep(check=give_up))
        (connection,) = connections.shared()
        assert not connection.in_use


def test_a_lease_that_may_have_been_given_is_given_up(broker):
    """The broker registers, and its answer does not come."""
    broker.fault_of_method[Method.PARTITION_REGISTER] = [swallow_answer]
    with connected(broker) as where:
        failures = loop.run(move_group(*where, {PARTITION: 3 * ROW}))
        assert isinstance(failures[PARTITION], TubeMQTimeoutError)
        assert broker.leases() == []
