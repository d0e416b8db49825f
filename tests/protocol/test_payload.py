"""Attributes, flag and checksum of a message's payload."""

import struct

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import DOCUMENT
from tubemq_spark.errors import OptionError, RemoteProtocolError
from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY
from tubemq_spark.protocol import payload

values = st.binary(min_size=1, max_size=50)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",=$"), min_size=1).filter(
    str.strip
)
attributes = st.dictionaries(keys, keys, min_size=1, max_size=4)
times = st.datetimes().map(lambda time: f"{time.year:04}{time:%m%d%H%M}")


@pytest.mark.parametrize("entry", DOCUMENT["payloads"], ids=lambda entry: str(entry["attribute"]))
def test_recorded_payloads(entry):
    data = bytes.fromhex(entry["payloadHex"])
    value = bytes.fromhex(entry["bodyHex"])
    pairs = None if entry["attribute"] is None else payload.parse_attributes(entry["attribute"])

    assert payload.decode_payload(data, entry["flag"]) == payload.DecodedPayload(value, pairs)
    assert payload.checksum(data) == entry["crc31"]

    own_pairs = dict(pairs or {})
    message_type = own_pairs.pop(MSG_TYPE_KEY, None)
    message_time = own_pairs.pop(MSG_TIME_KEY, None)
    encoded = payload.encode_payload(value, own_pairs, message_type, message_time)
    assert encoded == payload.Payload(data, entry["flag"])


@pytest.mark.parametrize("entry", DOCUMENT["crc32"], ids=lambda entry: entry["dataHex"][:18])
def test_recorded_checksums(entry):
    data = bytes.fromhex(entry["dataHex"])
    assert payload.checksum(data) == payload.checksum(memoryview(data)) == entry["crc31"]
    assert entry["crc31"] == entry["fullCrc32"] & 0x7FFFFFFF


@pytest.mark.parametrize("entry", DOCUMENT["javaStringHash"], ids=lambda entry: ascii(entry["s"]))
def test_recorded_hashes(entry):
    assert payload.java_hash(entry["s"]) == entry["hash"]


@pytest.mark.parametrize("entry", DOCUMENT["ipToInt"], ids=lambda entry: entry["ip"])
def test_recorded_addresses(entry):
    assert payload.sent_address(entry["ip"]) == entry["int32"]


@pytest.mark.parametrize("text", ["::1", "", "localhost", "10.1.2", "10.1.2.256"])
def test_an_address_that_is_not_ipv4_is_zero(text):
    assert payload.sent_address(text) == 0


@given(values, st.none() | attributes, st.none() | keys.map(str.strip), st.none() | times)
def test_payloads_round_trip(value, pairs, message_type, message_time):
    encoded = payload.encode_payload(value, pairs, message_type, message_time)
    decoded = payload.decode_payload(encoded.data, encoded.flag)

    expected = dict(pairs or {})
    if message_type is not None:
        expected[MSG_TYPE_KEY] = message_type
    if message_time is not None:
        expected[MSG_TIME_KEY] = message_time
    assert decoded == payload.DecodedPayload(value, expected or None)
    assert encoded.flag == (1 if expected else 0)


@pytest.mark.parametrize("pairs", [None, {}])
def test_without_attributes_there_is_neither_flag_nor_prefix(pairs):
    """A flag without prefix loses the message (a bug of the Java producer)."""
    assert payload.encode_payload(b"body", pairs) == payload.Payload(b"body", 0)


def test_system_pairs_stand_first():
    text = payload.attribute_text({"k1": "v1"}, "fA", "202401020304")
    assert text == "$msgType$=fA,$msgTime$=202401020304,k1=v1"
    assert payload.attribute_text(None, "fA") == "$msgType$=fA"
    assert payload.attribute_text(None, None, "202401020304") == "$msgTime$=202401020304"
    assert payload.attribute_text({"a": "1", "b": "2"}) == "a=1,b=2"
    assert payload.attribute_text(None) == ""


@in_one_test("bad", ["", " ", "\t", "a,b", "a=b", "$msgType$", "x$msgTime$y", "$groupName$", ",", "="])
def test_parts_that_would_break_the_format_are_refused(bad):
    for pairs, message_type in (({bad: "v"}, None), ({"k": bad}, None), (None, bad)):
        with pytest.raises(OptionError) as caught:
            payload.encode_payload(b"body", pairs, message_type)
        assert caught.value.condition == "TUBEMQ_BAD_MESSAGE"


