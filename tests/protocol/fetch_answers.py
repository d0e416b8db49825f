"""Hypothesis strategies for fetch responses, laid out as brokers write them and in every other way."""

import struct

from hypothesis import strategies as st

from tests import strategies as own
from tubemq_spark.protocol.payload import checksum
from tubemq_spark.protocol.pb import broker_pb2

prefixes = st.one_of(
    st.just(b""),
    st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\3a=b", b"\0\0\0\4a=\xc3\xa9"]),
    own.int32s.map(lambda length: struct.pack(">i", length)),
    st.integers(0, 20).map(lambda length: struct.pack(">i", length)),
    st.sampled_from([b"\0", b"\0\0\0"]),
)
payloads = st.builds(bytes.__add__, prefixes, st.binary(max_size=30))
flags = st.sampled_from([0, 1, 2, 3, -1, -2, own.INT32_MIN, own.INT32_MAX]) | own.int32s


@st.composite
def sound_messages(draw) -> bytes:
    """A message as a broker writes it; usually its checksum is right."""
    data = draw(payloads)
    right = draw(st.integers(0, 9)) > 0
    message = broker_pb2.TransferedMessage(
        messageId=draw(own.int64s),
        checkSum=checksum(data) if right else draw(own.int32s),
        payLoadData=data,
        flag=draw(flags),
    )
    return message.SerializeToString()


@st.composite
def odd_messages(draw) -> bytes:
    """Fields in any order, repeated, of other types, with long varints, unknown ones between them."""
    data = draw(payloads)
    long = draw(st.integers(1, 10))
    required = [
        own.varint_field(1, draw(own.int64s), long),
        own.varint_field(2, draw(st.sampled_from([checksum(data), checksum(data) | 1 << 40, -1])), long),
        own.bytes_field(3, data, draw(st.sampled_from([1, 1, 1, 1, 2, 5, 6, 10]))),
        own.varint_field(4, draw(flags), long),
    ]
    extra = draw(
        st.lists(
            st.one_of(
                st.builds(own.varint_field, st.integers(1, 5000), own.int64s, st.integers(1, 10)),
                st.builds(own.bytes_field, st.integers(1, 5000), st.binary(max_size=10)),
                st.just(b"\x0d\1\2\3\4"),
                st.just(b"\x43\x44"),
                st.just(b"\x44"),
            ),
            max_size=2,
        )
    )
    return b"".join(draw(st.permutations(required + extra)))


broken_messages = st.one_of(
    st.binary(max_size=20),
    st.tuples(sound_messages(), st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]]),
)


@st.composite
def answers(draw, messages) -> bytes:
    """A response; fields behind the messages may be absent."""
    answer = broker_pb2.RawGetMessageResponseB2C(
        success=draw(st.booleans()), errCode=draw(own.int32s), messages=draw(messages)
    )
    for name in ("currOffset", "maxOffset", "currDataDlt"):
        if draw(st.booleans()):
            setattr(answer, name, draw(own.int64s))
    return answer.SerializeToString()
