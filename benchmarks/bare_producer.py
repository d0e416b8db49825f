"""Sends messages with the client's producer, without Spark; ``produce.py`` runs it as a process of its own.

It prints one line of JSON: how many messages were stored, and how many may be stored twice.
"""

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from testkit.connections import opened_connections
from tubemq_spark.client import ClientConfig, Producer, TubeMQClient
from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.kept_producers import batch_sender
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

BATCH_ROWS: Final = 10_000
"""Rows per record batch that Spark hands to a sink."""
MIXED_BYTES: Final = (20, 1_000)
"""The least and the greatest size of mixed messages; all between are equally likely."""
KINDS: Final = 4
"""Distinct attributes and types."""
KEYS: Final = 1_000


def values(size: int | None, rows: int) -> list[bytes]:
    """Return bodies of one size; None means mixed sizes, the same in each run."""
    sizes = random.Random(1)
    lengths = [sizes.randint(*MIXED_BYTES) if size is None else size for _ in range(rows)]
    return [b"%012d" % number + b"x" * (length - 12) for number, length in enumerate(lengths)]


def header(kind: int) -> MessageHeader:
    """Return attributes, type and time of the messages with all columns."""
    return MessageHeader({"kind": f"v{kind}", "source": "bench"}, f"type{kind}", "202601010000")


def by_message(producer: Producer, topic: str, bodies: list[bytes], count: int, *, full: bool) -> None:
    """Call ``send`` for each message."""
    headers = [header(number % KINDS) for number in range(KINDS)]
    for number in range(count):
        body = bodies[number % len(bodies)]
        if full:
            attributes, message_type, message_time, _ = headers[number % KINDS]
            producer.send(
                topic,
                body,
                attributes=attributes,
                message_type=message_type,
                message_time=message_time,
                key=b"key %d" % (number % KEYS),
            )
        else:
            producer.send(topic, body)
    producer.flush()


def by_batch(sender: BatchSender, topic: str, bodies: list[bytes], count: int, *, full: bool) -> None:
    """Call ``send_batch`` of the sink's sender for as many rows at a time as Spark would."""
    for first in range(0, count, BATCH_ROWS):
        sender.send_batch(batch(topic, bodies[: count - first], first + 1, full=full))
    sender.flush()


def batch(topic: str, bodies: list[bytes], first_row: int, *, full: bool) -> SendBatch:
    """Return messages by columns."""
    rows = np.arange(len(bodies))
    headers = tuple(header(kind) for kind in range(KINDS)) if full else (MessageHeader(None, None, None),)
    return SendBatch(
        Coded((topic,), np.zeros(len(bodies), np.int64)),
        column(bodies),
        Coded(headers, rows % len(headers)),
        column([b"key %d" % (number % KEYS) for number in range(len(bodies))]) if full else None,
        first_row=first_row,
    )


def column(texts: list[bytes]) -> BytesColumn:
    """Return texts one behind the other."""
    return BytesColumn(b"".join(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64))


WAYS: Final[dict[str, Callable[..., None]]] = {"send": by_message, "send_batch": by_batch}


def main() -> None:
    """Send, and print what was stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, help="of each message; without it mixed sizes")
    parser.add_argument("--full", action="store_true", help="with key, attributes, type and time")
    arguments = parser.parse_args()
    bodies = values(arguments.size, min(BATCH_ROWS, arguments.count))
    with contextlib.ExitStack() as stack:
        producer: Producer | BatchSender
        if arguments.way == "send_batch":
            connections = stack.enter_context(opened_connections())
            config = ClientConfig((Endpoint.parse(arguments.master),), "bench")
            producer = stack.enter_context(batch_sender(DirectTransport(config, connections)))
        else:
            client = stack.enter_context(TubeMQClient.connect(arguments.master))
            producer = stack.enter_context(client.producer())
        WAYS[arguments.way](producer, arguments.topic, bodies, arguments.count, full=arguments.full)
        receipts = producer.receipts()
    told = {
        "accepted": sum(one.count for one in receipts),
        "retried": sum(one.retried for one in receipts),
        "unanswered": sum(one.unanswered for one in receipts),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
