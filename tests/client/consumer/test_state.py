"""Partitions that are given back: their next owner does not have to wait until a lease ends, after 30 s.

What goes on for consumers beside their users' calls: it has no thread of theirs, and comes to an end.
"""

import contextlib
import logging
import threading

import pytest

from tests.client.assigned import TOPIC, client_of, connected, consumer_of, partition
from tests.client.members import member, shares
from tests.client.ways import served
from tests.waiting import wait_until
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method, OpType

HELD_LONGER = "may be held for 30 s more"


server = served(stores=4, balance_period_ms=100)


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
    with connected(server) as consumer:
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


_FEW = 10
_MANY = 60
wide = served(partitions=_MANY, brokers=2, balance_period_ms=100)


@contextlib.contextmanager
def opened(client, kind, count):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(getattr(client, kind)(TOPIC)) for _ in range(count)]


def threads_of_consumers():
    """Return the threads that there are, but for those that end by themselves at once."""
    passing = "tubemq-connect"
    return [thread for thread in threading.enumerate() if not thread.name.startswith(passing)]


@pytest.mark.parametrize("kind", ["assigned_consumer", "group_consumer"])
def test_many_consumers_have_no_more_threads_than_few(wide, kind):
    with client_of(wide, "few", heartbeat_period_ms=50) as client, opened(client, kind, _FEW) as few:
        for number, consumer in enumerate(few):
            if kind == "assigned_consumer":
                consumer.connect(partition(1, number))
        wait_until(lambda: all(consumer.connected for consumer in few), 20)
        with opened(client, kind, _FEW) as more:
            wait_until(lambda: kind == "assigned_consumer" or all(one.connected for one in more), 20)
            before = len(threads_of_consumers())
            with opened(client, kind, _MANY - 2 * _FEW):
                assert len(threads_of_consumers()) <= before


def test_consumers_that_close_beside_a_silent_broker_have_no_threads_and_tell_the_master_nothing_more(
    wide,
):
    with client_of(wide, "closing", heartbeat_period_ms=50) as client:
        consumers = [client.assigned_consumer(TOPIC).open() for _ in range(_MANY)]
        for number, consumer in enumerate(consumers):
            consumer.connect(partition(1, number))
        before = len(threads_of_consumers())
        wide.faults.freeze_broker(1)
        for consumer in consumers:
            assert consumer.close(0) is False
        wait_until(lambda: all(consumer._core._upkeep.done() for consumer in consumers))
        heartbeats = wide.faults.delay(Method.BALANCE_HEARTBEAT, 0)
        assert len(threads_of_consumers()) <= before
        left = wide.faults.delay(Method.CONSUMER_CLOSE, 0)
        wait_until(lambda: all(consumer._core._closing.done() for consumer in consumers), 20)
        assert left.hits == _MANY, "the master was told of each"
        assert heartbeats.hits <= _MANY, "each had one under way"
