"""Whether a partition is gone, and where it is, is the master's word."""

import pytest

from testkit.connections import opened_connections
from tests.client.ranges import TOPIC, partition
from tests.embedded.web import close_topic, remove_topic
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.topics import find_partition, what_is_gone, where_it_is
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.offsets.loss import Loss

HOME = Endpoint("broker", 8123)


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}) as running:
        yield running


def find(server, number=0):
    with opened_connections() as connections:
        return run(
            find_partition(
                ClientConfig((Endpoint.parse(server.master),), "etl"), connections, partition(number)
            )
        )


def test_a_partition_is_found_at_its_broker(server):
    assert find(server) == Endpoint.parse(server.broker)
    assert find(server, 7) is Loss.PARTITION_REMOVED


def test_a_topic_that_is_closed_is_there_until_it_is_removed(server):
    close_topic(server, TOPIC)
    assert find(server) == Endpoint.parse(server.broker)
    remove_topic(server, TOPIC)
    assert find(server) is Loss.TOPIC_REMOVED


def test_without_a_master_nothing_is_known(server):
    server.faults.become_standby()
    with pytest.raises(TubeMQConnectionError):
        find(server)


def scripted(answer):
    """Return a master that answers so."""

    async def locate(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return locate


NO_MASTER = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="nobody")


@pytest.mark.parametrize(
    ("answer", "loss"),
    [
        (HOME, None),
        (NO_MASTER, None),
        (Loss.TOPIC_REMOVED, Loss.TOPIC_REMOVED),
        (Loss.PARTITION_REMOVED, Loss.PARTITION_REMOVED),
    ],
)
def test_a_partition_is_gone_when_a_master_says_so(answer, loss):
    assert run(what_is_gone(scripted(answer), partition())) is loss


@pytest.mark.parametrize(
    ("answer", "endpoint"), [(HOME, HOME), (Loss.PARTITION_REMOVED, None), (NO_MASTER, None)]
)
def test_a_partition_is_where_a_master_says(answer, endpoint):
    assert run(where_it_is(scripted(answer), partition())) == endpoint
