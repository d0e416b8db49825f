"""A second way to InLongMsgs, which writes what the package reads: also what no sound encoder writes."""

import struct
from collections.abc import Callable, Sequence

import pyarrow as pa

Compress = Callable[[bytes], bytes]
Messages = Sequence[tuple[bytes, bytes]]
"""Messages, each with the text of its own attributes, which only some versions have."""


def snappy(data: bytes) -> bytes:
    """Compress by Snappy's raw format."""
    return pa.compress(data, codec="snappy", asbytes=True)


def java_utf(text: str) -> bytes:
    """Write a text as Java's ``writeUTF`` does."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [unit for (unit,) in struct.iter_unpack(">H", units)]
    encoded = b"".join(
        b"\xc0\x80" if code == 0 else chr(code).encode("utf-8", "surrogatepass") for code in codes
    )
    return struct.pack(">H", len(encoded)) + encoded


def blocks(*parts: bytes) -> bytes:
    """Write parts one behind the other, each with its length."""
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


def pairs(messages: Messages) -> bytes:
    """Write messages, each with its own attributes behind it."""
    return b"".join(blocks(body, own) for body, own in messages)


def container(
    version: int,
    sections: Sequence[tuple[str, Messages]],
    created_ms: int = 0,
    compress: Compress | None = None,
) -> bytes:
    """Write a container of version 0 to 3."""
    magic = bytes([15, version])
    count = sum(len(messages) for _, messages in sections)
    head = [b"", struct.pack(">q", created_ms), struct.pack(">qi", created_ms, count)][min(version, 2)]
    body = b"".join(_section(version, *section, compress) for section in sections)
    return magic + head + struct.pack(">i", len(sections)) + body + magic


def _section(version: int, attributes: str, messages: Messages, compress: Compress | None) -> bytes:
    if version == 3:
        data = blocks(*(pairs([message]) for message in messages))
    else:
        data = blocks(*(body for body, _ in messages))
    if compress is not None:
        data = compress(data)
    count = struct.pack(">i", len(messages)) if version == 2 else b""
    marked = bytes([compress is not None]) + data
    return java_utf(attributes) + count + blocks(marked)


def binary(
    messages: Messages,
    attributes: str = "",
    *,
    own: bool = False,
    numbers: tuple[int, int] | None = None,
    seconds: int = 0,
    compress: Compress | None = None,
) -> bytes:
    """Write what a proxy gets in a binary message, which is version 4 but for the bytes at its ends."""
    data = pairs(messages) if own else blocks(*(body for body, _ in messages))
    kind = 7
    if compress is not None:
        kind, data = kind | 0x20, compress(data)
    text = attributes.encode()
    group, stream = numbers or (0, 0)
    extension = (1 if own else 0) | (0 if numbers else 4)
    head = struct.pack(">BhhHihi", kind, group, stream, extension, seconds, len(messages), 99)
    rest = head + blocks(data) + struct.pack(">H", len(text)) + text + b"\xee\x01"
    return blocks(rest)


def in_version_4(message: bytes) -> bytes:
    """Return the container of a binary message."""
    return b"\x0f\x04" + message + b"\x0f\x04"
