"""What a message costs from the columns to the wire, and from the answer to the receipt, by both twins.

    make bench-send-path                    # both twins, in turns
    python benchmarks/send_path.py --rounds 9

"Checksums" come on top when receipts are to have them.

The answers are made here; no broker and no network run. Figures are CPU time per message, the best of all
rounds.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.twins import Row, compare
from testkit.wire import encode_response
from tubemq_spark.client.producer.links import BrokerLink
from tubemq_spark.client.producer.outgoing import outgoing_batch
from tubemq_spark.client.producer.runs import Destination, Run
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch, running_checksums
from tubemq_spark.protocol.send_connection import SendConnection
from tubemq_spark.protocol.send_frames import SendCredentials, encode_place

MESSAGES: Final = 10_000
BATCHES: Final = 10
RUN: Final = 128
"""How many messages the send window accepts together."""
READ_BYTES: Final = 1 << 16
"""What arrives of answers at a time."""
SIZES: Final = {"100 B": 100, "1 KiB": 1024}
TURNS: Final = {"the only partition": RUN, "turns of 32": 32, "another each time": 1}
"""How many messages after each other go to the same partition."""
MINUTES: Final = 4
"""How many distinct message times there are in a batch."""
WAYS: Final = ("to the wire", "to the receipt")


def batch_of(size: int) -> SendBatch:
    """Return messages with a few message times."""
    offsets = np.arange(MESSAGES + 1) * size
    headers = tuple(MessageHeader(None, None, f"2026010100{minute:02d}") for minute in range(MINUTES))
    return SendBatch(
        Coded(("demo",), np.zeros(MESSAGES, np.int64)),
        BytesColumn(memoryview(b"x" * (MESSAGES * size)), offsets),
        Coded(headers, np.arange(MESSAGES) * MINUTES // MESSAGES),
    )


def destinations() -> list[Destination]:
    """Return partitions of one broker."""
    link = BrokerLink(1, Endpoint("b", 1), 10_000)
    client = "10.0.0.1-4242-1735689600000-1-Python"
    return [
        Destination(TopicPartition("demo", 1, partition), link, encode_place(client, "demo", partition))
        for partition in range(4)
    ]


def answers() -> list[bytes]:
    """Return what a broker says to the messages of all batches, as it arrives."""
    frames = []
    for serial_no in range(1, BATCHES * MESSAGES + 1):
        message = broker_pb2.SendMessageResponseB2P(
            success=True, errCode=200, errMsg=str(3_369_719_412_767_588_352 + serial_no), requireAuth=False
        )
        message.messageId = 3_369_719_412_767_588_352 + serial_no
        message.appendTime, message.appendOffset = 1_767_225_600_000 + serial_no // 100, 28 * serial_no
        answer = rpc.Response(serial_no, Method.SEND_MESSAGE, message.SerializeToString())
        frames.append(framing.encode_frame(serial_no, encode_response(answer)))
    data = b"".join(frames)
    return [data[start : start + READ_BYTES] for start in range(0, len(data), READ_BYTES)]


def send(connection: SendConnection[Run], batch: SendBatch, turn: int) -> None:
    """Encode as a producer does: a run per turn, or rows of a run that go to one partition each."""
    credentials, partitions = SendCredentials(0x0A000001, 1_735_689_600_000), itertools.cycle(destinations())
    for _ in range(BATCHES):
        writable, _ = outgoing_batch(batch)
        backs = writable.backs(credentials)
        step = turn if turn > 1 else RUN
        for first in range(0, MESSAGES, step):
            rows = range(first, min(first + step, MESSAGES))
            run = Run(writable, rows, list(itertools.islice(partitions, 1 if turn > 1 else len(rows))))
            connection.send(run, writable.payloads, backs, rows, run.places())


def receive(connection: SendConnection[Run], arrivals: Sequence[bytes]) -> None:
    """Read answers and count what is stored, as a producer does."""
    for data in arrivals:
        stored, _ = connection.receive_data(data)
        for run, positions, offsets, _ in stored:
            run.size_of(positions)
            run.acknowledge(positions, offsets)
    if len(connection):
        raise SystemExit(f"{len(connection)} messages without answer")


def measure(size: int, turn: int, arrivals: Sequence[bytes]) -> tuple[float, float]:
    """Return CPU seconds to the wire and to the receipt."""
    batch = batch_of(size)
    connection: SendConnection[Run] = SendConnection(10_000)
    began = time.process_time()
    send(connection, batch, turn)
    sent = time.process_time()
    receive(connection, arrivals)
    return sent - began, time.process_time() - sent


def measure_checksums(size: int) -> float:
    """Return CPU seconds for the checksums of all batches."""
    batch = batch_of(size)
    began = time.process_time()
    for _ in range(BATCHES):
        running_checksums(batch.values)
    return time.process_time() - began


def measure_all() -> Iterator[tuple[Row, float]]:
    """Measure everything once; yield CPU us per message."""
    arrivals = answers()
    for (label, size), (turns, turn) in itertools.product(SIZES.items(), TURNS.items()):
        for way, seconds in zip(WAYS, measure(size, turn, arrivals), strict=True):
            yield (label, turns, way), seconds / (BATCHES * MESSAGES) * 1e6
    for label, size in SIZES.items():
        yield (label, "any", "checksums"), measure_checksums(size) / (BATCHES * MESSAGES) * 1e6


if __name__ == "__main__":
    compare(__doc__, ("message", "partitions", "what"), "us/message", measure_all)
