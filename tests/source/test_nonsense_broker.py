"""A broker that answers nonsense: a read ends in time, with one sentence that names it, and never hangs.

The master is a right one and lists the broker; somebody else answers on its port.
"""

import time

import pytest

from testkit.readers import Stream, read_task
from tests.rpc_server import RpcServer
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.nodes import BrokerNode
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.pb import broker_pb2, master_pb2
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)
TOPIC = "demo"
ODD, RIGHT = 1, 2
"""The brokers."""
PATIENCE = {
    "tubemq.rpctimeoutms": "300",
    "tubemq.fetchtimeoutms": "600",
    "fetchoffset.numretries": "2",
    "fetchoffset.retryintervalms": "10",
}
MOST_SECONDS = 10

FRAME = b"\xff\x7f\xf4\xfe\x00\x00\x00\x01\x00\x00\x00\x01"
"""Token, serial number 1 and one chunk, whose length follows."""

NONSENSE = {
    "http": lambda asked: asked.send_bytes(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "another protocol": lambda asked: asked.send_bytes(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "an unreadable answer": lambda asked: asked.send_bytes(FRAME + b"\x00\x00\x00\x02\xff\xff"),
    "a frame that is too long": lambda asked: asked.send_bytes(FRAME + b"\x7f\xff\xff\xff"),
    "half an answer": lambda asked: asked.send_bytes(FRAME + b"\x00\x00\x10\x00half"),
    "zeros": lambda asked: asked.send_bytes(bytes(1000)),
    "silence": lambda asked: None,
    "the answer to something else": lambda asked: asked.answer(
        master_pb2.HeartRequestC2MV2(clientId="x", groupName="y")
    ),
    "an answer without a position": lambda asked: asked.answer(
        broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="")
    ),
    "a position in the middle of an entry": lambda asked: asked.answer(
        broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="", currOffset=13, maxOffset=27)
    ),
    "a position before the beginning": lambda asked: asked.answer(
        broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="", currOffset=-28, maxOffset=28)
    ),
}


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=2) as running:
        masters = (Endpoint.parse(running.master),)
        with TubeMQClient(ClientConfig(masters, "etl")) as client, client.producer() as producer:
            for broker in (ODD, RIGHT):
                for number in range(5):
                    producer.send(TOPIC, b"%d" % number, partition=(broker, 0))
        yield running


@pytest.fixture
def odd(server, monkeypatch):
    """Return what begins to answer in the place of the first broker, and returns its address."""
    # A stopped broker keeps its ports, so that no other process gets them by chance.
    monkeypatch.setattr(BrokerNode, "_reserve_ports", lambda _: None)

    def begin(handler):
        endpoint = Endpoint.parse(server.brokers[ODD])
        server.faults.stop_broker(ODD)
        begun.append(RpcServer(handler, endpoint.port))
        return endpoint

    begun = []
    yield begin
    for other in begun:
        other.close()


def options(server):
    return {
        "tubemq.master.servers": server.master,
        "subscribe": TOPIC,
        "startingoffsets": "earliest",
        **PATIENCE,
    }


def error_in_time(action):
    """Do what must fail; return the error, which must come in time."""
    begun = time.monotonic()
    with pytest.raises(TubeMQError) as caught:
        action()
    assert time.monotonic() - begun < MOST_SECONDS
    return caught.value


@pytest.mark.parametrize("handler", NONSENSE.values(), ids=NONSENSE)
def test_planning_ends_and_names_the_broker(server, odd, handler):
    endpoint = odd(handler)

    error = error_in_time(lambda: TubeMQDataSource(options(server)).reader(SCHEMA).partitions())

    assert isinstance(error, TubeMQConnectionError)
    assert ".." not in str(error)
    assert ".;" not in str(error)
    assert error.condition == "TUBEMQ_BROKERS_AWAY"
    assert str(endpoint) in str(error)
    assert "1 of 2 stores had no answer" in str(error)


@pytest.mark.parametrize("handler", NONSENSE.values(), ids=NONSENSE)
def test_a_task_ends_and_names_the_partition(server, odd, handler):
    stream = Stream(options(server), SCHEMA)
    of_odd, of_right = sorted(stream.plan(), key=lambda task: task.requests[0].range.partition)
    odd(handler)

    error = error_in_time(lambda: read_task(stream.pickled_reader, of_odd))

    assert isinstance(error, TubeMQTimeoutError)
    assert error.condition == "TUBEMQ_NO_PROGRESS"
    assert f"{TOPIC}/1:0" in str(error)
    assert len(read_task(stream.pickled_reader, of_right)) == 5
