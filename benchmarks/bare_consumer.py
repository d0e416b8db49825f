"""Reads messages with the client's group consumer; ``consume.py`` runs it as a process of its own.

It prints one line of JSON: how many messages came, and how many bytes their values have.
"""

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tubemq_spark.client import Batch, ConsumePosition, ConsumerConfig, GroupConsumer, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient

THREADS: Final = 2
SETTINGS: Final = ConsumerConfig(consume_position=ConsumePosition.FIRST)


class Count:
    """What has come so far."""

    def __init__(self, wanted: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.wanted = wanted
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        return self.messages >= self.wanted

    def add(self, batch: Batch) -> None:
        """Look at each message of a batch; threads may share this."""
        size = sum(len(record.value) for record in batch)
        with self._lock:
            self.messages += len(batch)
            self.bytes += size


def by_message(consumer: GroupConsumer, count: Count) -> None:
    """Take one message after the other; the last batch is not confirmed."""
    size = number = 0
    for number, record in enumerate(consumer.messages(), 1):
        size += len(record.value)
        if number == count.wanted:
            break
    count.messages, count.bytes = number, size


def by_batch(consumer: GroupConsumer, count: Count) -> None:
    """Take batches, and confirm each."""
    for batch in consumer:
        count.add(batch)
        consumer.confirm(batch)
        if count.done:
            return


def by_threads(consumer: GroupConsumer, count: Count) -> None:
    """Consume in threads that share the consumer, as the tool of TubeMQ does."""

    def take() -> None:
        while not count.done:
            batch = consumer.fetch(1_000)
            if batch is not None:
                count.add(batch)
                consumer.confirm(batch)

    threads = [threading.Thread(target=take) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS: Final[dict[str, Callable[[GroupConsumer, Count], None]]] = {
    "messages": by_message,
    "batches": by_batch,
    "threads": by_threads,
}
COROUTINES: Final = {"asyncio": 1, "coroutines": 2}
"""How many coroutines share the consumer."""


async def by_coroutines(arguments: argparse.Namespace, count: Count) -> None:
    """Consume in coroutines that confirm each batch."""
    async with (
        AsyncTubeMQClient.connect(arguments.master, group=arguments.group) as client,
        client.group_consumer(arguments.topic, settings=SETTINGS) as consumer,
    ):

        async def take() -> None:
            while not count.done:
                batch = await consumer.fetch(1_000)
                if batch is not None:
                    count.add(batch)
                    await consumer.confirm(batch)

        async with asyncio.TaskGroup() as group:
            for _ in range(COROUTINES[arguments.way]):
                group.create_task(take())


def main() -> None:
    """Read, and print what came."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--way", choices=[*WAYS, *COROUTINES], required=True)
    parser.add_argument("--count", type=int, required=True)
    arguments = parser.parse_args()
    count = Count(arguments.count)
    if arguments.way in COROUTINES:
        asyncio.run(by_coroutines(arguments, count))
    else:
        with (
            TubeMQClient.connect(arguments.master, group=arguments.group) as client,
            client.group_consumer(arguments.topic, settings=SETTINGS) as consumer,
        ):
            WAYS[arguments.way](consumer, count)
    sys.stdout.write(json.dumps({"messages": count.messages, "bytes": count.bytes}) + "\n")


if __name__ == "__main__":
    main()
