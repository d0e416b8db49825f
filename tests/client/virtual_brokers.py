"""Brokers without sockets or real time, for the send window: a script decides each request's fate."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from tubemq_spark.client.master.producers import PublishRoutes
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.outgoing import OutgoingBatch
from tubemq_spark.client.producer.partitioner import Partitioner, PublishedTopic
from tubemq_spark.client.producer.runs import Destination, Run
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import Payloads, SendCredentials, encode_place

LATENCY_S = 0.001
TICK_S = 0.000_001
"""Every call takes some time; without it, rounding could make the clock stand."""


@dataclasses.dataclass(frozen=True)
class Fate:
    """What happens to one request (or, for ``unreachable``, to one connection)."""

    stored: bool = True
    code: int = 200
    answered: bool = True
    lost: bool = False
    delay_s: float = LATENCY_S
    unreachable: bool = False


class VirtualPipeline:
    """Looks like ``net.pipeline.Pipeline`` to the window."""

    def __init__(self, net: "VirtualBrokers", endpoint: Endpoint, reachable: bool) -> None:
        self.endpoint = endpoint
        self.closed = False
        self.connecting = True
        self.dying = False
        self.untouched = False
        self.unsent_bytes = 0
        self.core = RpcConnection(Role.SERVER)
        self._received = b""
        self._report_at = 1
        self._net = net
        net.after(LATENCY_S, self._connected if reachable else self._refused)

    @property
    def writable(self) -> bool:
        return not self.connecting and not self.closed and not self.unsent_bytes

    def write(self, data: bytes) -> None:
        self._net.write(self, data)

    def report_at(self, count: int) -> None:
        self._report_at = count

    def read(self) -> bytes:
        """Return what the peer has sent, if that is enough."""
        self._received += self.core.data_to_send()
        if len(self._received) < self._report_at:
            return b""
        received, self._received = self._received, b""
        return received

    def take(self, data: bytes) -> None:
        for request in self.core.receive_data(data):
            self._net.receive(self, request)

    def fail(self, cause: str) -> TubeMQConnectionError:
        self.closed = True
        return TubeMQConnectionError(
            "TUBEMQ_CONNECTION_LOST", endpoint=self.endpoint, during="testing", cause=cause
        )

    def _connected(self) -> None:
        self.connecting = False
        self._net.woken = True

    def _refused(self) -> None:
        self._net.arrived.append((self, self.fail("refused")))


def batch_of(values: Sequence[bytes], key: bytes | None = None) -> OutgoingBatch:
    """Messages of one topic; they have all this key or none."""
    ends = [0, *itertools.accumulate(map(len, values))]
    payloads = Payloads(BytesColumn.of(values), BytesColumn.of([b""]), np.zeros(len(values), np.int64))
    return OutgoingBatch(
        ["demo"] * len(values), payloads, [MessageHeader()], ends, [key] * len(values), checksums=True
    )


class VirtualBrokers:
    """Looks like ``net.pipeline.Pipelines``, and like the destinations of one topic, to the window."""

    def __init__(self, fate: Callable[[int], Fate], brokers: int = 1, partitions: int = 1) -> None:
        self.now = 100.0
        self.links = BrokerLinks(10_000, detailed=True)
        self.credentials = SendCredentials(0)
        self.heartbeats = 1
        self.master_away = False
        """Whether heartbeats are not answered."""
        self.frozen: set[int] = set()
        """Brokers that take requests and do nothing with them."""
        self.refusing: dict[int, int] = {}
        """The codes of brokers that store nothing, by their ports."""
        self.stuck: set[int] = set()
        """Brokers whose connections take no bytes."""
        self.nowhere = ""
        """Why the master names no partition."""
        self.bytes_per_s = 0.0
        """How fast a connection is; 0: as fast as you like."""
        self.stored: list[tuple[TopicPartition, bytes]] = []
        self.attempts: collections.Counter[bytes] = collections.Counter()
        self.requests = 0
        self.serial_nos: list[int] = []
        """Those of all requests."""
        self.connections = 0
        self.woken = False
        """Whether a connection was made, which a selector reports."""
        self.closed = False
        self.most_unanswered = 0
        self.refreshed = 0
        self.arrived: list[tuple[VirtualPipeline, bytes | TubeMQConnectionError]] = []
        self._fate = fate
        self._unanswered = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._pipelines: list[VirtualPipeline] = []
        targets = [
            Destination(
                TopicPartition("demo", broker, partition),
                self.links.to(broker, Endpoint("b", broker)),
                encode_place("id", "demo", partition),
            )
            for broker in range(1, brokers + 1)
            for partition in range(partitions)
        ]
        self.partitioner = Partitioner(targets, 0)
        self.topic = PublishedTopic("demo", PublishRoutes({}, 1 << 20), self.partitioner, self.links)

    def clock(self) -> float:
        return self.now

    def message(self, value: bytes, key: bytes | None = None) -> Run:
        return Run(batch_of([value], key), (0,), (self.choose(key),))

    def choose(self, key: bytes | None = None) -> Destination:
        if key is None:
            return self.topic.choose(key, b"")
        return self.partitioner.by_key(key)

    # What the window asks of the network.

    def connect(self, endpoint: Endpoint) -> VirtualPipeline:
        self.connections += 1
        fate = self._fate(self.requests)
        if fate.unreachable:
            self.requests += 1
        self._pipelines.append(VirtualPipeline(self, endpoint, reachable=not fate.unreachable))
        return self._pipelines[-1]

    def drive(self, timeout_s: float) -> list[tuple[VirtualPipeline, bytes | TubeMQConnectionError]]:
        assert not self.closed
        until = self.now + timeout_s
        self.woken = False
        while self._events and not self.arrived and not self.woken and self._events[0][0] <= until:
            self.now, _, happen = self._events.pop(0)
            happen()
        for pipeline in self._pipelines:
            if not pipeline.closed and (data := pipeline.read()):
                self.arrived.append((pipeline, data))
        if not self.arrived and not self.woken:
            self.now = max(until, self.now + TICK_S)
        arrived, self.arrived = self.arrived, []
        return arrived

    def close(self) -> None:
        self.closed = True

    # What the window asks of the destinations.

    def follow(self) -> None: ...

    def redirect(self, message: Run) -> str:
        if message.key is None and not self.nowhere:
            self.partitioner.end_turn(message.destination)
            message.destinations = (self.topic.choose(None, b""),)
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

    def write(self, pipeline: VirtualPipeline, data: bytes) -> None:
        pipeline.untouched = pipeline.endpoint.port in self.stuck
        if pipeline.untouched:
            pipeline.unsent_bytes = len(data)
        elif self.bytes_per_s:
            pipeline.unsent_bytes = len(data)
            self._leave(pipeline, data)
        else:
            pipeline.take(data)

    def _leave(self, pipeline: VirtualPipeline, data: bytes) -> None:
        piece = min(len(data), 4096)

        def left() -> None:
            if not pipeline.closed:
                pipeline.unsent_bytes -= piece
                pipeline.take(data[:piece])
                if data[piece:]:
                    self._leave(pipeline, data[piece:])

        self.after(piece / self.bytes_per_s, left)

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        self._events.append((self.now + delay_s, len(self._events), happen))
        self._events.sort(key=lambda event: event[0])

    def receive(self, pipeline: VirtualPipeline, request) -> None:
        message = broker_pb2.SendMessageRequestP2B.FromString(request.body)
        fate = self._fate(self.requests)
        if (code := self.refusing.get(pipeline.endpoint.port)) is not None:
            fate = Fate(stored=False, code=code)
        self.requests += 1
        self.serial_nos.append(request.serial_no)
        self.attempts[message.data] += 1
        self._unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self._unanswered)
        offset = 28 * len(self.stored)
        if pipeline.dying or pipeline.endpoint.port in self.frozen:
            return  # a broker takes requests in order: behind one that it never took, it takes none
        pipeline.dying = fate.lost
        if fate.stored:
            partition = TopicPartition("demo", pipeline.endpoint.port, message.partitionId)
            self.stored.append((partition, message.data))
        answer = broker_pb2.SendMessageResponseB2P(success=fate.code == 200, errCode=fate.code, errMsg="text")
        if fate.code == 200:
            answer.appendOffset = offset
            answer.messageId, answer.appendTime = 1_000 + offset, int(self.now * 1_000)
        body = answer.SerializeToString()

        def answer_it() -> None:
            self._unanswered -= 1
            if pipeline.closed:
                return
            if fate.lost:
                self.arrived.append((pipeline, pipeline.fail("reset")))
            elif fate.answered:
                pipeline.core.send_response(request, body)

        self.after(fate.delay_s, answer_it)
