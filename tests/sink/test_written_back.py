"""A frame that our own source or Spark's text source read is written as it is, or refused with its row."""

import re

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.payload import decode_payload, encode_payload, encode_prefix
from tubemq_spark.sink.columns import SinkColumns

TYPES = {
    "value": (StringType(), pa.string()),
    "key": (StringType(), pa.string()),
    "messageType": (StringType(), pa.string()),
    "attributes": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}
ATTRIBUTES = {"$msgType$": "news", "$msgTime$": "202402291234", "a": "b"}


def message(**columns):
    """Return the message made of a row."""
    schema = StructType([StructField(name, TYPES[name][0]) for name in columns])
    arrays = [
        value if isinstance(value, pa.Array) else pa.array([value], TYPES[name][1])
        for name, value in columns.items()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    messages = bound(schema).rows(batch, 1).messages
    assert len(messages) == 1
    return messages.message(0)


def bound(schema):
    client = ClientConfig((Endpoint("master", 8715),), "test")
    return SinkColumns.bind(schema, WriteOptions(client, "demo", MessageTime.COLUMN))


def stored_attributes(made):
    payload = encode_payload(made.value, made.attributes, made.message_type, made.message_time)
    return decode_payload(payload.data, payload.flag).attributes


@pytest.mark.parametrize("columns", [{}, {"messageType": None}, {"messageType": "news"}])
def test_type_and_time_among_the_attributes_are_the_message_s(columns):
    made = message(value="x", attributes=ATTRIBUTES, **columns)

    assert (made.message_type, made.message_time, made.attributes) == ("news", "202402291234", {"a": "b"})
    assert stored_attributes(made) == ATTRIBUTES


@pytest.mark.parametrize(
    ("foreign", "told"),
    [
        ("a=b,x$groupName$=1", "'x$groupName$' contains a name that TubeMQ reserves"),
        ("a=b,$groupName$=1", "'$groupName$' contains a name that TubeMQ reserves"),
        ("a=b,k=$msgTime$", "'$msgTime$' contains a name that TubeMQ reserves"),
    ],
)
def test_what_cannot_be_written_as_it_was_read_is_never_changed(foreign, told):
    prefix = foreign.encode()
    read = decode_payload(len(prefix).to_bytes(4, "big") + prefix + b"x", 1)

    made = message(value="x", attributes=read.attributes)

    with pytest.raises(OptionError, match=re.escape(told)):
        stored_attributes(made)


@pytest.mark.parametrize(
    "foreign",
    [
        "k=,a=b",
        "=v,a=b",
        "$msgType$= news,a=b",
        "$msgType$=,a=b",
        "$msgTime$=20240229123456",
        "$msgTime$=yesterday,a=b",
        "$msgTime$=,a=b",
    ],
)
def test_what_other_producers_write_otherwise_goes_through_unchanged(foreign):
    prefix = foreign.encode()
    read = decode_payload(len(prefix).to_bytes(4, "big") + prefix + b"x", 1)
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"x"], "attributes": pa.array([read.attributes], TYPES["attributes"][1])}
    )
    schema = StructType(
        [StructField("value", BinaryType()), StructField("attributes", TYPES["attributes"][0])]
    )
    (header,) = bound(schema).rows(batch, 1).messages.headers.values

    written = encode_prefix(*header) + b"x"

    assert decode_payload(written, 1).attributes == read.attributes


@pytest.mark.parametrize("name", ["k", "$msgType$", "$msgTime$"])
def test_a_null_attribute_is_not_left_out(name):
    with pytest.raises(OptionError, match="TUBEMQ_BAD_MESSAGE"):
        stored_attributes(message(value="x", attributes={name: None}))


def test_a_column_wins_over_the_attribute():
    made = message(value="x", attributes=ATTRIBUTES, messageType="other")

    assert stored_attributes(made) == ATTRIBUTES | {"$msgType$": "other"}


def test_a_text_that_is_no_utf_8_is_sent_as_it_is():
    """``spark.read.text`` takes a file's bytes as they are, whatever their encoding."""
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00")
    latin = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xe9\xff")])

    made = message(value=latin, key=latin)

    assert (made.value, made.key) == (b"\xe9\xff", b"\xe9\xff")
