"""Reading from a broker that goes away in the middle: it is waited for, and the others are read meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tests.client.ranges import ROW, TOPIC, values, values_of
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.reader.range_reader import Patience, read_range
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.offsets.loss import fail_on_loss

COUNT = 24
AWAY, THERE = 2, 3

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(params=[1, 2], ids=["own store", "shared store"])
def partitions(request):
    return request.param


@pytest.fixture
def server(partitions):
    settings = EmbeddedSettings(max_entries=4)
    with EmbeddedTubeMQ(topics={TOPIC: (1, partitions)}, settings=settings, brokers=3) as running:
        yield running


@pytest.fixture
def reader(server, partitions):
    with opened_connections() as connections:
        yield Reader(server, connections, partitions)


class Reader:
    """Reads the first partition of a broker, which has every value or every second one."""

    def __init__(self, server, connections, partitions):
        self._server = server
        self._connections = connections
        self._partitions = partitions
        with MessageSender(self._config(), connections) as producer:
            for broker in (AWAY, THERE):
                for number in range(COUNT):
                    producer.send(TOPIC, b"value %d" % number, partition=(broker, number % partitions))
        self.truth = values(0, COUNT)[::partitions]

    def _config(self, **changes):
        return ClientConfig((Endpoint.parse(self._server.master),), "etl", **changes).validate()

    def batches(self, broker, **changes):
        work = RangeRequest(
            OffsetRange(TopicPartition(TOPIC, broker, 0), 0, COUNT * ROW),
            Route(Endpoint.parse(self._server.brokers[broker]), 0),
            own_store=self._partitions == 1,
        )
        reader = read_range(self._config(**changes), self._connections, work)
        return read_in_thread(reader, work.range, fail_on_loss)

    def read(self, broker, **how):
        return [value for batch in self.batches(broker, **how) for value in values_of(batch)]


@pytest.fixture
def waited(monkeypatch):
    """Set when a reader waits the third time."""
    event, waits, next_pause_s = threading.Event(), [], Patience.next_pause_s

    def counted(*of):
        waits.append(of)
        if len(waits) == 3:
            event.set()
        return next_pause_s(*of)

    monkeypatch.setattr(Patience, "next_pause_s", counted)
    return event


@pytest.mark.parametrize("how", ["stop_broker", "freeze_broker"])
@pytest.mark.parametrize("read_before", [0, 1, 3])
def test_a_reader_waits_for_its_broker_and_goes_on_by_itself(server, reader, waited, how, read_before):
    reading = reader.batches(AWAY, rpc_timeout_ms=100)
    found = [value for _ in range(read_before) for value in values_of(next(reading))]
    getattr(server.faults, how)(AWAY)
    with ThreadPoolExecutor(1) as thread:
        rest = thread.submit(lambda: [value for batch in reading for value in values_of(batch)])
        assert waited.wait(10)
        assert reader.read(THERE) == reader.truth
        server.faults.start_broker(AWAY)
        found += rest.result()

    assert found == reader.truth


def test_a_broker_that_is_away_for_good_is_named(server, reader):
    server.faults.stop_broker(AWAY)
    with pytest.raises(TubeMQTimeoutError, match=r"TUBEMQ_NO_PROGRESS.*demo/2:0") as caught:
        reader.read(AWAY, fetch_timeout_ms=200)

    assert server.brokers[AWAY] in str(caught.value)
    assert reader.read(THERE) == reader.truth
