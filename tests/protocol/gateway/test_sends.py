"""Messages to send arrive as they were given; malformed ones are refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.protocol.gateway.gateway_values import send_batches
from tubemq_spark.errors import OptionError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends, service
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.protocol.send_batch import Coded, MessageHeader, SendBatch


def there_and_back(batch):
    return sends.from_proto(pb.MessageBatch.FromString(sends.to_proto(batch).SerializeToString()))


def everything(batch):
    return [
        (
            batch.message(row),
            list((batch.headers.value(row).attributes or {}).items()),
            batch.headers.value(row),
        )
        for row in range(len(batch))
    ]


def batch_of(*headers, topics=("t",)):
    """A message for each header, to the topics in turn."""
    count = len(headers)
    return dataclasses.replace(
        SendBatch.of("t", [b"x"] * count),
        headers=Coded(headers, np.arange(count)),
        topics=Coded(topics, np.arange(count) % len(topics)),
    )


@in_one_test(
    ("batch", "parts"),
    [
        (batch_of(*[MessageHeader(message_time=str(number)) for number in range(10_000)]), 1),
        (batch_of(*[MessageHeader(message_time=str(number)) for number in range(10_001)]), 2),
        (batch_of(*[MessageHeader(dict.fromkeys(map(str, range(30)), "v"))] * 5_000), 2),
        (batch_of(*[MessageHeader()] * 10, topics=tuple(map(str, range(10)))), 1),
        (SendBatch.of("t", [b"x"] * 50_000), 1),
        (SendBatch.of("t", [bytes(600 << 10)] * 2), 2),
    ],
)
def test_messages_travel_in_parts_that_a_gateway_takes(batch, parts):
    borders = list(sends.parts(batch, 0, len(batch)))
    assert len(borders) == parts
    assert [start for start, _ in borders] + [len(batch)] == [0] + [stop for _, stop in borders]
    for start, stop in borders:
        data = sends.to_proto(batch.part(start, stop)).SerializeToString()
        assert service.parsed_bytes(pb.MessageBatch, data) >= len(data)


def test_a_part_has_as_many_messages_as_fit(monkeypatch):
    monkeypatch.setattr(service, "PART_BYTES", 60)
    batch = SendBatch.of("demo", [bytes(6)] * 25 + [bytes(100), b"last"])
    assert list(sends.parts(batch, 1, 27)) == [(1, 11), (11, 21), (21, 25), (25, 26), (26, 27)]


@given(send_batches())
def test_messages_arrive_as_they_were_given(batch):
    again = there_and_back(batch)

    assert len(again) == len(batch)
    assert everything(again) == everything(batch)
    assert again.first_row == batch.first_row


@given(send_batches(), st.data())
def test_a_part_carries_only_its_own_bodies(batch, data):
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    part = batch.part(start, stop)

    message = sends.to_proto(part)

    assert everything(sends.from_proto(message)) == everything(part)
    assert len(message.values.data) == int(batch.values.offsets[stop] - batch.values.offsets[start])


def test_attributes_keep_their_order():
    header = MessageHeader({"z": "1", "a": "2", "m": "3"})
    again = there_and_back(SendBatch.of("demo", [b"x"], header=header))
    assert list(again.headers.value(0).attributes) == ["z", "a", "m"]


@pytest.mark.parametrize(
    "batch",
    [
        SendBatch.of("demo", [b"x"], header=MessageHeader({"a": "\ud800"})),
        SendBatch.of("\ud800", [b"x"]),
        SendBatch.of("demo", [b"x"], header=MessageHeader({"a": 1})),
        dataclasses.replace(
            SendBatch.of("demo", [b"x"]), partitions=Coded(((1, 1 << 31),), np.zeros(1, np.int64))
        ),
    ],
)
def test_what_is_neither_text_nor_a_place_is_refused(batch):
    with pytest.raises(OptionError, match="TUBEMQ_BAD_MESSAGE"):
        sends.to_proto(batch)


def codes(*numbers):
    return np.array(numbers, "<i4").tobytes()


@in_one_test(
    "change",
    [
        {"topic_codes": codes(0, 1)},
        {"topic_codes": codes(0, -1)},
        {"topic_codes": codes(0)},
        {"header_codes": codes(0, 7)},
        {"header_codes": b"1"},
        {"place_codes": codes(0, 1)},
        {"values": pb.BytesColumn(data=b"ab", borders=np.array([0, 2, 1], "<i8").tobytes())},
        {"values": pb.BytesColumn(data=b"ab", borders=np.array([0, 1, 3], "<i8").tobytes())},
        {"values": pb.BytesColumn(data=b"ab", borders=np.array([0, 1, 2], "<i8").tobytes(), nulls=b"\0\1")},
        {"keys": pb.BytesColumn(data=b"ab", borders=b"")},
        {"uids": pb.BytesColumn(data=b"ab", borders=np.array([0, 1, 2], "<i8").tobytes(), nulls=b"\0")},
    ],
)
def test_a_message_that_contradicts_itself_is_refused(change):
    message = sends.to_proto(SendBatch.of("demo", [b"a", b"b"]))
    message.MergeFrom(pb.MessageBatch(**{name: value for name, value in change.items() if name == "places"}))
    for name, value in change.items():
        if isinstance(value, bytes):
            setattr(message, name, value)
        else:
            getattr(message, name).CopyFrom(value)
    with pytest.raises(MalformedMessageError):
        sends.from_proto(message)
