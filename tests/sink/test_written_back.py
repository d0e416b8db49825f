"""A frame that our own source or Spark's text source read is written as it is."""

import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructField, StructType

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.model import Endpoint
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.payload import decode_payload, encode_payload
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.repairs import Repairs

TYPES = {
    "value": (StringType(), pa.string()),
    "key": (StringType(), pa.string()),
    "messageType": (StringType(), pa.string()),
    "attributes": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}
ATTRIBUTES = {"$msgType$": "news", "$msgTime$": "202402291234", "a": "b"}


def message(repairs=None, **columns):
    """Return the message made of a row."""
    schema = StructType([StructField(name, TYPES[name][0]) for name in columns])
    arrays = [
        value if isinstance(value, pa.Array) else pa.array([value], TYPES[name][1])
        for name, value in columns.items()
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    (made,) = bound(schema).batches(batch, repairs or Repairs())
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
    ("foreign", "stored", "told"),
    [
        ("k=,a=b", {"a": "b"}, "attributes that are blank"),
        ("=v,a=b", {"a": "b"}, "attributes that are blank"),
        ("a=b,x$groupName$=1", {"a": "b"}, "attributes that are blank"),
        ("$msgType$= news,a=b", {"$msgType$": "news", "a": "b"}, "blanks around"),
        ("$msgType$=  ,a=b", {"a": "b"}, "blanks around"),
        ("$msgTime$=20240229123456", {"$msgTime$": "202402291234"}, "cut to the minute"),
        ("$msgTime$=yesterday,a=b", {"a": "b"}, "not a time"),
        ("k=", None, "attributes that are blank"),
    ],
)
def test_messages_of_other_producers_are_mirrored(foreign, stored, told, caplog):
    """Our source hands them over as they are; nothing about them is the user's fault."""
    prefix = foreign.encode()
    read = decode_payload(len(prefix).to_bytes(4, "big") + prefix + b"x", 1)
    repairs = Repairs()

    made = message(
        repairs, value="x", attributes=read.attributes, messageType=read.attributes.get("$msgType$")
    )

    assert stored_attributes(made) == stored
    repairs.tell("task 3")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("task 3: ")
    assert told in line


def test_nothing_is_told_of_rows_that_are_written_as_they_are(caplog):
    repairs = Repairs()
    message(repairs, value="x", attributes=ATTRIBUTES, messageType="news")
    repairs.tell("task 3")
    assert caplog.records == []


def test_a_column_wins_over_the_attribute():
    made = message(value="x", attributes=ATTRIBUTES, messageType="other")

    assert stored_attributes(made) == ATTRIBUTES | {"$msgType$": "other"}


def test_a_text_that_is_no_utf_8_is_sent_as_it_is():
    """``spark.read.text`` takes a file's bytes as they are, whatever their encoding."""
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00")
    latin = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xe9\xff")])

    made = message(value=latin, key=latin)

    assert (made.value, made.key) == (b"\xe9\xff", b"\xe9\xff")
