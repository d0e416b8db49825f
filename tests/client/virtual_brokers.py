"""Brokers without sockets or real time, for the send window: a script decides each request's fate."""

import asyncio
import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import PublishRoutes
from tubemq_spark.client.producer.links import BrokerLink, BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Partitioner, PublishedTopic
from tubemq_spark.client.producer.runs import Destination, Run, runs
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import Payloads, SendCredentials, encode_place

LATENCY_S = 0.001


@dataclasses.dataclass(frozen=True)
class Fate:
    """What happens to one request (or, for ``unreachable``, to one connection)."""

    stored: bool = True
    code: int = 200
    answered: bool = True
    lost: bool = False
    delay_s: float = LATENCY_S
    unreachable: bool = False


GOOD = Fate()


class VirtualStream:
    """A ``SendStream`` to one of the brokers."""

    def __init__(self, net: "VirtualBrokers", endpoint: Endpoint, owner: SendWindow) -> None:
        self.endpoint = endpoint
        self.closed = self.dying = self.untouched = False
        self.connecting = True
        self.unsent_bytes = 0
        self.core = RpcConnection(Role.SERVER)
        self._net, self._owner = net, owner
        self._received = b""
        self._report_at = 1

    @property
    def writable(self) -> bool:
        return not self.connecting and not self.closed and not self.unsent_bytes

    def write(self, data: bytes) -> None:
        net = self._net
        net.written[self.endpoint.port] += len(data)
        self.untouched = self.endpoint.port in net.stuck
        if self.untouched:
            self.unsent_bytes = len(data)
        elif net.bytes_per_s:
            self.unsent_bytes = len(data)
            self._leave(data)
        else:
            self._arrive(data)

    def report_at(self, count: int) -> None:
        self._report_at = count
        if len(self._received) >= count:
            asyncio.get_running_loop().call_soon(self.report)

    def report(self) -> None:
        """Tell the owner what was received, if that is enough."""
        self._received += self.core.data_to_send()
        if self._received and len(self._received) >= self._report_at and not self.closed:
            received, self._received = self._received, b""
            self._net.read[self.endpoint.port] += len(received)
            self._owner.stream_received(self, received)

    def establish(self) -> None:
        """Mark the connection as made, and tell the owner."""
        self.connecting = False
        if not self.closed:
            self._owner.stream_writable(self)

    def lose(self, cause: str) -> None:
        if not self.closed:
            self._owner.stream_lost(self, self.fail(cause))

    def close(self) -> None:
        self.closed = True

    def fail(self, cause: str) -> TubeMQConnectionError:
        self.closed = True
        return TubeMQConnectionError(
            "TUBEMQ_CONNECTION_LOST", endpoint=self.endpoint, during="testing", cause=cause
        )

    def _leave(self, data: bytes) -> None:
        piece = data[:4096]

        def left() -> None:
            if not self.closed:
                self.unsent_bytes -= len(piece)
                self._arrive(piece)
                if data[4096:]:
                    self._leave(data[4096:])
                else:
                    self._owner.stream_writable(self)

        asyncio.get_running_loop().call_later(len(piece) / self._net.bytes_per_s, left)

    def _arrive(self, data: bytes) -> None:
        for request in self.core.receive_data(data):
            self._net.receive(self, request)


def batch_of(values: Sequence[bytes], keys: Sequence[bytes | None] | None = None) -> OutgoingBatch:
    """Return messages of one topic."""
    ends = [0, *itertools.accumulate(map(len, values))]
    payloads = Payloads(BytesColumn.of(values), BytesColumn.of([b""]), np.zeros(len(values), np.int64))
    return OutgoingBatch(["demo"] * len(values), payloads, [MessageHeader()], ends, keys, checksums=True)


