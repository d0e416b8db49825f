"""Clients of servers listed by names: of several addresses, of none, without room to look them up."""

import contextlib
import dataclasses
import queue
import socket
import threading

import pytest

from testkit.forwarder import swallowing
from tests.client.scripted_cluster import scripted_cluster
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError, TubeMQConnectionError
from tubemq_spark.model import Endpoint

SECONDS = 20
NAME = "tube.test"
NO_THREAD = RuntimeError("can't start new thread")


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    """Resolve a name to an address that swallows packets and to one of this host, in this order."""
    look_up = socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0)) as free:
        hole = Endpoint(*free.getsockname())

    def resolve(host, port, *arguments, **named):
        if host != NAME:
            return look_up(host, port, *arguments, **named)
        places = (hole.host, hole.port), ("127.0.0.1", port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with swallowing(str(hole)):
        yield


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, advertised_host=NAME) as running:
        yield running


def config_of(server):
    masters = (Endpoint.parse(server.master),)
    return ClientConfig(masters, "test", connect_timeout_ms=1_000, delivery_timeout_ms=6_000)


def test_an_address_that_swallows_packets_leaves_time_for_the_next(server):
    with TubeMQClient(config_of(server)) as client:
        with client.producer() as producer:
            assert producer.send("demo", b"x").result(SECONDS)
        assert [record.value for record in client.read("demo")] == [b"x"]


class Exhausted:
    """A call that fails until it is told otherwise."""

    def __init__(self, call, error, concerns=lambda *_: True):
        self._call, self._error, self._concerns = call, error, concerns
        self.failing = True
        self.failed = threading.Event()

    def __call__(self, *arguments, **named):
        if self.failing and self._concerns(*arguments):
            self.failed.set()
            raise self._error
        return self._call(*arguments, **named)


def without_threads(monkeypatch, name):
    exhausted = Exhausted(threading.Thread.start, NO_THREAD, lambda thread: thread.name.startswith(name))

    def start(thread):
        exhausted(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return exhausted


def test_a_moment_without_a_thread_for_a_look_up_ends_no_producer(server, monkeypatch):
    config = dataclasses.replace(config_of(server), delivery_timeout_ms=60_000)
    with TubeMQClient(config) as client, client.producer() as producer:
        producer.publishable("demo")
        exhausted = without_threads(monkeypatch, "tubemq-look-up")
        sent = producer.send("demo", b"x")
        assert exhausted.failed.wait(SECONDS)
        exhausted.failing = False
        assert sent.result(SECONDS)


def test_a_thread_that_cannot_be_started_refuses_one_message(server, monkeypatch):
    exhausted = without_threads(monkeypatch, "tubemq-callbacks")
    told = queue.SimpleQueue()
    with TubeMQClient(config_of(server)) as client, client.producer() as producer:
        future = producer.send("demo", b"x")
        for use in (
            lambda: producer.send("demo", b"refused", callback=lambda *_: None),
            lambda: future.add_done_callback(told.put),
        ):
            with pytest.raises(TubeMQConnectionError, match=r"PROCESS_EXHAUSTED.*can't start new thread"):
                use()
        assert future.result(SECONDS)
        exhausted.failing = False
        future.add_done_callback(told.put)
        assert told.get(timeout=SECONDS) is future


def test_a_thread_that_cannot_be_started_is_the_trouble_of_one_attempt_to_connect(server, monkeypatch):
    name = (Endpoint("localhost", Endpoint.parse(server.master).port),)
    config = dataclasses.replace(config_of(server), masters=name, register_attempts=2, register_retry_ms=10)
    exhausted = without_threads(monkeypatch, "tubemq-look-up")
    with TubeMQClient(config) as client:
        with pytest.raises(TubeMQConnectionError, match="can't start new thread"):
            client.layout("demo")
        exhausted.failing = False
        assert len(client.layout("demo").partitions) == 1


@pytest.mark.parametrize("host", ["broker..example.com", f"{'b' * 64}.example.com"])
def test_a_broker_that_is_listed_under_no_name_is_the_trouble_of_its_messages(host):
    with scripted_cluster(2, demo="1:1:1,2:1:1#") as cluster, contextlib.ExitStack() as closing:
        listed = cluster.brokers[1].server
        closing.callback(setattr, listed, "endpoint", listed.endpoint)
        listed.endpoint = Endpoint(host, listed.endpoint.port)
        producer = cluster.producer(delivery_timeout_ms=1_500)
        lost = producer.send("demo", b"x", partition=(2, 0))
        assert producer.send("demo", b"y", partition=(1, 0)).result(SECONDS)
        with pytest.raises(ProduceError, match=rf"TUBEMQ_SEND_FAILED.*{host}"):
            lost.result(SECONDS)
        assert producer.send("demo", b"z", partition=(1, 0)).result(SECONDS)
