"""The column decoder gives what parsing every message by protobuf gives, however messages are laid out."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from testkit.examples import examples
from testkit.wire import decode_fetch
from tests.protocol.fetch_answers import answers, broken_messages, odd_messages, sound_messages
from tests.protocol.vectors import named
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import Message
from tubemq_spark.protocol import fetch_decoder, rpc
from tubemq_spark.protocol.fetch_columns import MessageColumns
from tubemq_spark.protocol.payload import checksum, decode_payload, encode_payload
from tubemq_spark.protocol.pb import broker_pb2

pytestmark = pytest.mark.usefixtures("each_twin")


def decode_by_protobuf(body: bytes) -> tuple[list[tuple[int, Message]], list[int]]:
    """The plain way: full parse, then one message after the other."""
    sound, corrupt = [], []
    answer = rpc.parse_message(broker_pb2.GetMessageResponseB2C, body)
    for ordinal, message in enumerate(answer.messages):
        try:
            if checksum(message.payLoadData) != message.checkSum:
                raise RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what="wrong checksum")
            parts = decode_payload(message.payLoadData, message.flag)
        except RemoteProtocolError:
            corrupt.append(ordinal)
        else:
            sound.append((ordinal, Message(parts.value, parts.attributes, message.messageId)))
    return sound, corrupt


def rows(found: MessageColumns) -> list[tuple[int, Message]]:
    return [(int(ordinal), found.message(row)) for row, ordinal in enumerate(found.ordinals)]


def assert_same_as_protobuf(body: bytes) -> None:
    try:
        expected = decode_by_protobuf(body)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            decode_fetch(body)
        return
    _, found, corrupt = decode_fetch(body)
    assert (rows(found), corrupt.tolist()) == expected


def decode_slowly(messages: list[bytes]):
    """Call every message irregular."""
    sizes = np.array([len(message) for message in messages], np.int64)
    ends = np.cumsum(sizes)
    data = b"".join((*messages, fetch_decoder.varints.PADDING))
    heads, _ = fetch_decoder._read_heads(data, ends - sizes, ends)
    parsed = fetch_decoder._with_parsed(data, heads, messages, np.arange(len(messages)))
    return fetch_decoder._separate_damaged(*parsed)


@given(answers(st.lists(sound_messages(), max_size=12)))
def test_messages_as_brokers_write_them(body):
    assert_same_as_protobuf(body)


@settings(max_examples=examples(50, by_night=750))
@given(answers(st.lists(st.one_of(sound_messages(), odd_messages()), max_size=6)))
def test_messages_laid_out_in_any_way(body):
    assert_same_as_protobuf(body)


@settings(max_examples=examples(40, by_night=500))
@given(answers(st.lists(st.one_of(sound_messages(), odd_messages(), broken_messages), max_size=4)))
def test_messages_that_do_not_parse(body):
    assert_same_as_protobuf(body)


@settings(max_examples=examples(40, by_night=500))
@given(answers(st.lists(sound_messages(), min_size=1, max_size=4)), st.data())
def test_any_byte_damaged(body, data):
    damaged = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=3)):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_same_as_protobuf(bytes(damaged))


@given(st.lists(sound_messages(), max_size=8))
def test_both_ways_give_the_same_columns(messages):
    fast, fast_corrupt = fetch_decoder.decode_messages(messages)
    slow, slow_corrupt = decode_slowly(messages)

    assert rows(fast) == rows(slow)
    assert fast_corrupt.tolist() == slow_corrupt.tolist()
    assert fast.has_attributes.tolist() == slow.has_attributes.tolist()
    assert fast.nbytes == slow.nbytes


@given(st.lists(sound_messages(), min_size=1, max_size=8))
def test_messages_of_brokers_take_the_fast_way(messages):
    sizes = np.array([len(message) for message in messages], np.int64)
    ends = np.cumsum(sizes)
    _, regular = fetch_decoder._read_heads(
        b"".join((*messages, fetch_decoder.varints.PADDING)), ends - sizes, ends
    )
    assert regular.all()


def test_truncated_at_every_byte():
    body = bytes.fromhex(named("get_message_two_rsp")["messageHex"])
    for at in range(len(body)):
        assert_same_as_protobuf(body[:at])


def test_the_recorded_fetch():
    header, found, corrupt = decode_fetch(bytes.fromhex(named("get_message_two_rsp")["messageHex"]))

    assert header == fetch_decoder.FetchHeader(
        success=True,
        err_code=200,
        err_msg="OK!",
        current_offset=0,
        max_offset=280,
        wait_ms=0,
        data_lag=4096,
        require_slow=False,
    )
    assert rows(found) == [
        (0, Message(b"plain body", None, 3369663302115262464)),
        (
            1,
            Message(
                b"hello tubemq",
                {"$msgType$": "fA", "$msgTime$": "202401020304", "k1": "v1"},
                3369719412767588352,
            ),
        ),
    ]
    assert len(corrupt) == 0


def test_the_recorded_end_of_data():
    header, found, corrupt = decode_fetch(bytes.fromhex(named("get_message_notfound_rsp")["messageHex"]))
    assert (header.success, header.err_code, header.max_offset) == (False, 404, None)
    assert (header.current_offset, header.wait_ms, header.data_lag) == (-1, -1, -1)
    assert len(found) == len(corrupt) == found.nbytes == 0


def test_absent_header_fields():
    body = broker_pb2.GetMessageResponseB2C(success=True, errCode=200).SerializeToString()
    header, found, _ = decode_fetch(body)
    assert header == fetch_decoder.FetchHeader(True, 200, "", -1, None, -1, -1, False)
    assert len(found) == 0


def answer_of(*values: bytes, damaged: tuple[int, ...] = ()) -> bytes:
    answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200)
    for number, value in enumerate(values):
        encoded = encode_payload(value, {"n": str(number)} if number % 2 else None)
        answer.messages.add(
            messageId=1 << 61 | number,
            checkSum=checksum(encoded.data) ^ (number in damaged),
            payLoadData=encoded.data,
            flag=encoded.flag,
        )
    return answer.SerializeToString()


def test_damaged_rows_are_named_and_left_out():
    _, found, corrupt = decode_fetch(answer_of(b"a", b"b", b"c", b"d", damaged=(0, 2)))
    assert corrupt.tolist() == [0, 2]
    assert found.ordinals.tolist() == [1, 3]
    assert [message.value for _, message in rows(found)] == [b"b", b"d"]


@given(st.integers(0, 6), st.integers(0, 6))
def test_slices_are_the_rows_between(start, end):
    _, found, _ = decode_fetch(answer_of(b"a", b"bb", b"ccc", b"dddd", b"eeeee"))
    part = found.slice(start, end)
    assert rows(part) == rows(found)[start:end]
    assert len(part) == len(part.ordinals)
    assert part.data is found.data


def test_nbytes_counts_values_and_attributes():
    _, found, _ = decode_fetch(answer_of(b"aaa", b"bb"))
    assert found.nbytes == 3 + 2 + len("n=1")
    assert found.slice(1, 2).nbytes == 2 + len("n=1")


def test_positions_lie_in_the_buffer():
    _, found, _ = decode_fetch(answer_of(b"aaa", b"bb"))
    values = [found.data[a:b] for a, b in zip(found.value_start, found.value_end, strict=True)]
    texts = [found.data[a:b] for a, b in zip(found.attribute_start, found.attribute_end, strict=True)]
    assert values == [b"aaa", b"bb"]
    assert texts == [b"", b"n=1"]
    assert found.has_attributes.tolist() == [False, True]
    for column in (found.ordinals, found.message_ids, found.value_start, found.attribute_end):
        assert column.dtype == np.int64


def test_a_row_that_is_not_there():
    _, found, _ = decode_fetch(answer_of(b"a"))
    with pytest.raises(IndexError):
        found.message(1)


def test_columns_survive_pickling():
    _, found, _ = decode_fetch(answer_of(b"a", b"b"))
    assert rows(pickle.loads(pickle.dumps(found))) == rows(found)


def test_a_flood_of_empty_messages_is_refused_before_they_are_listed():
    body = (
        broker_pb2.GetMessageResponseB2C(success=True, errCode=200).SerializeToString() + b"\x22\0" * 100_000
    )
    with pytest.raises(RemoteProtocolError, match="100000 messages in an answer of 20000"):
        decode_fetch(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "missing required fields: success,errCode"),
        (b"\x08\x01", "missing required fields: errCode"),
        (b"\x22\x05\x08", "RawGetMessageResponseB2C does not parse"),
        (b"\x08\x01\x10\xc8\x01\x1a\x01\xff", "errMsg of RawGetMessageResponseB2C is not UTF-8"),
        (b"\x08\x01\x10\xc8\x01\x22\x09\x08\x01\x10\x01\x1a\x03abc", "TransferedMessage is missing .*flag"),
        (
            b"\x08\x01\x10\xc8\x01\x22\x09\x08\x01\x10\x01\x1a\x09\x20\x00\x00",
            "TransferedMessage does not parse",
        ),
    ],
)
def test_answers_that_are_none(body, text):
    with pytest.raises(RemoteProtocolError, match=text):
        decode_fetch(body)
