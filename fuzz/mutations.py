"""Ways to damage a request: its message, the RPC layer around it, the frame, the bytes."""

import random
import struct
from collections.abc import Callable
from typing import Final

from fuzz.corpus import Seed
from tubemq_spark.protocol.constants import FRAME_TOKEN

_EXTREMES: Final = (
    0, 1, 2, 127, 128, 255, 3583, 3584, 3585, 8191, 8192, 8193, 28 << 20, (28 << 20) + 1,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
)  # fmt: skip
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5

Chance = random.Random


def mutated(seed: Seed, serial_no: int, chance: Chance) -> tuple[bytes, bool]:
    """Return a damaged request, and whether its frame is complete, so that more can follow."""
    if chance.random() < 0.75:
        change = chance.choice(IN_THE_FRAME)
        return change(seed, serial_no, chance), True
    change_frame = chance.choice(OF_THE_FRAME)
    return change_frame(seed.frame(serial_no), chance), False


def damaged(data: bytes, chance: Chance) -> bytes:
    """Return damaged bytes: some are flipped, inserted, deleted or overwritten, or the end is cut off."""
    return chance.choice((_flip, _cut, _insert, _delete, _overwrite))(data, chance)


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it; a negative one takes ten bytes."""
    value &= (1 << 64) - 1
    raw = bytearray()
    while value > 127:
        raw.append(value & 127 | 128)
        value >>= 7
    raw.append(value)
    return bytes(raw)


def framed(serial_no: int, stream: bytes, sizes: Callable[[], int] = lambda: 8192) -> bytes:
    """Frame a stream in chunks of any sizes, including empty ones."""
    pieces, position = [], 0
    while position < len(stream) or not pieces:
        piece = stream[position : position + sizes()]
        pieces.append(piece)
        position += len(piece)
        if len(pieces) > 3000:
            pieces.append(stream[position:])
            break
    chunks = b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)
    return struct.pack(">Iii", FRAME_TOKEN, serial_no, len(pieces)) + chunks


def stream_of(seed: Seed, body: bytes, *, method: int | None = None, service: int | None = None) -> bytes:
    """Return the three delimited messages of a request (RpcConnHeader, RequestHeader, RequestBody)."""
    header = b"\x08" + varint(seed.service if service is None else service) + b"\x10\x03"
    request = b"\x08" + varint(seed.method if method is None else method) + b"\x10\x90\x4e"
    request += b"\x1a" + varint(len(body)) + body
    return b"".join(varint(len(part)) + part for part in (b"\x08\x00", header, request))


def _flip_bits_of_the_message(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    return framed(serial_no, stream_of(seed, _flip(seed.body, chance)))


def _change_the_messages_bytes(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    change = chance.choice((_cut, _insert, _delete, _overwrite))
    return framed(serial_no, stream_of(seed, change(seed.body, chance)))


def _change_a_field(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    """Replace a field by another value, of the same kind or of a different one."""
    fields = _fields(seed.body)
    if not fields:
        return framed(serial_no, stream_of(seed, chance.randbytes(20)))
    start, end, number = chance.choice(fields)
    body = seed.body[:start] + _field(number, chance) + seed.body[end:]
    return framed(serial_no, stream_of(seed, body))


def _repeat_fields(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    fields = _fields(seed.body)
    if not fields:
        return framed(serial_no, stream_of(seed, seed.body * 2))
    start, end, _ = chance.choice(fields)
    many = min(chance.choice((2, 3, 50, 2000)), 1 + 200_000 // (end - start))
    return framed(serial_no, stream_of(seed, seed.body + seed.body[start:end] * many))


def _a_long_run_of_one_character(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    """Put a long run of one character into a field that may be a text."""
    run = chance.choice(b' \t:#@,=01a[{"%\0\xff').to_bytes(1) * chance.choice((300, 4_000, 60_000))
    fields = _fields(seed.body)
    if not fields:
        return framed(serial_no, stream_of(seed, run))
    start, end, number = chance.choice(fields)
    text = chance.choice((b"", b"a", b"a@g#1:")) + run + chance.choice((b"", b"b:1"))
    field = varint(number << 3 | _DELIMITED) + varint(len(text)) + text
    return framed(serial_no, stream_of(seed, seed.body[:start] + field + seed.body[end:]))


def _add_unknown_fields(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    extra = b"".join(
        _field(chance.choice((15, 16, 100, 536_870_911)), chance) for _ in range(chance.randint(1, 5))
    )
    return framed(serial_no, stream_of(seed, seed.body + extra))


def _nest(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    """Nest a field in itself, deeper than any message."""
    body = seed.body
    for _ in range(chance.choice((10, 101, 1000))):
        body = varint(chance.randint(1, 12) << 3 | _DELIMITED) + varint(len(body)) + body
        if len(body) > 100_000:
            break
    return framed(serial_no, stream_of(seed, body))


def _ask_another_method(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    method = chance.choice((*range(-1, 40), 1 << 31, -(1 << 63)))
    service = chance.choice((seed.service, seed.service, 0, 1, 2, 3, 4, 5, -1, 1 << 40))
    return framed(serial_no, stream_of(seed, seed.body, method=method, service=service))


def _change_the_rpc_layer(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    change = chance.choice((_flip, _cut, _insert, _delete, _overwrite))
    stream = stream_of(seed, seed.body)
    # The first bytes are lengths and headers.
    return framed(serial_no, change(stream[:24], chance) + stream[24:] or b"\0")


def _cut_into_odd_chunks(seed: Seed, serial_no: int, chance: Chance) -> bytes:
    most = chance.choice((1, 2, 7, 100, 100_000))
    return framed(serial_no, stream_of(seed, seed.body), lambda: chance.randint(0 if most > 2 else 1, most))


def _random_stream(_seed: Seed, serial_no: int, chance: Chance) -> bytes:
    return framed(serial_no, chance.randbytes(chance.choice((1, 3, 30, 300, 9000))))


def _sound(seed: Seed, serial_no: int, _chance: Chance) -> bytes:
    return seed.frame(serial_no)


def _flip_bits_of_the_frame(frame: bytes, chance: Chance) -> bytes:
    return _flip(frame, chance)


def _change_a_number_of_the_frame(frame: bytes, chance: Chance) -> bytes:
    """Change the token, the serial number, the chunk count or a chunk length."""
    place = chance.choice((0, 4, 8, 8, 12, 12))
    value = chance.choice((*_EXTREMES, chance.getrandbits(32)))
    return frame[:place] + struct.pack(">I", value) + frame[place + 4 :]


def _end_inside_the_frame(frame: bytes, chance: Chance) -> bytes:
    return frame[: chance.randrange(len(frame))]


def _change_the_frames_bytes(frame: bytes, chance: Chance) -> bytes:
    return chance.choice((_insert, _delete, _overwrite))(frame, chance)


def _say_it_twice(frame: bytes, _chance: Chance) -> bytes:
    """Repeat the serial number immediately."""
    return frame + frame


def _something_else(_frame: bytes, chance: Chance) -> bytes:
    other = chance.choice((b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", struct.pack(">I", FRAME_TOKEN)))
    return other + chance.randbytes(chance.randint(1, 400))


IN_THE_FRAME: Final = (
    _flip_bits_of_the_message,
    _flip_bits_of_the_message,
    _change_the_messages_bytes,
    _change_a_field,
    _change_a_field,
    _repeat_fields,
    _a_long_run_of_one_character,
    _add_unknown_fields,
    _nest,
    _ask_another_method,
    _change_the_rpc_layer,
    _cut_into_odd_chunks,
    _random_stream,
    _sound,
)
OF_THE_FRAME: Final = (
    _flip_bits_of_the_frame,
    _change_a_number_of_the_frame,
    _change_a_number_of_the_frame,
    _end_inside_the_frame,
    _change_the_frames_bytes,
    _say_it_twice,
    _something_else,
)


def _flip(data: bytes, chance: Chance) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: Chance) -> bytes:
    return data[: chance.randint(0, len(data))]


def _insert(data: bytes, chance: Chance) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + chance.randbytes(chance.choice((1, 2, 4, 100))) + data[place:]


def _delete(data: bytes, chance: Chance) -> bytes:
    place = chance.randint(0, len(data))
    return data[:place] + data[place + chance.randint(1, 8) :]


def _overwrite(data: bytes, chance: Chance) -> bytes:
    place = chance.randint(0, len(data))
    new = chance.randbytes(chance.randint(1, 8))
    return data[:place] + new + data[place + len(new) :]


def _field(number: int, chance: Chance) -> bytes:
    kind = chance.choice((_VARINT, _VARINT, _FIXED64, _DELIMITED, _DELIMITED, 3, 4, _FIXED32, 6, 7))
    tag = varint(number << 3 | kind)
    if kind == _VARINT:
        return tag + varint(chance.choice((*_EXTREMES, -1, -28, 27, 1 << 62, 1 << 63)))
    if kind == _DELIMITED:
        data = chance.choice((b"", b" ", b"\xff\xfe", b"\0", b"a" * 3000, chance.randbytes(30)))
        return tag + varint(chance.choice((len(data), len(data), *_EXTREMES))) + data
    return tag + chance.randbytes({_FIXED64: 8, _FIXED32: 4}.get(kind, 0))


def _fields(message: bytes) -> list[tuple[int, int, int]]:
    """Return where the fields of a valid message begin and end, and their numbers."""
    found, position = [], 0
    while position < len(message):
        start = position
        tag, position = _read_varint(message, position)
        if tag & 7 == _DELIMITED:
            length, position = _read_varint(message, position)
            position += length
        elif tag & 7 == _VARINT:
            _, position = _read_varint(message, position)
        else:
            position += 8 if tag & 7 == _FIXED64 else 4
        found.append((start, position, tag >> 3))
    return found


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128:
            return value, position
