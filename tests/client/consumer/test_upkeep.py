"""What goes on for consumers beside their users' calls: it has no thread of theirs, and comes to an end."""

import contextlib
import threading

import pytest

from tests.client.assigned import TOPIC, client_of, partition
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.protocol.constants import Method

_FEW = 10
_MANY = 60


@pytest.fixture
def server():
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={TOPIC: (1, _MANY)}, brokers=2, settings=settings) as running:
        yield running


@contextlib.contextmanager
def opened(client, kind, count):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(getattr(client, kind)(TOPIC)) for _ in range(count)]


def threads_of_consumers():
    """Return the threads that there are, but for those that end by themselves at once."""
    passing = "tubemq-connect"
    return [thread for thread in threading.enumerate() if not thread.name.startswith(passing)]


@pytest.mark.parametrize("kind", ["assigned_consumer", "group_consumer"])
def test_many_consumers_have_no_more_threads_than_few(server, kind):
    with client_of(server, "few", heartbeat_period_ms=50) as client, opened(client, kind, _FEW) as few:
        for number, consumer in enumerate(few):
            if kind == "assigned_consumer":
                consumer.connect(partition(1, number))
        wait_until(lambda: all(consumer.connected for consumer in few), 20)
        with opened(client, kind, _FEW) as more:
            wait_until(lambda: kind == "assigned_consumer" or all(one.connected for one in more), 20)
            before = len(threads_of_consumers())
            with opened(client, kind, _MANY - 2 * _FEW):
                assert len(threads_of_consumers()) <= before


def test_consumers_that_close_beside_a_silent_broker_have_no_threads_and_tell_the_master_nothing_more(server):
    with client_of(server, "closing", heartbeat_period_ms=50) as client:
        consumers = [client.assigned_consumer(TOPIC).open() for _ in range(_MANY)]
        for number, consumer in enumerate(consumers):
            consumer.connect(partition(1, number))
        before = len(threads_of_consumers())
        server.faults.freeze_broker(1)
        for consumer in consumers:
            assert consumer.close(0) is False
        wait_until(lambda: all(consumer._core._upkeep.done() for consumer in consumers))
        heartbeats = server.faults.delay(Method.BALANCE_HEARTBEAT, 0)
        assert len(threads_of_consumers()) <= before
        left = server.faults.delay(Method.CONSUMER_CLOSE, 0)
        wait_until(lambda: all(consumer._core._closing.done() for consumer in consumers), 20)
        assert left.hits == _MANY, "the master was told of each"
        assert heartbeats.hits <= _MANY, "each had one under way"
