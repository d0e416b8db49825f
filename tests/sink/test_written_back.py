"""A frame that our own source or Spark's text source read is written as it is, or refused with its row."""

import re

import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructField, StructType

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.payload import decode_payload, encode_payload
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
    made = bound(schema).rows(batch).messages
    assert len(made) == 1
    return made.message(0)


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
        ("k=,a=b", "its attribute k is blank"),
        ("=v,a=b", "its attribute name is blank"),
        ("a=b,x$groupName$=1", "'x$groupName$' contains a name that TubeMQ reserves"),
        ("a=b,$groupName$=1", "'$groupName$' contains a name that TubeMQ reserves"),
        ("a=b,k=$msgTime$", "'$msgTime$' contains a name that TubeMQ reserves"),
        ("$msgType$= news,a=b", "its type ' news' has blanks around it"),
        ("$msgType$=,a=b", "its type is blank"),
        ("$msgTime$=20240229123456", "its time '20240229123456' is not of the form yyyyMMddHHmm"),
        ("$msgTime$=yesterday,a=b", "its time 'yesterday' is not of the form yyyyMMddHHmm"),
        ("$msgTime$=,a=b", "its time '' is not of the form yyyyMMddHHmm"),
    ],
)
def test_what_cannot_be_written_as_it_was_read_is_never_changed(foreign, told):
    prefix = foreign.encode()
    read = decode_payload(len(prefix).to_bytes(4, "big") + prefix + b"x", 1)

    made = message(value="x", attributes=read.attributes)

    with pytest.raises(OptionError, match=re.escape(told)):
        stored_attributes(made)


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
