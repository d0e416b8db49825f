"""One request as a plain value, and as the bytes that travel.

A value holds nothing of a run: names that must be new in each run, addresses, numbers that only one
server knows and places relative to a log's end are written as marks, and become real when the call is
made. So a call can be kept in a file and made again, on any pair of servers.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2, master_pb2

RUN: Final = "{run}"
"""In a text: the number of the run, so that groups and clients are new each time."""
RUN_LENGTH: Final = 6
"""How many digits it then has."""
BROKER: Final = "{broker}"
"""In a text: ``host:port`` of the server's broker."""

BAD_TEXT: Final = "\ue0ff"
"""In a text: three bytes that are not UTF-8."""
_BAD_TEXT_BYTES: Final = b"\xff\xfe\xfd"

Plain = Any
"""What JSON can hold. Three kinds of mappings stand for numbers or bytes:

``{"base": n}``: n bytes behind the end that the store of the call's partition had before the sequence,
``{"known": name}``: the number this server last told under that name,
``{"text": t, "times": n}``: bytes.
"""

LAYOUT: Final = "topicMetaInfoId of "


def known_layout(group: str) -> str:
    """Return under which name a group's number of its layout is known."""
    return LAYOUT + group


REQUEST_TYPES: Final[Mapping[int, type[ProtobufMessage]]] = {
    Method.PRODUCER_REGISTER: master_pb2.RegisterRequestP2M,
    Method.PRODUCER_HEARTBEAT: master_pb2.HeartRequestP2M,
    Method.PRODUCER_CLOSE: master_pb2.CloseRequestP2M,
    Method.CONSUMER_REGISTER: master_pb2.RegisterRequestC2M,
    Method.CONSUMER_HEARTBEAT: master_pb2.HeartRequestC2M,
    Method.CONSUMER_CLOSE: master_pb2.CloseRequestC2M,
    Method.BALANCE_REGISTER: master_pb2.RegisterRequestC2MV2,
    Method.BALANCE_HEARTBEAT: master_pb2.HeartRequestC2MV2,
    Method.BALANCE_PARTITION_META: master_pb2.GetPartMetaRequestC2M,
    Method.SEND_MESSAGE: broker_pb2.SendMessageRequestP2B,
    Method.PARTITION_REGISTER: broker_pb2.RegisterRequestC2B,
    Method.PARTITION_HEARTBEAT: broker_pb2.HeartBeatRequestC2B,
    Method.GET_MESSAGE: broker_pb2.GetMessageRequestC2B,
    Method.COMMIT_OFFSET: broker_pb2.CommitOffsetRequestC2B,
}

