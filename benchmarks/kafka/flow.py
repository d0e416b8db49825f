"""What sends messages: one at a time, or at a steady pace in a process of its own until it is ended.

The CPU of that process, and of Kafka's producer, which it starts, is not that of the Spark that reads:
``SparkMeter`` counts no process that the driver has started but the JVM.
"""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.kafka.server import server_jars
from benchmarks.kafka.systems import KAFKA, System
from benchmarks.spark import ROOT
from tubemq_spark.client import TubeMQClient

MESSAGE: Final = b"x" * 100
_EVERY_MS: Final = 10
"""So often the messages that are due are sent, to both systems together."""

Send = Callable[[bytes], None]


@contextmanager
def tubemq_sender(master: str, topic: str, *, waits: bool = True) -> Iterator[Send]:
    """Yield our producer, which waits until a message is stored, or accepts it only."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:

        def send(value: bytes) -> None:
            producer.send(topic, value)
            if waits:
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
    """Return a free UDP port of 127.0.0.1."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def steady_flow(system: System, topic: str, per_second: int) -> Iterator[None]:
    """Send to a topic of a system, in another process, until the end of the block."""
    (address,) = system.options.values()
    order = [system.name, address, topic, str(per_second)]
    sender = subprocess.Popen([sys.executable, "-m", "benchmarks.kafka.flow", *order], cwd=ROOT)
    try:
        yield
        if sender.poll() is not None:
            raise RuntimeError(f"what sends to {system.name} has ended by itself")
    finally:
        sender.kill()
        sender.wait()


def main() -> None:
    """Send until this process is killed; then Kafka's producer, behind a pipe, ends too."""
    name, address, topic, rate = sys.argv[1:]
    if name == KAFKA:
        opened = kafka_sender(address, topic, linger_ms=_EVERY_MS)
    else:
        opened = tubemq_sender(address, topic, waits=False)
    with opened as send:
        sent, began = 0, time.monotonic()
        while True:
            due = int((time.monotonic() - began) * int(rate))
            for _ in range(due - sent):
                send(MESSAGE)
            sent = due
            time.sleep(_EVERY_MS / 1000)


if __name__ == "__main__":
    main()
