"""Partitions that are given back: their next owner does not have to wait until a lease ends, after 30 s."""

import logging

import pytest

from tests.client.assigned import TOPIC, client_of, consumer_of, partition
from tests.client.members import member, shares
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method, OpType

HELD_LONGER = "may be held for 30 s more"


@pytest.fixture
def server():
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=settings) as running:
        yield running


def unregisters(request):
    return request.opType == OpType.UNREGISTER


@pytest.mark.parametrize("carried_out", [False, True], ids=["lost", "lost answer"])
@pytest.mark.parametrize("why", ["another member joins", "a member closes"])
def test_an_unregister_that_gets_lost_is_repeated(server, why, carried_out):
    """With TubeMQ's clients the partition is blocked for the others."""
    with member(server) as first, member(server) as second:
        shares(first, second)
        lost = server.faults.drop_connection(
            Method.PARTITION_REGISTER, times=1, carried_out=carried_out, only=unregisters
        )
        if why == "a member closes":
            second.close()
            shares(first)
        else:
            with member(server) as third:
                shares(first, second, third)
        assert lost.hits == 1


def test_a_broker_is_told_over_a_new_connection_when_the_old_one_is_gone(server):
    with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC).open()
        consumer.connect(partition())
        endpoint = consumer._core.state.connected[partition()].endpoint
        loop.call_soon(client._connections.connected(endpoint).close)
        consumer.close()
    with consumer_of(server) as other:
        other.connect(partition())


def test_an_unregister_is_repeated_once(server, caplog):
    caplog.set_level(logging.INFO)
    with consumer_of(server) as consumer:
        consumer.connect(partition())
        lost = server.faults.drop_connection(Method.PARTITION_REGISTER, only=unregisters)
        consumer.disconnect(partition())
        assert lost.hits == 2
        assert caplog.text.count(HELD_LONGER) == 1


def test_a_broker_that_cannot_be_reached_is_not_tried_for_each_partition(server, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    with client_of(server) as client, client.assigned_consumer(TOPIC) as consumer:
        for number in range(4):
            consumer.connect(partition(2, number * 10_000))
        endpoint = consumer._core.state.connected[partition(2)].endpoint
        server.faults.stop_broker(2)
        wait_until(lambda: client._connections.connected(endpoint) is None)
        tried, get = [], client._connections.get
        monkeypatch.setattr(client._connections, "get", lambda *to: tried.append(to[0]) or get(*to))
        consumer.close()
        assert tried.count(endpoint) == 1
        assert caplog.text.count(HELD_LONGER) == 1
        server.faults.start_broker(2)
