"""A member of a group in a process of its own, which a test ends, kills and pauses.

usage: group_member.py MASTER TOPIC GROUP FILE

To the file goes a line per event, each written before the next one begins: ``read CONTEXT NUMBER...`` for a
batch, then ``confirmed CONTEXT`` or ``refused CONTEXT CONDITION``. SIGTERM: it confirms what it has read,
leaves the group and writes ``left``. SIGUSR1: it holds its batch, and confirms it after SIGUSR2.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from tubemq_spark.client import ClientConfig, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.consumer.consumer import GroupConsumer
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint

FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


def read_batch(consumer: GroupConsumer, log: TextIO, holding: threading.Event) -> None:
    """Fetch a batch, note it, confirm it and note what became of that."""
    batch = consumer.fetch(200)
    if batch is None:
        return
    print("read", batch.context, *(int(record.value) for record in batch), file=log, flush=True)
    while holding.is_set():
        time.sleep(0.1)
    try:
        consumer.confirm(batch)
    except TubeMQError as error:
        print("refused", batch.context, type(error).__name__, file=log, flush=True)
    else:
        print("confirmed", batch.context, file=log, flush=True)


def main(master: str, topic: str, group: str, path: str) -> None:
    """Read until SIGTERM."""
    leaving, holding = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    signal.signal(signal.SIGUSR1, lambda *_: holding.set())
    signal.signal(signal.SIGUSR2, lambda *_: holding.clear())
    config = ClientConfig((Endpoint.parse(master),), group, heartbeat_period_ms=1_000)
    with Path(path).open("a") as log:
        with TubeMQClient(config) as client, client.group_consumer(topic, settings=FIRST) as consumer:
            while not leaving.is_set():
                read_batch(consumer, log, holding)
        print("left", file=log, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
