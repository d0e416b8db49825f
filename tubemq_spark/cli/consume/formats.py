"""How ``consume --format`` prints a message: as it is, as JSON, or by a template."""

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.tables import without_nulls

if TYPE_CHECKING:
    from tubemq_spark.cli.consume.decoding import Decoded

Format = Callable[["Decoded"], bytes]

_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([nrt0\\])")
_PLACEHOLDER: Final = re.compile(r"%(.?)", re.DOTALL)


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


def _attributes(message: "Decoded") -> bytes:
    pairs = (message.record.attributes or {}).items()
    return ",".join(f"{name}={value}" for name, value in pairs).encode()


_PLACEHOLDERS: Final[Mapping[str, tuple[str, Format]]] = {
    "t": ("topic", lambda message: _text(message.record.topic)),
    "p": ("BROKER_ID:PARTITION_ID", lambda message: _text(message.record.partition.local_id)),
    "o": ("offset, nothing where partitions share a store", lambda message: _text(message.record.offset)),
    "i": ("message id", lambda message: _text(message.record.message_id)),
    "T": ("message time as its producer wrote it", lambda message: _text(message.record.message_time)),
    "y": ("message type", lambda message: _text(message.record.message_type)),
    "h": ("attributes", _attributes),
    "s": ("value", lambda message: message.value),
    "S": ("its length in bytes", lambda message: _text(len(message.value))),
    "%": ("a percent sign", lambda _: b"%"),
}
PLACEHOLDERS: Final = ", ".join(f"%{letter} {what}" for letter, (what, _) in _PLACEHOLDERS.items())
"""For help and errors."""


def unescaped(text: str) -> bytes:
    r"""Return an argument's bytes; ``\n``, ``\r``, ``\t``, ``\0`` and ``\\`` are what they are in Python."""
    return os.fsencode(_ESCAPE.sub(lambda match: _ESCAPED[match[1]], text))


def parse_format(text: str) -> str:
    """Read a format: ``raw``, ``json`` or a template, which has placeholders or escapes.

    Raises:
        argparse.ArgumentTypeError: it is none of these, or has a placeholder that is not known.
    """
    if text in ("raw", "json"):
        return text
    if "%" not in text and "\\" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is neither raw, json nor a template with {PLACEHOLDERS}")
    for letter in _PLACEHOLDER.findall(text):
        if letter not in _PLACEHOLDERS:
            why = "; TubeMQ keeps no keys" if letter == "k" else ""
            raise argparse.ArgumentTypeError(f"{text!r} has %{letter}, which is none of {PLACEHOLDERS}{why}")
    return text


def format_of(text: str, delimiter: bytes) -> Format:
    """Return what prints a message; ``delimiter`` follows each one of ``raw``."""
    if text == "raw":
        return lambda message: message.value + delimiter
    if text == "json":
        return _as_json
    # Split before escapes are read: a value may have any bytes, and is not read again.
    parts = _PLACEHOLDER.split(text)
    plain = [unescaped(part) for part in parts[::2]]
    makers = [_PLACEHOLDERS[letter][1] for letter in parts[1::2]]

    def formatted(message: "Decoded") -> bytes:
        texts = [make(message) + behind for make, behind in zip(makers, plain[1:], strict=True)]
        return plain[0] + b"".join(texts)

    return formatted


def _as_json(message: "Decoded") -> bytes:
    record = message.record
    fields = {
        "topic": record.topic,
        "brokerId": record.partition.broker_id,
        "partition": record.partition.partition_id,
        "offset": record.offset,
        "messageId": record.message_id,
        "messageType": record.message_type,
        "messageTime": record.message_time,
        "attributes": record.attributes,
    }
    return json.dumps(without_nulls(fields) | dict(message.fields), ensure_ascii=False).encode() + b"\n"
