import dataclasses
import pickle

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tests.offsets.strategies import offsets, tp
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.model import (
    MAX_OFFSET,
    Endpoint,
    Message,
    OffsetBounds,
    OffsetRange,
    StoreId,
    TopicPartition,
    is_aligned,
    require_aligned,
    rows_between,
)

VALUES = [
    Endpoint("h", 1),
    StoreId("demo", 1, 0),
    TopicPartition("demo", 1, 10001),
    OffsetBounds(0, 28),
    OffsetRange(TopicPartition("demo", 1, 0), 0, 28),
    Message(b"body", {"k": "v"}, 1),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_frozen_and_pickle(value):
    assert pickle.loads(pickle.dumps(value)) == value
    names = value._fields if isinstance(value, tuple) else [item.name for item in dataclasses.fields(value)]
    with pytest.raises(AttributeError):
        setattr(value, names[0], None)


@given(own.endpoints)
def test_endpoints_round_trip(endpoint):
    assert Endpoint.parse(str(endpoint)) == endpoint


@in_one_test(
    ("text", "default_port", "endpoint"),
    [
        ("10.1.2.3:8715", None, Endpoint("10.1.2.3", 8715)),
        (" host:1 ", None, Endpoint("host", 1)),
        ("host:65535", 8715, Endpoint("host", 65535)),
        ("host", 8715, Endpoint("host", 8715)),
        ("tubemq://host:8716", 8715, Endpoint("host", 8716)),
        ("tubemq://host:8716/", None, Endpoint("host", 8716)),
        ("tubemq://host", 8715, Endpoint("host", 8715)),
        ("[::1]:8715", None, Endpoint("::1", 8715)),
        ("tubemq://[2001:DB8::7]", 8715, Endpoint("2001:DB8::7", 8715)),
        ("10.10.2.3:8715", None, Endpoint("10.10.2.3", 8715)),
        ("1st-master.example:8715", None, Endpoint("1st-master.example", 8715)),
    ],
)
def test_endpoints_are_read(text, default_port, endpoint):
    assert Endpoint.parse(text, default_port) == endpoint


@in_one_test(
    "text",
    [
        *("", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x", "host:1.5", "host:٣"),
        *("::1:8715", "[::1]", "[]:8715", "[::1]8715", "[master]:8715", "[::1:8715"),
        *(
            "http://host:8715",
            "tubemq://",
            "tubemq://host",
            "tubemq:///x:1",
            "me@host:1",
            "a b:1",
            "host:1/x",
            "master..example.com:1",
            f"{'m' * 64}.example.com:1",
            "host\0:1",
        ),
    ],
)
def test_what_is_no_endpoint_is_refused(text):
    with pytest.raises(OptionError, match="is not an address; write host:port") as caught:
        Endpoint.parse(text)
    assert caught.value.parameters == {"address": text}


def test_bytes_that_are_no_text_are_shown_in_the_refusal():
    with pytest.raises(OptionError, match=r"'\\udcfe:1' is not an address"):
        Endpoint.parse("\udcfe:1")


def test_an_ipv6_address_is_written_as_it_is_read():
    assert str(Endpoint("::1", 8715)) == "[::1]:8715"
    assert Endpoint.parse(str(Endpoint("::1", 8715))) == Endpoint("::1", 8715)


def test_a_default_port_does_not_excuse_a_wrong_one():
    with pytest.raises(OptionError):
        Endpoint.parse("host:", default_port=8715)


@given(own.names, own.naturals, st.integers(0, 200_000), st.integers(0, 9_999))
def test_a_partition_lies_in_its_store(topic, broker_id, store, index):
    partition = TopicPartition(topic, broker_id, store * 10_000 + index)
    assert partition.store_id == StoreId(topic, broker_id, store)


def test_texts_for_people():
    partition = TopicPartition("demo", 1, 10001)
    assert partition.local_id == "1:10001"
    assert str(partition) == "demo/1:10001"
    assert str(partition.store_id) == "demo/1 store 1"
    assert str(OffsetRange(partition, 28, 56)) == "demo/1:10001 [28, 56)"


def test_partitions_and_endpoints_sort_by_number_not_by_text():
    partitions = [TopicPartition("a", 2, 0), TopicPartition("a", 10, 0), TopicPartition("a", 2, 10000)]
    assert sorted(partitions) == [partitions[0], partitions[2], partitions[1]]


@given(st.data())
def test_places_are_equal_when_their_texts_are(data):
    topics, numbers = st.sampled_from(["a", "b", "a/1"]), st.sampled_from([1, 10, 11])
    kind = data.draw(
        st.sampled_from(
            [
                st.builds(Endpoint, topics, numbers),
                st.builds(StoreId, topics, numbers, numbers),
                st.builds(TopicPartition, topics, numbers, numbers),
            ]
        )
    )
    one, other = data.draw(kind), data.draw(kind)
    assert (one == other) == (str(one) == str(other))
    assert len({one, other}) == len({str(one), str(other)})


@pytest.mark.parametrize(
    ("attributes", "message_type", "message_time"),
    [
        (None, None, None),
        ({}, None, None),
        ({"k": "v"}, None, None),
        ({"$msgType$": "fA", "$msgTime$": "202401020304"}, "fA", "202401020304"),
    ],
)
def test_the_system_attributes_of_a_message(attributes, message_type, message_time):
    message = Message(b"body", attributes, 1)
    assert (message.message_type, message.message_time) == (message_type, message_time)


@pytest.mark.parametrize(("attributes", "flag"), [(None, 0), ({}, 0), ({"key": "value"}, 1)])
def test_the_flag_of_a_message_says_whether_it_has_attributes(attributes, flag):
    assert Message(b"body", attributes, 1).flag == flag


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0, 0, 0), (0, 28, 1), (28, 84, 2), (84, 28, 0), (0, MAX_OFFSET, MAX_OFFSET // 28)],
)
def test_rows_between(start, end, rows):
    assert rows_between(start, end) == rows


@given(offsets)
def test_an_offset_is_returned_as_it_is(offset):
    assert require_aligned(offset) == offset


@in_one_test("number", [-28, -1, 1, 27, 29, MAX_OFFSET + 28, MAX_OFFSET + 1])
def test_other_numbers_are_refused(number):
    assert not is_aligned(number)
    with pytest.raises(OffsetFormatError) as caught:
        require_aligned(number, tp("demo/1:0"))
    assert caught.value.condition == "TUBEMQ_OFFSET_UNALIGNED"
    assert f"{number} of demo/1:0 is not an offset" in str(caught.value)


@in_one_test(
    ("number", "nearest"),
    [(30, "are 28 and 56"), (1, "are 0 and 28"), (-1, "is 0"), (MAX_OFFSET + 1, f"is {MAX_OFFSET}")],
)
def test_a_number_that_is_no_offset_is_told_which_are_nearest(number, nearest):
    with pytest.raises(OffsetFormatError, match=f"one step per message; the nearest {nearest}"):
        require_aligned(number)


def test_the_highest_offset_fits_into_64_bits():
    assert is_aligned(MAX_OFFSET)
    assert MAX_OFFSET < 2**63 <= MAX_OFFSET + 28
