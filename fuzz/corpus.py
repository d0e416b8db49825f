"""Requests to start from: recorded ones, and one per method with meaningful values."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import METHODS_OF, Method, ServiceType
from tubemq_spark.protocol.messages import MESSAGES

VECTORS: Final = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "wire.json"

TOPICS: Final = {"fuzz_one": (1, 1), "fuzz_many": (2, 3)}
"""The topics of the server: their stores, and the partitions per store."""

_TIMEOUT_MS: Final = 10_000
_ADDRESS: Final = "1:127.0.0.1:8123"
ODD_TEXTS: Final = (
    *TOPICS,
    "fuzz_group",
    "fuzz_client",
    "",
    " ",
    "none_such",
    _ADDRESS,
    f"{_ADDRESS}#fuzz_one:0",
    f"{_ADDRESS}#fuzz_many:10002",
    f"fuzz_client@fuzz_group#{_ADDRESS}#fuzz_one:0",
    "fuzz_one#kind,other",
    "fuzz_one#28",
    "a" * 2000,
    "ä€😀",
    "1:2:3#4,5;6@7|8",
)
ODD_NUMBERS: Final = (
    0,
    1,
    2,
    3,
    10_000,
    10_002,
    28,
    280,
    303,
    31,
    32,
    -1,
    -2,
    1 << 31,
    (1 << 31) - 1,
    -(1 << 31),
)
_INT32: Final = FieldDescriptor.CPPTYPE_INT32
_MESSAGE: Final = FieldDescriptor.CPPTYPE_MESSAGE


@dataclasses.dataclass(frozen=True, slots=True)
class Seed:
    """A valid request, and the port it belongs to."""

    port: str
    """``master`` or ``broker``."""
    service: int
    method: int
    body: bytes

    def frame(self, serial_no: int) -> bytes:
        """Return the request as it is sent."""
        request = rpc.Request(serial_no, self.service, self.method, _TIMEOUT_MS, self.body)
        return framing.encode_frame(serial_no, rpc.encode_request(request))


def recorded() -> list[Seed]:
    """Return the requests among the frames recorded from TubeMQ's Java code."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]
    seeds = []
    for vector in vectors:
        if vector["kind"] == "request":
            (frame,) = framing.FrameDecoder().receive_data(bytes.fromhex(vector["frameHex"]))
            request = rpc.decode_request(frame.serial_no, frame.stream)
            seeds.append(Seed(_port(request.method), request.service, request.method, request.body))
    return seeds


def made(chance: random.Random) -> list[Seed]:
    """Return a request of every method, with different values each time."""
    return [
        Seed(
            _port(method),
            _service(method),
            method,
            _filled(pair.request(), chance).SerializePartialToString(),
        )
        for method, pair in MESSAGES.items()
    ]


def _port(method: int) -> str:
    return "master" if method in METHODS_OF[ServiceType.MASTER] else "broker"


def _service(method: Method) -> ServiceType:
    return next(service for service, methods in METHODS_OF.items() if method in methods)


def _filled(message: Message, chance: random.Random) -> Message:
    required = message.FindInitializationErrors()
    for field in message.DESCRIPTOR.fields:
        if field.name not in required and chance.random() < 0.3:
            continue
        if rpc.is_repeated(field):
            for _ in range(chance.randint(0, 3)):
                _add(message, field, chance)
        elif field.cpp_type == _MESSAGE:
            getattr(message, field.name).SetInParent()
            _filled(getattr(message, field.name), chance)
        else:
            setattr(message, field.name, _value(field, chance))
    return message


def _add(message: Message, field: FieldDescriptor, chance: random.Random) -> None:
    place = getattr(message, field.name)
    if field.cpp_type == _MESSAGE:
        _filled(place.add(), chance)
    else:
        place.append(_value(field, chance))


def _value(field: FieldDescriptor, chance: random.Random) -> str | bytes | int:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 1, 10, 1000, 20_000)))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text(field.name, chance)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    number = _number(field.name, chance)
    bits = 31 if field.cpp_type == _INT32 else 63
    return max(-(1 << bits), min(number, (1 << bits) - 1))


def _text(name: str, chance: random.Random) -> str:
    """Return a text, often one that a field with this name should have."""
    usual = {
        "topicName": "fuzz_one",
        "topicList": "fuzz_one",
        "groupName": "fuzz_group",
        "clientId": "fuzz_client",
    }
    if name in usual and chance.random() < 0.7:
        return usual[name]
    return chance.choice(ODD_TEXTS)


def _number(name: str, chance: random.Random) -> int:
    usual = {"partitionId": 0, "opType": 31, "readStatus": 0, "checkSum": -1, "sourceCount": -2, "nodeId": -2}
    if name in usual and chance.random() < 0.7:
        return usual[name]
    return chance.choice((*ODD_NUMBERS, chance.getrandbits(63)))
