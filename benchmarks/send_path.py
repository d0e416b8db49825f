"""What a message costs from the columns to the wire, and from the answer to the receipt, by both twins.

    make bench-send-path                    # both twins, in turns
    python benchmarks/send_path.py --rounds 9

The answers are made here; no broker and no network run. Figures are CPU time per message, the best of all
rounds.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.console import Console
from rich.table import Table

from tubemq_spark.client.outgoing import outgoing_batch
from tubemq_spark.client.runs import BrokerLink, Destination, Run
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol import framing, rpc, speedups
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch
from tubemq_spark.protocol.send_connection import SendConnection
from tubemq_spark.protocol.send_frames import SendCredentials, encode_place

MESSAGES: Final = 10_000
BATCHES: Final = 10
RUN: Final = 64
"""Messages that are written together, as the send window does."""
READ_BYTES: Final = 1 << 16
"""What arrives of answers at a time."""
SIZES: Final = {"100 B": 100, "1 KiB": 1024}
TURNS: Final = {"one partition": RUN, "turns of 32": 32, "another each time": 1}
"""How many messages after each other go to the same partition."""
MINUTES: Final = 4
"""How many distinct message times there are in a batch."""
WAYS: Final = ("to the wire", "to the receipt")
screen = Console(stderr=True)


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
        frames.append(framing.encode_frame(serial_no, rpc.encode_response(answer)))
    data = b"".join(frames)
    return [data[start : start + READ_BYTES] for start in range(0, len(data), READ_BYTES)]


def send(connection: SendConnection[Run], batch: SendBatch, targets: Sequence[Destination]) -> None:
    """Encode as a producer does."""
    credentials = SendCredentials(0x0A000001, 1_735_689_600_000)
    for _ in range(BATCHES):
        writable, _ = outgoing_batch(batch)
        backs = writable.backs(credentials)
        for first in range(0, MESSAGES, RUN):
            rows = range(first, min(first + RUN, MESSAGES))
            run = Run(writable, rows, targets[: len(rows)])
            connection.send(run, writable.payloads, backs, rows, run.places())


def receive(connection: SendConnection[Run], arrivals: Sequence[bytes]) -> None:
    """Read answers and count what is stored, as a producer does."""
    for data in arrivals:
        stored, _ = connection.receive_data(data)
        for run, positions, offsets in stored:
            run.size_of(positions)
            run.acknowledge(positions, offsets)
    if len(connection):
        raise SystemExit(f"{len(connection)} messages without answer")


def measure(size: int, turn: int, arrivals: Sequence[bytes]) -> tuple[float, float]:
    """Return CPU seconds to the wire and to the receipt."""
    batch, partitions = batch_of(size), itertools.cycle(destinations())
    targets = [target for _ in range(RUN // turn) for target in [next(partitions)] for _ in range(turn)]
    connection: SendConnection[Run] = SendConnection(10_000)
    began = time.process_time()
    send(connection, batch, targets)
    sent = time.process_time()
    receive(connection, arrivals)
    return sent - began, time.process_time() - sent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    built = speedups.compiled
    twins = {"python": None} | ({"compiled": built} if built is not None else {})
    arrivals = answers()
    best: dict[tuple[str, str, str, str], float] = {}
    for _ in range(arguments.rounds):
        for (label, size), (turns, turn) in itertools.product(SIZES.items(), TURNS.items()):
            for twin, module in twins.items():
                speedups.compiled = module
                for way, seconds in zip(WAYS, measure(size, turn, arrivals), strict=True):
                    key = (label, turns, way, twin)
                    cost = seconds / (BATCHES * MESSAGES) * 1e6
                    best[key] = min(cost, best.get(key, cost))
    show(best, list(twins))
    sys.stdout.write(json.dumps({" / ".join(key): round(cost, 4) for key, cost in best.items()}) + "\n")


def show(best: dict[tuple[str, str, str, str], float], twins: list[str]) -> None:
    """Draw the table."""
    table = Table("message", "partitions", "what", *(f"{twin}, us/message" for twin in twins))
    for row in dict.fromkeys(key[:3] for key in best):
        table.add_row(*row, *(f"{best[*row, twin]:.3f}" for twin in twins))
    screen.print(table)


if __name__ == "__main__":
    main()
