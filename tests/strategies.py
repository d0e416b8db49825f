"""Hypothesis strategies that several test files share."""

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.framing import Frame
from tubemq_spark.protocol.rpc import encode_varint

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

int32s = st.integers(INT32_MIN, INT32_MAX)
int64s = st.integers(INT64_MIN, INT64_MAX)
naturals = st.integers(0, INT32_MAX)
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=":#@,=$"), min_size=1, max_size=12
).filter(lambda name: name.strip() == name)
"""Names without any separator of TubeMQ's packed strings, and without blanks around them."""

hosts = st.from_regex(r"[0-9a-z][-0-9a-z]{0,6}(\.[-0-9a-z]{1,6}){0,2}", fullmatch=True)
endpoints = st.builds(Endpoint, hosts, st.integers(1, 65535))
partitions = st.builds(TopicPartition, names, naturals, naturals)

frames = st.builds(
    Frame,
    int32s,
    st.one_of(
        st.binary(min_size=1, max_size=64),
        st.sampled_from([8191, 8192, 8193, 16384, 16385]).map(
            lambda size: bytes(range(251)) * (size // 251 + 1)
        ),
    ),
)


@st.composite
def splits(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut bytes into pieces at any places; together the pieces are the bytes again."""
    places = draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted))
    return cut(data, places)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut bytes at ascending places, leaving out empty pieces."""
    bounds = [0, *places, len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds) if start < end]


def varint(value: int, least_bytes: int = 1) -> bytes:
    """Write any int64 as protobuf does, or longer than needed (which parsers must take)."""
    data = bytearray(encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF))
    while len(data) < least_bytes:
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


def varint_field(number: int, value: int, least_bytes: int = 1) -> bytes:
    """Write a field of wire type 0."""
    return encode_varint(number << 3) + varint(value, least_bytes)


def bytes_field(number: int, value: bytes, least_bytes: int = 1) -> bytes:
    """Write a field of wire type 2."""
    return encode_varint(number << 3 | 2) + varint(len(value), least_bytes) + value
