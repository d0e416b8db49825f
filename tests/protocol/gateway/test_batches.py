"""Fetched messages arrive as they were sent, whichever twin gathers them; malformed ones are refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.protocol.gateway.gateway_values import fetched_batches
from tests.source.rows import PARTITION, fetched
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import MalformedMessageError


def rows_of(batch):
    columns = batch.columns
    return [
        (columns.message(row), int(columns.ordinals[row]), bool(columns.has_attributes[row]))
        for row in range(len(columns))
    ]


def there_and_back(batch):
    message, data = batches.to_proto(batch)
    return batches.from_proto(pb.RecordBatch.FromString(message.SerializeToString()), data, batch.partition)


@given(fetched_batches())
def test_a_batch_arrives_as_it_was_sent(batch):
    again = there_and_back(batch)

    assert rows_of(again) == rows_of(batch)
    for name in ("partition", "start", "next", "dense", "bytes_behind"):
        assert getattr(again, name) == getattr(batch, name)
    assert again.columns.nbytes == batch.columns.nbytes


@given(fetched_batches())
def test_both_twins_write_the_same(batch):
    compiled = speedups.compiled
    written = batches.to_proto(batch)
    try:
        speedups.compiled = None
        assert batches.to_proto(batch) == written
    finally:
        speedups.compiled = compiled


def test_only_the_messages_own_bytes_travel():
    batch = fetched([(b"value", "a=1"), (b"x", None)])

    message, data = batches.to_proto(batch)

    assert data == b"valuex" + b"a=1"
    assert np.frombuffer(message.borders, "<i4").tolist() == [0, 5, 6, 9, 9]
    assert message.has_attributes == b"\1\0"
    assert not message.ordinals


@in_one_test(
    "change",
    [
        {"borders": b"123"},
        {"borders": np.array([0, 9, 3], "<i4").tobytes()},
        {"borders": np.array([-1, 3, 9], "<i4").tobytes()},
        {"borders": np.array([0, 3, 900], "<i4").tobytes()},
        {"message_ids": b"1234"},
        {"ordinals": np.array([1, 1], "<i8").tobytes()},
        {"ordinals": np.array([-1, 1], "<i8").tobytes()},
        {"has_attributes": b"\1"},
        {"has_attributes": b"\1\2"},
        {"count": 3},
        {"start": 1 << 40},
    ],
)
def test_a_message_that_contradicts_itself_is_refused(change):
    message, data = batches.to_proto(fetched([(b"one", None), (b"two...", None)]))
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(MalformedMessageError):
        batches.from_proto(message, data, PARTITION)


@given(st.binary(max_size=40), st.integers(0, 4), st.binary(max_size=8), st.binary(max_size=40))
def test_garbage_is_refused_or_read_within_its_bounds(borders, count, flags, data):
    message = pb.RecordBatch(count=count, borders=borders, has_attributes=flags, message_ids=bytes(8 * count))
    try:
        batch = batches.from_proto(message, data, PARTITION)
    except MalformedMessageError:
        return
    columns = dataclasses.asdict(batch.columns)
    for name in ("value_start", "value_end", "attribute_start", "attribute_end"):
        assert all(0 <= place <= len(data) for place in columns[name])
