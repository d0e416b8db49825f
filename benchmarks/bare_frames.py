"""Sends frames that were encoded before and counts their answers; for the bound of what a broker takes.

``produce.py`` runs it as a process of its own. It sleeps until about a quarter of the answers that are to
come are there, so nearly all of its CPU is the kernel's. The line of JSON that it prints is that of
``bare_producer.py``.
"""

import argparse
import json
import socket
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bare_producer import BATCH_ROWS, batch, values
from testkit.connections import opened_connections
from tubemq_spark.client import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import outgoing_batch
from tubemq_spark.client.producer.routing import Destinations, Routing
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import FRAME_TOKEN
from tubemq_spark.protocol.send_connection import SendConnection

PIECE: Final = 128
"""Messages per write, as our producer makes its runs."""
RECEIVE_BYTES: Final = 1 << 16
LEAST_ANSWER_BYTES: Final = 16
"""A quarter of what an answer has."""
MARK: Final = FRAME_TOKEN.to_bytes(4, "big")
"""What each answer begins with."""
STORED: Final = b"\x08\x01\x10\xc8\x01\x1a"
"""SendMessageResponseB2P{success=true, errCode=200, errMsg=: no refusal begins so."""


async def follow(destinations: Destinations) -> None:
    """Take over what the master told, in the thread of the loop."""
    destinations.follow()


def pieces(config: ClientConfig, destinations: Destinations, to: Destination, size: int) -> list[bytes]:
    """Return frames of messages to one partition, ``PIECE`` in each text."""
    bodies = values(size, BATCH_ROWS - BATCH_ROWS % PIECE)
    ready, _ = outgoing_batch(batch(to.partition.topic, bodies, 1, full=False))
    connection: SendConnection[None] = SendConnection(config.rpc_timeout_ms)
    backs = ready.backs(destinations.credentials)
    return [
        connection.send(None, ready.payloads, backs, range(first, first + PIECE), [(to.place, PIECE)])
        for first in range(0, len(ready), PIECE)
    ]


def send(broker: socket.socket, frames: list[bytes], count: int, most_in_flight: int) -> tuple[int, int]:
    """Send pieces until there are ``count`` messages or more; return how many are stored, and refused."""
    sent = answered = stored = 0
    seen = b""
    while answered < max(sent, count):
        while sent < count and sent - answered <= most_in_flight - PIECE:
            broker.sendall(frames[sent // PIECE % len(frames)])
            sent += PIECE
        # Less than what is sure to come: of one answer, the beginning may have been read.
        sure = 1 + (sent - answered - 1) * LEAST_ANSWER_BYTES
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, sure)
        data = broker.recv(RECEIVE_BYTES)
        answered += (seen[1 - len(MARK) :] + data).count(MARK)
        stored += (seen[1 - len(STORED) :] + data).count(STORED)
        seen = (seen + data)[-len(STORED) :]
    return stored, answered - stored


def main() -> None:
    """Send, and print how many answers there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="of each message")
    parser.add_argument("--in-flight", type=int, help="messages at most; by default those of our producer")
    arguments = parser.parse_args()
    config = ClientConfig((Endpoint.parse(arguments.master),), "bare_frames")
    with opened_connections(config.connect_timeout_ms) as connections:
        session = ProducerSession(config, connections)
        destinations = Destinations(session, BrokerLinks(config.rpc_timeout_ms))
        routing = Routing(config, connections, session, destinations, SendLog("bare frames"))
        try:
            to = loop.run(routing.place(arguments.topic, None)).topic.choose(None, b"")
            loop.run(follow(destinations))
            frames = pieces(config, destinations, to, arguments.size)
            with socket.create_connection((to.link.endpoint.host, to.link.endpoint.port)) as broker:
                broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stored, refused = send(
                    broker, frames, arguments.count, arguments.in_flight or config.max_in_flight
                )
        finally:
            loop.run(routing.close())
    sys.stdout.write(
        json.dumps({"accepted": stored, "refused": refused, "retried": 0, "unanswered": 0}) + "\n"
    )


if __name__ == "__main__":
    main()
