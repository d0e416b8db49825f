"""What Java's protobuf reads and Python's refuses, told by a reader of fields that is neither of the two."""

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

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