RESPONSE_TYPES: Final[Mapping[int, type[ProtobufMessage]]] = {
    Method.PRODUCER_REGISTER: master_pb2.RegisterResponseM2P,
    Method.PRODUCER_HEARTBEAT: master_pb2.HeartResponseM2P,
    Method.PRODUCER_CLOSE: master_pb2.CloseResponseM2P,
    Method.CONSUMER_REGISTER: master_pb2.RegisterResponseM2C,
    Method.CONSUMER_HEARTBEAT: master_pb2.HeartResponseM2C,
    Method.CONSUMER_CLOSE: master_pb2.CloseResponseM2C,
    Method.BALANCE_REGISTER: master_pb2.RegisterResponseM2CV2,
    Method.BALANCE_HEARTBEAT: master_pb2.HeartResponseM2CV2,
    Method.BALANCE_PARTITION_META: master_pb2.GetPartMetaResponseM2C,
    Method.SEND_MESSAGE: broker_pb2.SendMessageResponseB2P,
    Method.PARTITION_REGISTER: broker_pb2.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: broker_pb2.HeartBeatResponseB2C,
    Method.GET_MESSAGE: broker_pb2.GetMessageResponseB2C,
    Method.COMMIT_OFFSET: broker_pb2.CommitOffsetResponseB2C,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request to one of a server's two ports."""

    port: str
    """``master`` or ``broker``."""
    service: int
    method: int
    fields: Mapping[str, Plain] = dataclasses.field(default_factory=dict)
    """Of the method's request message; what is absent here is not sent."""
    cut: int = 0
    """So many bytes are missing at the body's end."""
    tail: str = ""
    """Bytes behind the body, in hexadecimal."""

    @property
    def topic(self) -> str:
        """The topic it names, without the blanks that both servers ignore."""
        name = self.fields.get("topicName", "")
        return name.strip() if isinstance(name, str) else ""

    @property
    def store(self) -> int:
        """The number of the store of the partition it names."""
        partition = self.fields.get("partitionId", 0)
        return int(partition) // PARTITIONS_PER_STORE

    @property
    def payload_size(self) -> int:
        """How long the payload is that it sends."""
        data = self.fields.get("data", {"text": "", "times": 0})
        return len(data["text"].encode("latin-1")) * data["times"]

    def plain(self) -> dict[str, Plain]:
        """Return it as JSON can hold it; what is as usual is left out."""
        fields = {name: getattr(self, name) for name in ("port", "service", "method", "fields")}
        return fields | {name: value for name in ("cut", "tail") if (value := getattr(self, name))}

    def with_fields(self, **changed: Plain) -> "Call":
        """Return the call with some fields otherwise."""
        return dataclasses.replace(self, fields={**self.fields, **changed})

    def without(self, name: str) -> "Call":
        """Return the call with one field not sent."""
        return dataclasses.replace(
            self, fields={key: value for key, value in self.fields.items() if key != name}
        )


def call_of(plain: Mapping[str, Plain]) -> Call:
    """Return what ``Call.plain`` gave."""
    return Call(**plain)


@dataclasses.dataclass(frozen=True, slots=True)
class Marks:
    """What a call's marks stand for, on one server at one moment."""

    run: str
    broker: str
    base: Callable[[str, int], int]
    """The end a store had before the sequence, by topic and number."""
    known: Mapping[str, int]


def body_of(call: Call, marks: Marks) -> bytes:
    """Return the bytes of a call's request message; required fields may be missing."""
    message_type = REQUEST_TYPES.get(call.method)
    body = b""
    if message_type is not None:
        message = message_type()
        _fill(message, call.fields, lambda value: _value(value, call, marks))
        body = message.SerializePartialToString()
    body = body.replace(BAD_TEXT.encode(), _BAD_TEXT_BYTES)
    return body[: len(body) - min(call.cut, len(body))] + bytes.fromhex(call.tail)


def _fill(message: ProtobufMessage, fields: Mapping[str, Plain], value_of: Callable[[Plain], Any]) -> None:
    for name, value in fields.items():
        if message.DESCRIPTOR.fields_by_name[name].type == FieldDescriptor.TYPE_MESSAGE:
            nested = getattr(message, name)
            nested.SetInParent()
            _fill(nested, value, value_of)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(message, name).extend([value_of(item) for item in value])
        else:
            setattr(message, name, value_of(value))


def _value(value: Plain, call: Call, marks: Marks) -> Any:
    if isinstance(value, str):
        return value.replace(RUN, marks.run).replace(BROKER, marks.broker)
    if not isinstance(value, Mapping):
        return value
    if "base" in value:
        return marks.base(call.topic, call.store) + value["base"]
    if "known" in value:
        return marks.known.get(value["known"], -2)
    return value["text"].encode("latin-1") * value["times"]


Place = tuple[str, int]
"""A topic and a partition's number."""

DENSE: Final = "dense"
SHARED: Final = "shared"
UNTOUCHED: Final = "untouched"
LONGEST: Final = "longest"
TOPICS: Final = {DENSE: (1, 1), SHARED: (2, 3), UNTOUCHED: (1, 1), LONGEST: (1, 1)}
"""Stores, and partitions a store: dense offsets, partitions that share a log, one that stays empty, and one
for messages that the Java broker takes and does not give back."""
HISTORY_TOPIC: Final = "__offset_history__"

FILED_DENSE: Final = "filed_dense"
FILED_SHARED: Final = "filed_shared"
FILED_TOPICS: Final = {FILED_DENSE: (1, 1), FILED_SHARED: (2, 3)}
"""The same shapes, for messages that are in the files before anybody reads them."""

PARTITIONS: Final = (
    (DENSE, 0),
    *((SHARED, 10_000 * store + index) for store in (0, 1) for index in (0, 1, 2)),
)
WRONG_PLACES: Final = (
    (DENSE, 1),
    (DENSE, -1),
    (DENSE, 10_000),
    (SHARED, 3),
    (SHARED, 20_000),
    (SHARED, -10_000),
    ("nowhere", 0),
    (HISTORY_TOPIC, 0),
)

MAX_MESSAGE_BYTES: Final = (1 << 20) + 10_240
"""What both brokers take of a topic without a size of its own."""

CLIENTS: Final = tuple(f"client_{RUN}_{name}" for name in "ab")
GROUPS: Final = tuple(f"group_{RUN}_{name}" for name in "xy")
