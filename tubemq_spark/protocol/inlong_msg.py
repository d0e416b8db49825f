"""InLongMsg, the container in which InLong's data proxies put many messages into the body of one.

What ``InLongMsg.parseFrom`` of ``inlong-common`` reads, big-endian. The version stands at both ends::

    0 to 3   0F version | created, in ms: 8 (from 1) | messages: 4 (from 2) | sections: 4 | sections
             | 0F version
             a section: attributes (2 + text) | messages: 4 (2 only) | length: 4 | compressed: 1 | data
    4        0F 04 | length of the rest: 4 | type: 1 | group: 2 | stream: 2 | extension: 2 | time, in s: 4
             | messages: 2 | unique id: 4 | data (4 + bytes) | attributes (2 + text) | EE 01 | 0F 04

Data is one message behind the other, each a length and its bytes. In version 3, and in version 4 where a bit
of the extension says so, each message is followed by attributes of its own, and version 3 puts one more
length before one or several of these pairs.

A body is taken whole or not at all. Where the Java decoder passes over what it does not understand, or gives
zeros for what is missing, this one raises: rows must not vanish. It takes more in one place: messages and
attributes of length 0, which the Java encoder writes, and at which the Java decoder stops if messages have
attributes of their own. The numbers of messages mean nothing: the Java encoder does not always keep them.

Bodies come from anywhere. Nothing is allocated for a length before its bytes are there, or compressed ones
that can hold as much, and a body may unpack to ``LARGEST_UNPACKED`` at most.
"""

import struct
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from tubemq_spark.errors import InLongMsgError

Buffer: TypeAlias = bytes | memoryview
Decompress = Callable[[Buffer, int], bytes]
"""Undo Snappy's raw format: of the compressed bytes, and how many they say they hold. That number is
possible; where they hold something else, it raises ValueError."""

LARGEST_UNPACKED: Final = 128 << 20
"""What a body may unpack to: the bytes of its messages, for each its attributes and ``_ROW_BYTES``, and
``_SECTION_BYTES`` for each section."""
_ROW_BYTES: Final = 64
"""What a row takes, however short its message is: positions, and places in the columns that it becomes."""
_SECTION_BYTES: Final = 1024
"""What a section costs besides, without messages too: it takes as much time to read as a dozen messages."""

_MAGIC: Final = 0x0F
_MAGIC_BYTES: Final = 2
_NEWEST: Final = 4
_INT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">q")
_BYTE: Final = struct.Struct(">B")
_BINARY_HEAD: Final = struct.Struct(">IBhhHihII")
"""Of version 4, up to the data."""
_BINARY_MAGIC: Final = 0xEE01
_COMPRESSION_SHIFT: Final = 5
"""The upper three bits of the type say how the data of version 4 is compressed."""
_UNCOMPRESSED, _SNAPPY = 0, 1
_OWN_ATTRIBUTES: Final = 1
"""Bit of the extension: each message has attributes of its own."""
_NAMED: Final = 4
"""Bit of the extension: group and stream are names in the attributes, and their numbers mean nothing."""
_SNAPPY_COPY_FROM, _SNAPPY_COPY_TO = 3, 64
"""The densest element of Snappy's format: three bytes that stand for 64."""
_SIZE_GROUPS: Final = 5
"""The most bytes of the varint before compressed bytes."""
_LONGEST_ATTRIBUTES: Final = 0xFFFF
"""Of any kind; where the format has four bytes for it, nothing else would bound them."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what databases and ``datetime`` take as a time."""


class Section(NamedTuple):
    """Messages that have their attributes in common: message ``i`` is ``data[starts[i]:ends[i]]``."""

    attributes: str
    """``key=value&key=value``, for ``parse_attributes``."""
    data: Buffer
    starts: "array[int]"
    ends: "array[int]"


class InLongMsg(NamedTuple):
    """A body taken apart."""

    version: int
    time_ms: int | None
    """When it was made (versions 1 to 3), or the time of its data (4); None if there is none, or nonsense."""
    sections: list[Section]
    """All messages, in their order."""


def unpack(body: Buffer, decompress: Decompress, start: int = 0, end: int | None = None) -> InLongMsg:
    """Take ``body[start:end]`` apart; the sections of what is not compressed point into ``body`` itself."""
    end = len(body) if end is None else end
    version = _version(body, start, end)
    reader = _Reader(body, start + _MAGIC_BYTES, end - _MAGIC_BYTES)
    unpacking = _Unpacking(decompress)
    time_ms = (
        _read_binary(reader, unpacking) if version == _NEWEST else _read_sections(reader, unpacking, version)
    )
    reader.finish()
    sensible = time_ms is not None and 0 <= time_ms <= _LAST_MS
    return InLongMsg(version, time_ms if sensible else None, unpacking.sections)


