"""What sends one message at once: to our system, to Kafka, and to the source that does nothing."""

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.kafka.jars import server_jars
from tubemq_spark.client import TubeMQClient

Send = Callable[[bytes], None]


@contextmanager
def tubemq_sender(master: str, topic: str) -> Iterator[Send]:
    """Yield our producer."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:

        def send(value: bytes) -> None:
            producer.send(topic, value)
            producer.flush()

        yield send


@contextmanager
def kafka_sender(address: str, topic: str, *, linger_ms: int = 0) -> Iterator[Send]:
    """Yield Kafka's console producer, which is a JVM behind a pipe."""
    command = ["java", "-cp", f"{server_jars()}/*", "kafka.tools.ConsoleProducer"]
    settings = ["--bootstrap-server", address, "--topic", topic, "--timeout", "0"]
    producer = subprocess.Popen(
        [*command, *settings, "--producer-property", f"linger.ms={linger_ms}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert producer.stdin is not None
    pipe, lock = producer.stdin, threading.Lock()

    def send(value: bytes) -> None:
        with lock:
            pipe.write(value + b"\n")
            pipe.flush()

    try:
        yield send
    finally:
        pipe.close()
        producer.wait()


@contextmanager
def datagram_sender(port: int) -> Iterator[Send]:
    """Yield a socket."""
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        yield lambda value: _send_datagram(sender, port, value)


def _send_datagram(sender: socket.socket, port: int, value: bytes) -> None:
    sender.sendto(value, ("127.0.0.1", port))


def free_datagram_port() -> int:
    """Return a UDP port of 127.0.0.1 that nobody listens on."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
