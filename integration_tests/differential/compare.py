"""Compare two answers field by field; times, ids and the differences that are allowed aside."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage

from integration_tests.differential.calls import BROKER, Call
from integration_tests.differential.drive import Outcome, Target
from tubemq_spark.protocol.errcodes import ErrCode

Flat = Mapping[str, Any]
"""An answer as one value a field, by path: ``messages.0.flag``. What is absent has no entry."""

OPAQUE: Final = frozenset(
    {
        "appendTime",
        "brokerCheckSum",
        "brokerConfigId",
        "configId",
        "messageId",
        "topicMetaInfoId",
        "visitAuthorizedToken",
    }
)
"""Times and ids: that they are there is compared, and whether they are above, at or below 0."""

UNORDERED: Final = frozenset({"topicInfos", "topicMetaInfoList", "brokerInfos", "brokerConfigList"})
"""Lists whose order is that of a Java hash table."""

BYTES_AHEAD: Final = frozenset({"currDataDlt"})
"""How long the messages are together that follow a position."""

_WITHOUT_MESSAGES: Final = frozenset({ErrCode.MOVED, ErrCode.NOT_FOUND})
_SHOWN_CHARACTERS: Final = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One field of two answers that is not the same."""

    call: Call
    path: str
    embedded: Flat
    real: Flat
    """The whole answers."""

    def __str__(self) -> str:
        embedded, real = (_shown(answer.get(self.path)) for answer in (self.embedded, self.real))
        return f"method {self.call.method}, {self.path}: embedded {embedded}, real {real}"


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def compare(call: Call, embedded: Flat, real: Flat, *, unlike_bytes: int = 0) -> list[Difference]:
    """Return the fields that are not the same."""
    return [
        Difference(call, path, embedded, real)
        for path in sorted(embedded.keys() | real.keys())
        if embedded.get(path) != real.get(path)
        and not (path in BYTES_AHEAD and abs(embedded.get(path, 0) - real.get(path, 0)) <= unlike_bytes)
    ]


def flat(call: Call, outcome: Outcome, target: Target) -> Flat:
    """Return an answer's fields, without what only this server can know."""
    if not isinstance(outcome, ProtobufMessage):
        return {
            "status": outcome.status,
            "exception": outcome.exception_name,
            "text": _text(outcome.text, target),
        }
    fields = {"answer": outcome.DESCRIPTOR.name, **dict(_fields("", outcome, target))}
    if _tells_data_end(fields):
        # Where one server refused a message, a filler stands that may be longer or shorter.
        fields["minLimitTime"] -= target.stored_bytes[call.topic, call.store]
    return fields


def _tells_data_end(fields: Flat) -> bool:
    """Whether the time to wait is none, but where the store's data ends, as Java leaves it there."""
    return fields.get("errCode") in _WITHOUT_MESSAGES and fields.get("minLimitTime", 0) > 0


def _fields(prefix: str, message: ProtobufMessage, target: Target) -> Iterator[tuple[str, Any]]:
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        plain = [_plain(field, item, message, target) for item in values]
        if field.name in UNORDERED:
            plain.sort()
        for number, item in enumerate(plain):
            path = f"{prefix}{field.name}" + (f".{number}" if field.is_repeated else "")
            if isinstance(item, ProtobufMessage):
                yield path, "present"
                yield from _fields(f"{path}.", item, target)
            else:
                yield path, item


def _plain(field: FieldDescriptor, value: Any, message: ProtobufMessage, target: Target) -> Any:
    if field.name == "messageId" and message.DESCRIPTOR.name == "TransferedMessage":
        return target.sent.get(value, "never sent")
    if field.name in OPAQUE:
        return (value > 0) - (value < 0)
    if isinstance(value, str):
        is_id = field.name == "errMsg" and value == str(getattr(message, "messageId", ""))
        return "<its message id>" if is_id else _text(value, target)
    return value


def _text(text: str, target: Target) -> str:
    text = text.replace(target.broker, BROKER)
    return re.sub(r"\[([^\[\]]*)\]", _sorted_list, text)


def _sorted_list(listed: re.Match[str]) -> str:
    """Put a Java set into an order: its own is that of a hash table."""
    return f"[{', '.join(sorted(listed[1].split(', ')))}]"


_VARINT, _FIXED_64, _BYTES, _GROUP, _END_OF_GROUP, _FIXED_32 = range(6)
_FIXED_LENGTHS: Final = {_FIXED_64: 8, _FIXED_32: 4, _GROUP: 0, _END_OF_GROUP: 0}
_MOST_32_BITS: Final = (1 << 32) - 1


class _UnreadableError(Exception):
    """Neither of the two reads it."""


class _JavaOnlyError(Exception):
    """Java drops the upper bits of a number, or replaces bytes that are no text."""


def is_for_java_only(data: bytes, message: Descriptor | None) -> bool:
    """Say whether fields hold a tag or a length beyond 32 bits, or a text that is not UTF-8."""
    try:
        _read_fields(data, message)
    except _JavaOnlyError:
        return True
    except _UnreadableError:
        return False
    return False


def _read_fields(data: bytes, message: Descriptor | None) -> None:
    at = 0
    while at < len(data):
        tag, at = _small_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _small_varint(data, at)
            if at + length > len(data):
                raise _UnreadableError
            _check(data[at : at + length], message and message.fields_by_number.get(tag >> 3))
            at += length
        elif kind in _FIXED_LENGTHS:
            at += _FIXED_LENGTHS[kind]
        else:
            raise _UnreadableError


def _check(value: bytes, field: FieldDescriptor | None) -> None:
    if field is not None and field.type == FieldDescriptor.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise _JavaOnlyError from error
    elif field is not None and field.message_type is not None:
        _read_fields(value, field.message_type)


def _small_varint(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    if value > _MOST_32_BITS:
        raise _JavaOnlyError
    return value, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    value = 0
    for count in range(10):
        if at + count >= len(data):
            raise _UnreadableError
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise _UnreadableError
