"""Consumers through two gateways that are killed in turn, before the embedded server and Java's."""

import collections
import contextlib
import itertools

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import produce_numbers
from integration_tests.rig.processes import two_gateways
from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import TubeMQError

pytestmark = pytest.mark.timeout(600)

COUNT = 3_000
SECONDS = 180


@contextlib.contextmanager
def assigned(client, topic):
    with client.assigned_consumer(topic) as consumer:
        for partition in consumer.share():
            consumer.connect(partition)
        yield consumer


@contextlib.contextmanager
def member(client, topic):
    with client.group_consumer(topic) as consumer:
        yield consumer


@pytest.mark.parametrize("kind", [assigned, member])
def test_only_what_was_not_confirmed_comes_again(server, kind):
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(COUNT))
    confirmed = collections.Counter()
    settings = "consume_position=first&heartbeat_period_ms=1000&rpc_timeout_ms=5000"
    with two_gateways(server.master) as gateways:
        address = f"gateway://{','.join(gateways.addresses)}?group=it_{topic}&{settings}"
        turns, kills = itertools.cycle((0, 1)), collections.deque([COUNT // 3, COUNT // 2, 2 * COUNT // 3])
        with TubeMQClient.connect(address) as client, kind(client, topic) as consumer:

            def is_read():
                batch = consumer.fetch(500)
                if batch is not None:
                    with contextlib.suppress(TubeMQError):
                        consumer.confirm(batch)
                        confirmed.update(int(record.value) for record in batch)
                if kills and len(confirmed) >= kills[0]:
                    kills.popleft()
                    gateways.kill(next(turns))
                return len(confirmed) >= COUNT

            wait_until(is_read, timeout_s=SECONDS, what="all messages")
    assert set(confirmed) == set(range(COUNT))
    assert set(confirmed.values()) == {1}