def parse_attributes(text: str) -> dict[str, str | None]:
    """Read ``key=value&key=value``; the last of equal keys wins, and an item without ``=`` has no value."""
    attributes: dict[str, str | None] = {}
    for item in text.split("&"):
        key, equals, value = item.strip().partition("=")
        if key or equals:
            attributes[key] = value if equals else None
    return attributes


def _version(body: Buffer, start: int, end: int) -> int:
    if end - start < 2 * _MAGIC_BYTES:
        raise _malformed(f"it has {end - start} bytes only")
    head, tail = bytes(body[start : start + _MAGIC_BYTES]), bytes(body[end - _MAGIC_BYTES : end])
    if head[0] != _MAGIC or head[1] > _NEWEST:
        raise _malformed(f"it begins with {head.hex()}, not with 0f and a version from 0 to {_NEWEST}")
    if tail != head:
        raise _malformed(f"it begins with {head.hex()}, but ends with {tail.hex()}")
    return head[1]


def _read_sections(reader: "_Reader", unpacking: "_Unpacking", version: int) -> int | None:
    """Read versions 0 to 3; return the time."""
    time_ms = reader.number(_LONG) if version >= 1 else None
    if version >= 2:
        reader.number(_INT)  # messages: the Java encoder does not always keep it
    for _ in range(reader.number(_INT)):
        unpacking.take(_SECTION_BYTES)
        common = _modified_utf8(reader.bytes(reader.number(_SHORT)))  # writeUTF's two bytes and text
        if version == 2:
            reader.number(_INT)  # the section's messages, as little to be trusted
        section = reader.part(reader.number(_INT))  # `compressed` and data: one length for both
        compression = section.number(_BYTE)
        data = unpacking.opened(section, compression)
        if version == 3:  # attributes of its own behind each message
            unpacking.add_pairs(data, grouped=True, before=common)
        else:
            unpacking.add_messages(data, common)
    return time_ms


def _read_binary(reader: "_Reader", unpacking: "_Unpacking") -> int:
    """Read version 4; return the time."""
    length, kind, group, stream, extension, seconds, count, _, size = reader.numbers(_BINARY_HEAD)
    packed = reader.part(size)
    text = reader.bytes(reader.number(_SHORT))
    magic = reader.number(_SHORT)
    if magic != _BINARY_MAGIC:
        raise _malformed(f"its data ends with {magic:04x}, not with {_BINARY_MAGIC:04x}")
    rest = _BINARY_HEAD.size - _INT.size + size + _SHORT.size + len(text) + _SHORT.size
    if length != rest:
        raise _malformed(f"it says that it has {length} bytes, but its parts have {rest}")
    numbers = "" if extension & _NAMED else f"groupId={group}&streamId={stream}&"
    common = _join(_utf8(text), f"dt={seconds * 1000}&{numbers}cnt={count}")
    data = unpacking.opened(packed, kind >> _COMPRESSION_SHIFT)
    if extension & _OWN_ATTRIBUTES:
        unpacking.add_pairs(data, behind=common)
    else:
        unpacking.add_messages(data, common)
    return seconds * 1000


