"""Sends messages at a steady pace to one of the systems, in a process of its own, until it is ended.

Its CPU, and that of Kafka's producer, which it starts, is not that of the Spark that reads: ``SparkMeter``
counts no process that the driver has started but the JVM.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.kafka.senders import Send, kafka_sender
from benchmarks.kafka.systems import KAFKA, System
from benchmarks.spark import ROOT
from tubemq_spark.client import TubeMQClient

MESSAGE: Final = b"x" * 100
_EVERY_MS: Final = 10
"""So often the messages that are due are sent, to both systems together."""


@contextmanager
def steady_flow(system: System, topic: str, per_second: int) -> Iterator[None]:
    """Send to a topic of a system, in another process, until the end of the block.

    Raises:
        RuntimeError: the process has ended by itself.
    """
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


@contextmanager
def _tubemq(master: str, topic: str) -> Iterator[Send]:
    with TubeMQClient.connect(master) as client, client.producer() as producer:

        def send(value: bytes) -> None:
            producer.send(topic, value)

        yield send


def main() -> None:
    """Send until this process is killed; then Kafka's producer, behind a pipe, ends too."""
    name, address, topic, rate = sys.argv[1:]
    opened = kafka_sender(address, topic, linger_ms=_EVERY_MS) if name == KAFKA else _tubemq(address, topic)
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
