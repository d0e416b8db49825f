"""The producer when a server's process is stopped: connections stay, but nothing takes or answers bytes."""

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint

SERVE = """
import sys
from tubemq_spark.embedded.server import EmbeddedTubeMQ
with EmbeddedTubeMQ(topics={"demo": (2, 1)}) as server:
    print(server.master, flush=True)
    sys.stdin.read()
    print(server.stats().messages_in, flush=True)
"""
VALUE = b"x" * (256 << 10)


class ServerProcess:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.master = Endpoint.parse(self._process.stdout.readline().strip())

    def signal(self, number):
        self._process.send_signal(number)

    def stored(self):
        """End it, and return how many messages it took."""
        out, _ = self._process.communicate("")
        return int(out)

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def server():
    with contextlib.closing(ServerProcess()) as running:
        yield running


@pytest.fixture
def producer(server):
    config = ClientConfig((server.master,), "test", rpc_timeout_ms=1_000, delivery_timeout_ms=4_000)
    with opened_connections() as connections:
        sender = MessageSender(config, connections)
        sender.send("demo", b"before")
        sender.flush()
        yield sender
        sender.close()


def send_much(producer):
    for _ in range(200):
        producer.send("demo", VALUE)


def test_sending_to_a_stopped_broker_ends_with_an_error(server, producer):
    server.signal(signal.SIGSTOP)
    with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
        send_much(producer)


def test_flushing_to_a_stopped_broker_ends_with_an_error(server, producer):
    for _ in range(40):
        producer.send("demo", VALUE)
    server.signal(signal.SIGSTOP)
    for _ in range(20):
        producer.send("demo", VALUE)
    with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
        producer.flush()


def test_a_broker_that_goes_on_gets_all_that_waited(server, producer):
    server.signal(signal.SIGSTOP)
    going_on = threading.Timer(1.5, server.signal, [signal.SIGCONT])
    going_on.start()
    send_much(producer)
    producer.flush()
    going_on.join()
    assert sum(receipt.count for receipt in producer.receipts()) == 201
    copies = sum(receipt.unanswered for receipt in producer.receipts())
    producer.close()
    assert 201 <= server.stored() <= 201 + copies
