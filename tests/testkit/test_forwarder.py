"""The proxy between clients and servers: it stalls, cuts and slows down as it is told to."""

import contextlib
import socket
import threading

import pytest

from testkit.connections import opened, opened_connections
from testkit.forwarder import Forwarder, Link, MasterRelay
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run

MOMENT_S = 0.2
PATIENCE_S = 10


@pytest.fixture
def echo():
    """The address of a server that sends back what it gets."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        def answer(connected):
            with connected:
                while data := connected.recv(1 << 16):
                    connected.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def dial(address):
    host, _, port = address.rpartition(":")
    return contextlib.closing(socket.create_connection((host, int(port)), PATIENCE_S))


def receive(connected, count):
    data = b""
    while len(data) < count:
        data += connected.recv(count - len(data))
    return data


def test_bytes_are_held_back_while_a_forwarder_stalls_and_come_afterwards(echo):
    with Forwarder(echo) as way, dial(way.address) as connected:
        way.stall()
        connected.sendall(b"later")
        connected.settimeout(MOMENT_S)
        with pytest.raises(TimeoutError):
            connected.recv(5)
        connected.settimeout(PATIENCE_S)
        way.resume()
        assert receive(connected, 5) == b"later"


def test_a_forwarder_can_be_closed_while_it_stalls(echo):
    with Forwarder(echo) as way, dial(way.address) as connected:
        way.stall()
        connected.sendall(b"never")


def test_a_cut_ends_the_connections_that_there_are(echo):
    with Forwarder(echo) as way, dial(way.address) as connected:
        connected.sendall(b"a")
        assert receive(connected, 1) == b"a"
        way.cut()
        assert connected.recv(1) == b""
        with dial(way.address) as again:
            again.sendall(b"b")
            assert receive(again, 1) == b"b"


def test_a_link_that_is_shared_carries_all_bytes_one_after_the_other(monkeypatch):
    slept = []
    monkeypatch.setattr("testkit.forwarder.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("testkit.forwarder.time.sleep", slept.append)
    link = Link(1_000)
    for direction, count in (("up", 500), ("up", 500), ("down", 100), ("up", 1_000)):
        link.carry(direction, count)
    assert slept == pytest.approx([0.5, 1.0, 0.1, 2.0])


def test_all_bytes_come_over_a_link(echo):
    sent = bytes(range(256)) * 400
    with Forwarder(echo, Link(10_000_000)) as way, dial(way.address) as connected:
        threading.Thread(target=connected.sendall, args=(sent,), daemon=True).start()
        assert receive(connected, len(sent)) == sent


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
