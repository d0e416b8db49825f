"""A message's payload: attributes in front of the body, flag and checksum.

``flag`` bit 0 set: 4-byte big-endian length, that many bytes of attributes (UTF-8), body. Not set: body only
(SimpleMessageProducer.encodePayload and DataConverterUtil.convertMessage of TubeMQ).
"""

import dataclasses
import functools
import ipaddress
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tubemq_spark.errors import OptionError, RemoteProtocolError
from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY

FLAG_ATTRIBUTES: Final = 1
"""Bit of ``flag``: the payload starts with attributes. The other bits mean nothing."""

GROUP_NAME_KEY: Final = "$groupName$"
"""Reserved as well: TubeMQ uses it in the messages of its topic ``__offset_history__``."""

RESERVED_NAMES: Final = (MSG_TYPE_KEY, MSG_TIME_KEY, GROUP_NAME_KEY)
"""TubeMQ's own names; its clients look for them anywhere in an attribute."""
_LENGTH: Final = struct.Struct(">i")
_MESSAGE_TIME: Final = re.compile(
    r"[0-9]{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3])[0-5][0-9]"
)
_CACHED_SYSTEM_TEXTS: Final = 4096
"""How many pairs of type and time are remembered: they repeat from message to message."""
_HASH_MODULUS: Final = 1 << 32


class Payload(NamedTuple):
    """What travels: SendMessageRequestP2B.data or TransferedMessage.payLoadData, and its flag."""

    data: bytes
    flag: int


@dataclasses.dataclass(frozen=True, slots=True)
class DecodedPayload:
    """A payload taken apart; ``attributes`` is None when it carries none."""

    value: bytes
    attributes: dict[str, str] | None


def encode_payload(
    value: bytes,
    attributes: Mapping[str, str] | None = None,
    message_type: str | None = None,
    message_time: str | None = None,
) -> Payload:
    """Put a message's parts together; the system pairs stand first, as Java writes them.

    Neither pairs nor their names may hold ``,``, ``=`` or a reserved name, which the format cannot escape.
    The type has no blanks around it, the time is yyyyMMddHHmm.
    """
    if not value:
        raise empty_value()
    # A flag without the prefix makes brokers and readers drop the message (a known bug of the Java
    # producer), so both are written together or not at all.
    prefix = encode_prefix(attributes, message_type, message_time)
    return Payload(prefix + value, FLAG_ATTRIBUTES) if prefix else Payload(value, 0)


def encode_prefix(
    attributes: Mapping[str, str] | None,
    message_type: str | None,
    message_time: str | None,
    foreign: bool = False,
) -> bytes:
    """Return what precedes the body, as for ``encode_payload``: nothing when there is nothing to say.

    ``foreign``: another producer may have written all of it, so blanks, and times of another form, are
    written as they are.
    """
    if attributes or foreign:
        return _prefix(attribute_text(attributes, message_type, message_time, foreign=foreign))
    return _system_prefix(message_type, message_time)


def check_attribute(name: str, value: str) -> None:
    """Refuse a pair that cannot be written."""
    for _ in _user_pairs([(name, value)]):
        pass


def with_pair(prefix: bytes, name: bytes, values: Iterable[bytes]) -> Iterable[bytes]:
    """Yield a prefix that has one more pair at its end, for each of some values; they are not checked."""
    head = (prefix[_LENGTH.size :] + b"," if prefix else b"") + name + b"="
    pack, size = _LENGTH.pack, len(head)
    for value in values:
        yield pack(size + len(value)) + head + value


def empty_value() -> OptionError:
    """Return the error of a message without a body: brokers refuse it."""
    return _refused("its value is empty")


def decode_payload(data: bytes, flag: int) -> DecodedPayload:
    """Take a payload apart."""
    # DataConverterUtil.convertMessage looks at bit 0 alone; a broker keeps the other bits as they come.
    if not flag & FLAG_ATTRIBUTES:
        return DecodedPayload(data, None)
    if len(data) < _LENGTH.size:
        raise _violation(f"a payload of {len(data)} bytes has no room for its attributes' length")
    (length,) = _LENGTH.unpack_from(data)
    # A reader skips such a message, and Java's broker does not even deliver it although it took it: its
    # sender was told success.
    if length > len(data) - _LENGTH.size:
        raise _violation(f"a payload of {len(data)} bytes announces {length} bytes of attributes")
    # A length of 0 or below means no attributes, and the body follows it.
    if length <= 0:
        return DecodedPayload(data[_LENGTH.size :], None)
    end = _LENGTH.size + length
    # Java replaces bytes that are no UTF-8; refusing would lose a body that is sound.
    return DecodedPayload(data[end:], parse_attributes(data[_LENGTH.size : end].decode(errors="replace")))