class _Reader:
    """What is left of ``data[position:end]``."""

    def __init__(self, data: Buffer, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def __bool__(self) -> bool:
        return self.position < self.end

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        """Read numbers."""
        position = self._pass(form.size)
        return form.unpack_from(self.data, position)

    def number(self, form: struct.Struct) -> int:
        """Read a number."""
        return self.numbers(form)[0]

    def bytes(self, length: int) -> bytes:
        """Read bytes."""
        position = self._pass(length)
        return bytes(self.data[position : self.position])

    def part(self, length: int) -> "_Reader":
        """Return a reader of the next bytes."""
        position = self._pass(length)
        return _Reader(self.data, position, self.position)

    def finish(self) -> None:
        """Demand that nothing is left."""
        if self:
            raise _malformed(f"{self.end - self.position} bytes are left behind its last part")

    def _pass(self, length: int) -> int:
        start = self.position
        if length > self.end - start:
            raise _malformed(
                f"a part of {length} bytes does not fit into the {self.end - start} that are left"
            )
        self.position = start + length
        return start


class _Unpacking:
    """The sections so far, and how much may still come."""

    def __init__(self, decompress: Decompress) -> None:
        self.sections: list[Section] = []
        self._decompress = decompress
        self._room = LARGEST_UNPACKED

    def opened(self, data: _Reader, compression: int) -> _Reader:
        """Return the data of a section, decompressed."""
        if compression == _UNCOMPRESSED:
            return data
        if compression != _SNAPPY:
            raise _malformed(f"its data is compressed by an unknown method, number {compression}")
        compressed = data.data[data.position : data.end]
        size = _snappy_size(compressed)
        if size > self._room:
            raise _too_large()
        try:
            opened = self._decompress(compressed, size)
        except ValueError as error:
            raise _malformed(f"its data cannot be decompressed ({error})") from error
        return _Reader(opened, 0, len(opened))

    def add_messages(self, reader: _Reader, attributes: str) -> None:
        """Add messages that stand one behind the other."""
        data, position, end = reader.data, reader.position, reader.end
        starts, ends = array("q"), array("q")
        width, read, add_start, add_end = _INT.size, _INT.unpack_from, starts.append, ends.append
        last = end - width
        cost = _ROW_BYTES + len(attributes)
        for _ in range(self._room // cost):
            if position > last:
                break
            start = position + width
            position = start + read(data, position)[0]
            add_start(start)
            add_end(position)
        if position <= last:
            raise _too_large()
        if position != end:
            raise _unfit()
        self.take(len(starts) * cost + end - reader.position)
        if starts:
            self.sections.append(Section(attributes, data, starts, ends))

    def add_pairs(
        self, reader: _Reader, *, grouped: bool = False, before: str = "", behind: str = ""
    ) -> None:
        """Add messages that are followed by attributes of their own; of equal keys the last one wins.

        ``grouped`` says that there are groups of pairs, each behind its length. Attributes that messages have
        in common lose against their own (``before``), or win (``behind``).
        """
        data, position, end, read = reader.data, reader.position, reader.end, _INT.unpack_from
        width, cost, room = _INT.size, _ROW_BYTES + len(before) + len(behind), self._room
        last_text, section = None, None
        stop = position if grouped else end
        while position < end:
            start = position + width
            if start > end:
                raise _unfit()
            if room < 0:
                raise _too_large()
            length = read(data, position)[0]
            if position == stop:
                stop, position, room = start + length, start, room - _ROW_BYTES
                if stop > end:
                    raise _unfit()
                continue
            middle = start + length
            if middle + width > stop:
                raise _unfit()
            position = middle + width + read(data, middle)[0]
            if position > stop:
                raise _unfit()
            own = bytes(data[middle + width : position])
            if section is None or own != last_text:
                last_text, section = own, self._begin(own, before, behind, data)
                room -= _SECTION_BYTES
            room -= cost + position - start
            section.starts.append(start)
            section.ends.append(middle)
        self.take(self._room - room)

    def _begin(self, own: bytes, before: str, behind: str, data: Buffer) -> Section:
        """Begin the section of messages that have these attributes of their own."""
        if len(own) > _LONGEST_ATTRIBUTES:
            raise _malformed(f"a message has more than {_LONGEST_ATTRIBUTES} bytes of attributes")
        text = _join(before, _join(_utf8(own), behind))
        self.sections.append(Section(text, data, array("q"), array("q")))
        return self.sections[-1]

    def take(self, size: int) -> None:
        """Count what the body unpacks to."""
        self._room -= size
        if self._room < 0:
            raise _too_large()


def _snappy_size(compressed: Buffer) -> int:
    """Return how many bytes compressed ones say they hold; no more than they can.

    A varint of 32 bits stands before them (format_description.txt of Snappy).
    """
    size = 0
    for place, byte in enumerate(bytes(compressed[:_SIZE_GROUPS])):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            most = (len(compressed) - place - 1) * _SNAPPY_COPY_TO // _SNAPPY_COPY_FROM
            if size > most:
                raise _malformed(f"{len(compressed)} compressed bytes cannot hold {size}")
            return size
    raise _malformed("its compressed data does not begin with a length")


def _join(first: str, second: str) -> str:
    return f"{first}&{second}" if first and second else first or second


def _utf8(text: bytes) -> str:
    """Read text as Java does, which replaces what is not UTF-8."""
    return text.decode(errors="replace")  # of version 4 and of single messages: not writeUTF's


def _modified_utf8(text: bytes) -> str:
    """Read what Java's ``writeUTF`` wrote: a zero as two bytes, and each half of a pair as three."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        pass
    try:
        halves = text.replace(b"\xc0\x80", b"\0").decode(errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise _malformed(f"its attributes are not text ({error.reason})") from error
    # A half without the other is not a character.
    return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _malformed(what: str) -> InLongMsgError:
    return InLongMsgError("TUBEMQ_INLONG_MALFORMED", body="The body", what=what)


def _unfit() -> InLongMsgError:
    return _malformed("a message does not fit into the data it is in")


def _too_large() -> InLongMsgError:
    return _malformed(f"it unpacks to more than {LARGEST_UNPACKED} bytes")
