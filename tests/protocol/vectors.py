"""The frames recorded from TubeMQ's Java code, ready for use in tests."""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tubemq_spark.protocol.pb import broker_pb2, common_pb2, master_pb2

PATH = Path(__file__).resolve().parent.parent / "vectors" / "wire.json"
DOCUMENT: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
VECTORS: list[dict[str, Any]] = DOCUMENT["vectors"]


def frame_of(vector: dict[str, Any]) -> bytes:
    """Return the recorded TCP bytes."""
    return bytes.fromhex(vector["frameHex"])


def named(name: str) -> dict[str, Any]:
    """Return one vector."""
    (found,) = (vector for vector in VECTORS if vector["name"] == name)
    return found


def message_type(name: str) -> type[Message]:
    """Return the generated class of a message."""
    for module in (broker_pb2, common_pb2, master_pb2):
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(name)


def build(message: Message, fields: dict[str, Any]) -> Message:
    """Set the fields a vector describes; bytes are written as ``{hex, ascii}`` there."""
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            _set(message, name, item, repeated=isinstance(value, list))
    return message


def _set(message: Message, name: str, item: Any, *, repeated: bool) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    place = getattr(message, name)
    if field.message_type is not None:
        target = place.add() if repeated else place
        target.SetInParent()
        build(target, item)
        return
    plain = bytes.fromhex(item["hex"]) if isinstance(item, dict) else item
    if repeated:
        place.append(plain)
    else:
        setattr(message, name, plain)