@pytest.mark.parametrize("message_type", [" fA", "fA ", "\nfA"])
def test_a_type_with_blanks_around_it_is_refused(message_type):
    """Peers trim it, so a filter would compare another text."""
    with pytest.raises(OptionError, match="blanks around it"):
        payload.encode_payload(b"body", None, message_type)


@in_one_test(
    "message_time",
    [
        "",
        "20240102030",
        "2024010203045",
        "20240102 304",
        "20240002030 ",
        "202400020304",
        "202413020304",
        "202401000304",
        "202401320304",
        "202401022404",
        "202401020360",
        "202401020304\n",
        "٢٠٢٤٠١٠٢٠٣٠٤",
    ],
)
def test_times_of_another_form_are_refused(message_time):
    with pytest.raises(OptionError, match="yyyyMMddHHmm"):
        payload.encode_payload(b"body", None, None, message_time)


def test_an_empty_value_is_refused():
    with pytest.raises(OptionError, match="its value is empty"):
        payload.encode_payload(b"", {"k": "v"})


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(OptionError, match="not Unicode"):
        payload.encode_payload(b"body", {"k": "\ud800"})


@pytest.mark.parametrize("flag", [0, 2, -2, 1 << 30])
def test_without_the_flag_everything_is_body(flag):
    assert payload.decode_payload(b"\0\0\0\1ab", flag) == payload.DecodedPayload(b"\0\0\0\1ab", None)


@pytest.mark.parametrize("flag", [1, 3, -1])
def test_with_the_flag_attributes_are_taken_off(flag):
    assert payload.decode_payload(b"\0\0\0\3a=bxy", flag) == payload.DecodedPayload(b"xy", {"a": "b"})


@pytest.mark.parametrize("length", [0, -1, own.INT32_MIN])
def test_a_length_of_zero_or_less_means_no_attributes(length):
    data = struct.pack(">i", length) + b"body"
    assert payload.decode_payload(data, 1) == payload.DecodedPayload(b"body", None)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no room"),
        (b"\0\0\0", "no room"),
        (b"\0\0\0\1", "announces 1 bytes"),
        (b"\0\0\0\5abcd", "announces 5 bytes"),
        (b"\x7f\xff\xff\xffabcd", "announces 2147483647 bytes"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(data, text):
    with pytest.raises(RemoteProtocolError, match=text):
        payload.decode_payload(data, 1)


def test_attributes_may_fill_the_payload():
    assert payload.decode_payload(b"\0\0\0\3a=b", 1) == payload.DecodedPayload(b"", {"a": "b"})


def test_attributes_that_are_not_utf8_do_not_lose_the_body():
    assert payload.decode_payload(b"\0\0\0\3a=\xffxy", 1) == payload.DecodedPayload(b"xy", {"a": "\ufffd"})


@in_one_test(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a=b,c=d", {"a": "b", "c": "d"}),
        ("a", {}),
        ("a,b=c,,", {"b": "c"}),
        ("a=b=c", {"a": "b"}),
        ("a=1,a=2", {"a": "1"}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
    ],
)
def test_attributes_are_read_as_tubemq_reads_them(text, expected):
    assert payload.parse_attributes(text) == expected


@given(st.binary(max_size=30), own.int32s)
def test_any_payload_decodes_or_gives_our_error(data, flag):
    try:
        decoded = payload.decode_payload(data, flag)
    except RemoteProtocolError:
        assert flag & 1
    else:
        assert data.endswith(decoded.value)


@given(st.binary(max_size=100))
def test_checksums_are_never_negative(data):
    assert 0 <= payload.checksum(data) <= own.INT32_MAX


@given(st.text(), st.text())
def test_hashes_obey_the_law_of_java_strings(left, right):
    """``hash(a + b) = hash(a) * 31 ** units(b) + hash(b)`` in int32, over UTF-16 units."""
    units = len(right.encode("utf-16-be")) // 2
    expected = payload.java_hash(left) * 31**units + payload.java_hash(right)
    assert (payload.java_hash(left + right) - expected) % 2**32 == 0
    assert own.INT32_MIN <= payload.java_hash(left) <= own.INT32_MAX


def test_a_lone_surrogate_is_one_unit():
    assert payload.java_hash("\ud800") == 0xD800