def attribute_text(
    attributes: Mapping[str, str] | None,
    message_type: str | None = None,
    message_time: str | None = None,
    *,
    foreign: bool = False,
) -> str:
    """Return the pairs as TubeMQ writes them, ``""`` when there are none; for ``foreign``, see above."""
    system = _system_text(message_type, message_time, foreign=foreign)
    if not attributes:
        return system
    # $msgType$ and $msgTime$ stand first (Message.putSystemHeader), and are sent in msgType and msgTime, too,
    # by which the broker indexes.
    user = ",".join(_user_pairs(attributes.items(), foreign=foreign))
    return f"{system},{user}" if system else user


def parse_attributes(text: str) -> dict[str, str]:
    """Read ``key=value,key=value``.

    As TubeMQ reads it: items without ``=`` are ignored, the first of equal keys wins, and a value ends at a
    second ``=``.
    """
    attributes: dict[str, str] = {}
    for item in text.split(","):
        key, equals, rest = item.partition("=")
        if equals:
            attributes.setdefault(key, rest.partition("=")[0])
    return attributes


def checksum(data: bytes | memoryview) -> int:
    """Return the CRC-32 of a whole payload without its top bit: TubeMQ's checksum is never negative."""
    return zlib.crc32(data) & 0x7FFFFFFF


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: brokers index a message under that of its type."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        # Java hashes UTF-16 units. Two types may have one hash, so a broker's filter lets some others pass,
        # and readers compare the text again.
        value = (31 * value + unit) % _HASH_MODULUS
    return value - _HASH_MODULUS if value >= _HASH_MODULUS // 2 else value


def sent_address(ipv4: str) -> int:
    """Return an IPv4 address as the signed number that sentAddr carries.

    The field only feeds the broker's statistics, so any other text (an IPv6 address) gives 0 rather than
    an error.
    """
    try:
        # Addresses from 128.0.0.0 on are negative: 192.0.2.2 is -1073741310.
        return int.from_bytes(ipaddress.IPv4Address(ipv4).packed, "big", signed=True)
    except ipaddress.AddressValueError:
        return 0


def is_message_time(text: str) -> bool:
    """Say whether a text is a time as TubeMQ writes it, yyyyMMddHHmm."""
    return _MESSAGE_TIME.fullmatch(text) is not None


def _prefix(text: str) -> bytes:
    """Return what precedes the body: the attributes and their length; nothing when there are none."""
    if not text:
        return b""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"an attribute is not Unicode text ({error.reason})") from error
    return _LENGTH.pack(len(encoded)) + encoded


@functools.lru_cache(_CACHED_SYSTEM_TEXTS)
def _system_prefix(message_type: str | None, message_time: str | None) -> bytes:
    return _prefix(_system_text(message_type, message_time))


@functools.lru_cache(_CACHED_SYSTEM_TEXTS)
def _system_text(message_type: str | None, message_time: str | None, *, foreign: bool = False) -> str:
    pairs: list[str] = []
    if message_type is not None:
        _check_part("type", message_type, foreign=foreign)
        if message_type != message_type.strip() and not foreign:
            # Peers trim it, so filters would compare something else than what was given.
            raise _refused(f"its type {message_type!r} has blanks around it")
        pairs.append(f"{MSG_TYPE_KEY}={message_type}")
    if message_time is not None:
        if not foreign and not is_message_time(message_time):
            raise _refused(f"its time {message_time!r} is not of the form yyyyMMddHHmm")
        _check_part("time", message_time, foreign=foreign)
        pairs.append(f"{MSG_TIME_KEY}={message_time}")
    return ",".join(pairs)


def _user_pairs(items: Iterable[tuple[str, str]], *, foreign: bool = False) -> Iterable[str]:
    for key, value in items:
        _check_part("attribute name", key, foreign=foreign)
        _check_part(f"attribute {key}", value, foreign=foreign)
        yield f"{key}={value}"


def _check_part(what: str, part: str, *, foreign: bool) -> None:
    if (not part or part.isspace()) and not foreign:
        raise _refused(f"its {what} is blank")
    if "," in part or "=" in part:
        raise _refused(f"its {what} {part!r} contains ',' or '='")
    # Peers find the reserved names by substring, also inside another name or a value.
    if "$" in part and any(name in part for name in RESERVED_NAMES):
        reserved = ", ".join(RESERVED_NAMES)
        raise _refused(
            f"its {what} {part!r} contains a name that TubeMQ reserves ({reserved}); a message's type and "
            "time are given as such, and other attributes hold none of these names"
        )


def _refused(what: str) -> OptionError:
    return OptionError("TUBEMQ_BAD_MESSAGE", what=what)


def _violation(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=what)
