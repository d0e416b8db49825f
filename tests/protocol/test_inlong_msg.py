"""InLongMsgs of every version come apart as they were put together, and damaged ones are refused whole."""

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from testkit.inlong_msg import binary, blocks, container, in_version_4, java_utf, pairs, snappy
from tests.cases import in_one_test
from tubemq_spark.errors import InLongMsgError
from tubemq_spark.protocol import inlong_msg
from tubemq_spark.protocol.inlong_msg import LARGEST_UNPACKED, parse_attributes, unpack
from tubemq_spark.protocol.rpc import encode_varint

COMPRESSIONS = [None, snappy]
any_compression = st.sampled_from(COMPRESSIONS)
bodies = st.binary(max_size=40)
words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="&="), min_size=1, max_size=8
).filter(lambda word: word.strip() == word)
pair_texts = st.dictionaries(words, words, max_size=3).map(
    lambda pairs: "&".join(f"{key}={value}" for key, value in pairs.items())
)
messages = st.lists(st.tuples(bodies, pair_texts.map(str.encode)), max_size=5)
sections = st.lists(st.tuples(pair_texts, messages), max_size=4)
any_time = st.integers(0, 253_402_300_799_999)


def decompress(data, size):
    try:
        return pa.decompress(data, size, "snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def rows(body, **where):
    """Return the messages of a body, each with its attributes."""
    return [
        (bytes(section.data[start:end]), parse_attributes(section.attributes))
        for section in unpack(body, decompress, **where).sections
        for start, end in zip(section.starts, section.ends, strict=True)
    ]


def refused(body):
    with pytest.raises(InLongMsgError) as raised:
        unpack(body, decompress)
    assert raised.value.condition == "TUBEMQ_INLONG_MALFORMED"
    return raised.value.parameters["what"]


@given(st.integers(0, 2), sections, any_time, any_compression)
def test_versions_0_to_2_come_apart(version, parts, time_ms, compress):
    body = container(version, parts, time_ms, compress)

    assert rows(body) == [
        (message, parse_attributes(text)) for text, messages in parts for message, _ in messages
    ]
    taken = unpack(body, decompress)
    assert taken.version == version
    assert taken.time_ms == (time_ms if version else None)


@given(sections, any_time, any_compression)
def test_version_3_has_attributes_of_messages_besides_those_of_sections(parts, time_ms, compress):
    taken = rows(container(3, parts, time_ms, compress))

    assert taken == [
        (message, {**parse_attributes(text), **parse_attributes(own.decode())})
        for text, messages in parts
        for message, own in messages
    ]


@given(messages, pair_texts, st.booleans(), st.none() | st.just((-3, 7)), any_compression)
def test_version_4_comes_apart(messages, text, own, numbers, compress):
    body = in_version_4(
        binary(messages, text, own=own, numbers=numbers, seconds=1_700_000_000, compress=compress)
    )
    named = {"groupId": "-3", "streamId": "7"} if numbers else {}
    common = {**parse_attributes(text), **named, "dt": "1700000000000", "cnt": str(len(messages))}

    assert rows(body) == [
        (message, {**(parse_attributes(other.decode()) if own else {}), **common})
        for message, other in messages
    ]
    assert unpack(body, decompress).time_ms == 1_700_000_000_000


def test_several_messages_of_version_3_may_share_a_length():
    data = blocks(pairs([(b"a", b"k=1"), (b"b", b"k=1")]), pairs([(b"c", b"k=1")]), b"")
    body = b"\x0f\x03" + bytes(12) + b"\0\0\0\x01" + java_utf("m=0") + blocks(b"\0" + data) + b"\x0f\x03"

    (section,) = unpack(body, decompress).sections
    assert section.attributes == "m=0&k=1"
    assert rows(body) == [(name, {"m": "0", "k": "1"}) for name in (b"a", b"b", b"c")]


@given(sections, st.binary(max_size=20), st.binary(max_size=20))
def test_a_body_may_lie_between_other_bytes(parts, before, behind):
    body = container(1, parts)
    place = {"start": len(before), "end": len(before) + len(body)}

    assert rows(before + body + behind, **place) == rows(body)
    assert rows(memoryview(before + body + behind), **place) == rows(body)


@pytest.mark.parametrize("time_ms", [-1, -(2**63), 253_402_300_800_000, 2**63 - 1])
def test_what_is_not_a_time_is_none(time_ms):
    assert unpack(container(1, [], time_ms), decompress).time_ms is None


@pytest.mark.parametrize("text", ["\0=\0", "k=\U0001f600", "ключ=значение", "=\U00010000\0\U0010ffff"])
def test_attributes_are_java_s_modified_utf_8(text):
    (row,) = rows(container(1, [(text, [(b"x", b"")])]))
    assert row[1] == parse_attributes(text)


def test_half_a_character_becomes_the_replacement_character():
    (row,) = rows(container(1, [("k=a\ud83d", [(b"x", b"")])]))
    assert row[1] == {"k": "a\ufffd"}


@in_one_test(
    ("text", "attributes"),
    [
        ("", {}),
        ("a=1&b=2", {"a": "1", "b": "2"}),
        (" a=1 & b= 2", {"a": "1", "b": " 2"}),
        ("a=1&a=2", {"a": "2"}),
        ("a=b=c", {"a": "b=c"}),
        ("a&b=", {"a": None, "b": ""}),
        ("=x&&", {"": "x"}),
    ],
)
def test_attributes_of_every_form(text, attributes):
    assert parse_attributes(text) == attributes


@in_one_test(
    ("body", "what"),
    [
        (b"", "it has 0 bytes only"),
        (b"some text", "it begins with 736f, not with 0f and a version from 0 to 4"),
        (b"\x0f\x05\x0f\x05", "it begins with 0f05"),
        (b"\x0f\x01\x0f\x02", "it begins with 0f01, but ends with 0f02"),
        (b"\x0f\x00\x0f\x00", "a part of 4 bytes does not fit into the 0 that are left"),
        (b"\x0f\x00" + b"\xff" * 4 + b"\x0f\x00", "a part of 2 bytes does not fit"),
        (b"\x0f\x00\0\0\0\0more\x0f\x00", "4 bytes are left behind its last part"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\0\x0f\x00", "a part of 1 bytes does not fit"),
        (b"\x0f\x00\0\0\0\1\0\1\xff\0\0\0\1\0\x0f\x00", "its attributes are not text"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\1\7\x0f\x00", "an unknown method, number 7"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\1\1\x0f\x00", "does not begin with a length"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\3\1\x7fx\x0f\x00", "2 compressed bytes cannot hold"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\3\1\1x\x0f\x00", "cannot be decompressed"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\4\0\0\0\1\x0f\x00", "a message does not fit into the data it is in"),
        (b"\x0f\x00\0\0\0\1\0\0\0\0\0\6\0\0\0\0\2x\x0f\x00", "a message does not fit into the data it is in"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_body(body, what):
    assert what in refused(body)


@pytest.mark.parametrize("compression", range(2, 8))
def test_an_unknown_compression_is_refused(compression):
    message = bytearray(binary([(b"x", b"")]))
    message[4] |= compression << 5
    assert f"unknown method, number {compression}" in refused(in_version_4(bytes(message)))


@pytest.mark.parametrize(("place", "what"), [(3, "says that it has"), (-1, "ends with ee")])
def test_version_4_says_its_length_and_ends_as_it_must(place, what):
    message = bytearray(binary([(b"x", b"")], "a=b"))
    message[place] += 1
    assert what in refused(in_version_4(bytes(message)))


@st.composite
def sound(draw):
    compress = draw(any_compression)
    version = draw(st.integers(0, 4))
    if version < 4:
        return container(version, draw(sections), draw(any_time), compress)
    return in_version_4(binary(draw(messages), draw(pair_texts), own=draw(st.booleans()), compress=compress))


@given(sound(), st.data())
def test_damage_is_refused_or_gives_other_messages(body, data):
    """Nothing but the error that is named, whatever the bytes are."""
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(2, len(body) - 1), max_size=3)):
        damaged[place] = data.draw(st.sampled_from([0, 1, 4, 127, 128, 255, damaged[place] ^ 32]))
    cut = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    try:
        taken = unpack(bytes(damaged[:cut]), decompress)
    except InLongMsgError:
        return
    for section in taken.sections:
        parse_attributes(section.attributes).values()
        section.attributes.encode()
        assert len(section.starts) == len(section.ends) > 0
        assert all(0 <= start <= end for start, end in zip(section.starts, section.ends, strict=True))
        assert section.ends[-1] <= len(section.data)


@given(sound(), st.data())
def test_a_body_that_is_cut_short_is_never_taken(body, data):
    magic = body[:2]
    cut = data.draw(st.integers(2, len(body) - 3))
    if body[:cut] + magic == body:
        return
    refused(body[:cut] + magic)


@given(st.integers(0, 4), st.binary(max_size=200))
def test_any_bytes_between_the_ends(version, inside):
    ends = bytes([15, version])
    with contextlib.suppress(InLongMsgError):
        unpack(ends + inside + ends, decompress)


def refuse_to_decompress(data, size):
    raise AssertionError(f"asked to decompress {len(data)} bytes to {size}")


def test_nothing_is_allocated_for_what_compressed_bytes_cannot_hold():
    claimed = b"\xff\xff\xff\xff\x0f" + bytes(50)
    body = b"\x0f\x00\0\0\0\1" + java_utf("") + blocks(b"\1" + claimed) + b"\x0f\x00"
    with pytest.raises(InLongMsgError, match="55 compressed bytes cannot hold 4294967295"):
        unpack(body, refuse_to_decompress)


def test_a_length_that_does_not_end_is_refused():
    body = b"\x0f\x00\0\0\0\1" + java_utf("") + blocks(b"\1" + b"\xff" * 60) + b"\x0f\x00"
    assert "does not begin with a length" in refused(body)


def test_a_bomb_is_refused_before_it_is_decompressed():
    claimed = encode_varint(LARGEST_UNPACKED + 1) + bytes(LARGEST_UNPACKED // 20)
    body = b"\x0f\x00\0\0\0\1" + java_utf("") + blocks(b"\1" + claimed) + b"\x0f\x00"
    with pytest.raises(InLongMsgError, match="unpacks to more than 134217728 bytes"):
        unpack(body, refuse_to_decompress)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(container(1, [("", [(b"", b"")] * 60)]), id="many empty messages"),
        pytest.param(container(1, [("k=" + "x" * 1000, [(b"", b"")] * 10)]), id="many times its attributes"),
        pytest.param(container(3, [("", [(b"", b"%d" % n) for n in range(15)])]), id="many sections"),
        pytest.param(container(1, [("", [])] * 4), id="sections without messages"),
        pytest.param(container(1, [("", [(b"", b"")] * 30)] * 2), id="two sections that fit alone"),
        pytest.param(container(3, [("", [(b"", b"0")])] * 3), id="three sections that fit alone"),
        pytest.param(
            b"\x0f\x03" + bytes(12) + b"\0\0\0\1" + java_utf("") + blocks(bytes(501)) + b"\x0f\x03",
            id="many empty groups",
        ),
        pytest.param(in_version_4(binary([(b"", b"")] * 20, "x" * 200, own=True)), id="version 4"),
    ],
)
def test_what_few_bytes_can_become_is_bounded(body, monkeypatch):
    unpack(body, decompress)
    monkeypatch.setattr(inlong_msg, "LARGEST_UNPACKED", 3000)
    with pytest.raises(InLongMsgError, match="unpacks to more than 3000 bytes"):
        unpack(body, decompress)


def test_own_attributes_have_the_longest_length_that_others_have():
    longest = b"k=" + b"x" * 65_533
    assert len(rows(container(3, [("", [(b"a", longest)])]))) == 1
    assert "more than 65535 bytes of attributes" in refused(container(3, [("", [(b"a", longest + b"x")])]))
    huge = struct.pack(">i", 1) + b"a" + struct.pack(">I", 2**32 - 1)
    body = in_version_4(binary([], own=True)).replace(b"\0\0\0\0\0\0", blocks(huge) + b"\0\0")
    assert "does not fit" in refused(body)