class VirtualBrokers:
    """The streams of a window, and the destinations of one topic."""

    def __init__(self, fate: Callable[[int], Fate], brokers: int = 1, partitions: int = 1) -> None:
        self.links = BrokerLinks(10_000, detailed=True)
        self.credentials = SendCredentials(0)
        self.heartbeats = 1
        self.master_away = False
        """Whether heartbeats are not answered."""
        self.unreachable: set[int] = set()
        """Brokers that nothing connects to, by their ports."""
        self.frozen: set[int] = set()
        """Brokers that take requests and do nothing with them."""
        self.slow: set[int] = set()
        """Brokers that answer after 0.2 seconds."""
        self.refusing: dict[int, int] = {}
        """The codes of brokers that store nothing."""
        self.stuck: set[int] = set()
        """Brokers whose connections take no bytes."""
        self.nowhere = ""
        """Why the master names no partition."""
        self.bytes_per_s = 0.0
        """How fast a connection is; 0: as fast as you like."""
        self.fate = fate
        self.stored: list[tuple[TopicPartition, bytes]] = []
        self.attempts: collections.Counter[bytes] = collections.Counter()
        self.written: collections.Counter[int] = collections.Counter()
        self.read: collections.Counter[int] = collections.Counter()
        """How many bytes connections took and brought, by brokers' ports."""
        self.requests = self.refreshed = 0
        self.streams: list[VirtualStream] = []
        self.serial_nos: list[int] = []
        self.most_unanswered = self._unanswered = 0
        targets = [
            Destination(
                TopicPartition("demo", broker, partition),
                self.broker(broker),
                encode_place("id", "demo", partition),
            )
            for broker in range(1, brokers + 1)
            for partition in range(partitions)
        ]
        self.partitioner = Partitioner(targets, 0)
        self.topic = PublishedTopic("demo", PublishRoutes({}, 1 << 20), self.partitioner, self.links)

    @property
    def connections(self) -> int:
        return len(self.streams)

    def window(self, **settings: int | bool) -> SendWindow:
        """Return a window over these brokers."""
        settings = {"rpc_timeout_ms": 500, "delivery_timeout_ms": 60_000, **settings}
        config = ClientConfig(masters=(Endpoint("m", 1),), group="test", **settings)
        log = SendLog("test", asyncio.get_running_loop().time)
        return SendWindow(config, self, self.links, self, log, lambda call: call())

    def broker(self, port: int) -> BrokerLink:
        return self.links.to(port, Endpoint("b", port))

    def choose(self, key: bytes | None = None) -> Destination:
        return self.topic.choose(None, b"") if key is None else self.partitioner.by_key(key)

    def message(self, value: bytes, key: bytes | None = None) -> Run:
        return Run(batch_of([value], [key]), (0,), (self.choose(key),))

    async def send(
        self, window: SendWindow, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None
    ) -> None:
        """Submit a batch as there is room."""
        keys = keys or [None] * len(values)
        batch, first = batch_of(values, keys), 0
        while first < len(values):
            after = first + await window.room(batch.ends, first)
            window.submit(runs(batch, first, [self.choose(key) for key in keys[first:after]]))
            first = after

    # What the window asks of its streams.

    def connect(self, endpoint: Endpoint, owner: SendWindow) -> VirtualStream:
        stream, loop = VirtualStream(self, endpoint, owner), asyncio.get_running_loop()
        self.streams.append(stream)
        fate = self.fate(self.requests)
        self.requests += fate.unreachable
        if fate.unreachable or endpoint.port in self.unreachable:
            loop.call_later(LATENCY_S, stream.lose, "refused")
        else:
            loop.call_later(LATENCY_S, stream.establish)
        return stream

    # What the window asks of the destinations.

    def follow(self) -> None: ...

    def partitioner_call(self, _: Run) -> None: ...

    def redirect(self, message: Run) -> str:
        if message.key is None and not self.nowhere:
            self.partitioner.leave(message.destination)
            message.destinations = (self.choose(),)
        return self.nowhere

    def refresh(self) -> None:
        self.refreshed += 1
        if not self.master_away:
            self.heartbeats += 1
            self.credentials = SendCredentials(0, self.heartbeats)

    @property
    def next_heartbeat(self) -> int:
        return self.heartbeats + 1

    # The brokers.

    def receive(self, stream: VirtualStream, request) -> None:
        message = broker_pb2.SendMessageRequestP2B.FromString(request.body)
        fate, port = self.fate(self.requests), stream.endpoint.port
        if port in self.refusing:
            fate = Fate(stored=False, code=self.refusing[port])
        self.requests += 1
        self.serial_nos.append(request.serial_no)
        self.attempts[message.data] += 1
        self._unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self._unanswered)
        if stream.dying or port in self.frozen:
            return  # a broker takes requests in order: behind one that it never took, it takes none
        stream.dying = fate.lost
        answer = broker_pb2.SendMessageResponseB2P(success=fate.code == 200, errCode=fate.code, errMsg="text")
        offset, loop = 28 * len(self.stored), asyncio.get_running_loop()
        if fate.stored:
            self.stored.append((TopicPartition("demo", port, message.partitionId), message.data))
        if fate.code == 200:
            answer.appendOffset = offset
            answer.messageId, answer.appendTime = 1_000 + offset, int(loop.time() * 1_000)

        def answer_it() -> None:
            self._unanswered -= 1
            if fate.lost:
                stream.lose("reset")
            elif fate.answered and not stream.closed:
                stream.core.send_response(request, answer.SerializeToString())
                stream.report()

        loop.call_later(0.2 if port in self.slow else fate.delay_s, answer_it)
