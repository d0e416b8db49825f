"""Whether a partition is gone is the master's word, and only when it is sure."""

import pytest

from tests.client.ranges import TOPIC, partition
from tests.embedded.web import close_topic, remove_topic
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.partitions import find_partition, what_is_gone, where_it_is
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.offsets.loss import Loss

HOME = Endpoint("broker", 8123)


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}) as running:
        yield running


def find(server, number=0):
    with ChannelPool() as pool:
        return find_partition(ClientConfig((Endpoint.parse(server.master),), "etl"), pool, partition(number))


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


def scripted(*answers):
    """A master that answers so, one look after the other, and keeps to its last answer."""
    script = list(answers)

    def locate(_):
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return locate


NOBODY = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="nobody")


@pytest.mark.parametrize(
    ("answers", "gone"),
    [
        ([HOME], None),
        ([NOBODY], None),
        ([Loss.TOPIC_REMOVED], Loss.TOPIC_REMOVED),
        ([Loss.PARTITION_REMOVED], Loss.PARTITION_REMOVED),
        ([Loss.PARTITION_REMOVED, Loss.PARTITION_REMOVED, HOME], None),
        ([Loss.PARTITION_REMOVED, NOBODY], None),
        ([Loss.PARTITION_REMOVED, Loss.TOPIC_REMOVED], Loss.TOPIC_REMOVED),
    ],
)
def test_what_is_gone(answers, gone):
    assert what_is_gone(scripted(*answers), partition(), lambda _: None) is gone


def test_a_partition_is_gone_when_the_master_has_left_it_out_for_longer_than_brokers_take_to_report():
    waited = []
    what_is_gone(scripted(Loss.PARTITION_REMOVED), partition(), waited.append)

    assert sum(waited) > 8 + 1


@pytest.mark.parametrize(("answer", "found"), [(HOME, HOME), (Loss.PARTITION_REMOVED, None), (NOBODY, None)])
def test_where_it_is(answer, found):
    assert where_it_is(scripted(answer), partition()) == found
