"""Make calls on a server and remember what later calls need of the answers."""

import dataclasses
import itertools
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import Message as ProtobufMessage

from integration_tests.differential.calls import (
    LAYOUT,
    RESPONSE_TYPES,
    RUN_LENGTH,
    Call,
    Marks,
    body_of,
    known_layout,
)
from tubemq_spark.model import INDEX_ENTRY_BYTES, PARTITIONS_PER_STORE
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ReadStatus, ServiceType
from tubemq_spark.protocol.pb import broker_pb2

_ANSWER_TIMEOUT_S: Final = 15.0
_RECEIVE_BYTES: Final = 1 << 18
_ON_DISK: Final = 101
"""The priority of a consumer that sees only what is on the disk."""

StoreKey = tuple[str, int]
"""A topic, and the number of one of its stores."""


class Line:
    """One connection, on which one call is made at a time; it speaks bytes, so that any can be sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = RpcConnection(Role.CLIENT)

    def call(self, service: int, method: int, body: bytes) -> rpc.Response | rpc.Failure:
        """Send a request and return its answer."""
        self._connection.send_request(service, method, body, int(_ANSWER_TIMEOUT_S * 1000))
        self._socket.sendall(self._connection.data_to_send())
        while True:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionError(f"the server closed the connection at method {method}")
            for event in self._connection.receive_data(data):
                if not isinstance(event, rpc.Request):
                    return event

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


Outcome = ProtobufMessage | rpc.Failure
"""What a server said: a message, or an exception."""


@dataclasses.dataclass
class Target:
    """A server, and what it told: offsets, and numbers that only it knows."""

    name: str
    master: str
    broker: str
    known: dict[str, int] = dataclasses.field(default_factory=dict)
    """By the name of the field it came in."""
    sent: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    """Topic and offset of each message, by its id."""
    stored_bytes: Counter[StoreKey] = dataclasses.field(default_factory=Counter)
    """How long the payloads together are that it has stored since we drive it."""

    def __post_init__(self) -> None:
        self._lines = {"master": Line(self.master), "broker": Line(self.broker)}
        self._probes = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines.values():
            line.close()

    def call(self, call: Call, run: str, ends: Mapping[StoreKey, int]) -> Outcome:
        """Make a call and return what came of it."""
        marks = Marks(run, self.broker, lambda topic, store: ends.get((topic, store), 0), self.known)
        answer = self._lines[call.port].call(call.service, call.method, body_of(call, marks))
        if isinstance(answer, rpc.Failure):
            return answer
        message = rpc.parse_message(RESPONSE_TYPES[answer.method], answer.body)
        self._remember(call, message)
        return message

    def forget_layouts(self) -> None:
        """Forget what it told groups: the next sequence has others by the same marks."""
        self.known = {name: value for name, value in self.known.items() if not name.startswith(LAYOUT)}

    def end(self, key: StoreKey, partition_id: int) -> int:
        """Return where a store ends, by asking as a consumer of a group of its own."""
        name = f"probe{next(self._probes)}"
        request = broker_pb2.RegisterRequestC2B(
            opType=31,
            clientId=name,
            groupName=name,
            topicName=key[0],
            partitionId=partition_id,
            readStatus=ReadStatus.LATEST_ALWAYS,
        )
        answer = self._ask(Method.PARTITION_REGISTER, request)
        return broker_pb2.RegisterResponseB2C.FromString(answer).maxOffset

    def flushed_end(self, key: StoreKey, partition_id: int, end: int) -> int:
        """Return where what is on the disk ends; 0 when the last message is not.

        A consumer that sees only what is on the disk is told so when it reads that message.
        """
        name = f"probe{next(self._probes)}"
        place = {"topicName": key[0], "partitionId": partition_id, "clientId": name, "groupName": name}
        register = {**place, "opType": 31, "readStatus": 0, "currOffset": end - INDEX_ENTRY_BYTES}
        self._ask(
            Method.PARTITION_REGISTER, broker_pb2.RegisterRequestC2B(**register, qryPriorityId=_ON_DISK)
        )
        answer = self._ask(Method.GET_MESSAGE, broker_pb2.GetMessageRequestC2B(**place))
        return broker_pb2.GetMessageResponseB2C.FromString(answer).maxOffset

    def append(self, topic: str, partition_id: int) -> None:
        """Append a message that no sequence looks at."""
        request = broker_pb2.SendMessageRequestP2B(
            clientId="filler",
            topicName=topic,
            partitionId=partition_id,
            data=b"filler",
            flag=0,
            checkSum=-1,
            sentAddr=0,
        )
        self._ask(Method.SEND_MESSAGE, request)
        self.stored_bytes[topic, partition_id // PARTITIONS_PER_STORE] += len(request.data)

    def _ask(self, method: Method, request: ProtobufMessage) -> bytes:
        """Make a sound call at the broker and return the body of its answer."""
        body = request.SerializeToString()
        answer = self._lines["broker"].call(ServiceType.BROKER_READ, method, body)
        assert isinstance(answer, rpc.Response), answer
        return answer.body

    def _remember(self, call: Call, message: ProtobufMessage) -> None:
        for field, value in message.ListFields():
            if field.name in ("brokerCheckSum", "brokerConfigId"):
                self.known[field.name] = value
            elif field.name == "topicMetaInfoId":
                # The Java master counts for each group by itself.
                self.known[known_layout(call.fields["groupName"])] = value
            elif field.name == "appdConfig":
                self.known["configId"] = value.configId
        if isinstance(message, broker_pb2.SendMessageResponseB2P) and message.success:
            self.sent[message.messageId] = (call.topic, message.appendOffset)
            self.stored_bytes[call.topic, call.store] += call.payload_size


@dataclasses.dataclass
class Servers:
    """The Java server and embedded ones, kept alike: all get every call, and their logs stay equal."""

    real: Target
    embedded: Sequence[Target]
    stores: Iterable[StoreKey]

    def __post_init__(self) -> None:
        self._runs = itertools.count()
        self._ends: dict[StoreKey, int] = {}
        self._surplus: Counter[tuple[str, StoreKey]] = Counter()
        self._unlike: Counter[tuple[str, StoreKey]] = Counter()
        self.align()

    @property
    def all(self) -> Sequence[Target]:
        """All servers."""
        return (self.real, *self.embedded)

    def run(self, calls: Iterable[Call]) -> Iterator[tuple[Call, Mapping[str, Outcome]]]:
        """Make a sequence of calls on all servers; yield each with what they said, by their names."""
        run, base = f"{next(self._runs):0{RUN_LENGTH}}", dict(self._ends)
        for target in self.all:
            target.forget_layouts()
        for call in calls:
            said = {target.name: target.call(call, run, base) for target in self.all}
            real = said[self.real.name]
            if isinstance(real, broker_pb2.SendMessageResponseB2P) and real.success:
                self._ends[call.topic, call.store] = real.appendOffset + INDEX_ENTRY_BYTES
            yield call, said

    def unlike_bytes(self, target: Target, key: StoreKey) -> int:
        """Return by how many bytes, at most, equally many messages differ in a store and in the Java one.

        Where one server refused a message, a filler stands that may be longer or shorter.
        """
        return self._unlike[target.name, key]

    def is_flushed(self) -> bool:
        """Say whether all that the servers hold is on the disk."""
        return all(
            target.flushed_end(key, key[1] * PARTITIONS_PER_STORE, end) == end
            for target in self.all
            for key, end in self._ends.items()
        )

    def align(self) -> None:
        """Make the logs equally long again, after a sequence in which the servers did not do the same."""
        for key in self.stores:
            partition_id = key[1] * PARTITIONS_PER_STORE
            ends = {target.name: target.end(key, partition_id) for target in self.all}
            self._ends[key] = max(ends.values())
            for target in self.all:
                for _ in range(ends[target.name], self._ends[key], INDEX_ENTRY_BYTES):
                    target.append(key[0], partition_id)
                surplus = target.stored_bytes[key] - self.real.stored_bytes[key]
                self._unlike[target.name, key] += abs(surplus - self._surplus[target.name, key])
                self._surplus[target.name, key] = surplus
