"""A frame's columns and rows become messages, or are refused with the reason."""

import datetime
import pickle
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import (
    BinaryType,
    CharType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from tests.cases import in_one_test
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.message_time import minutes_of, text_of
from tubemq_spark.options import MessageTime, WriteOptions
from tubemq_spark.protocol.send_batch import Coded
from tubemq_spark.sink.columns import SinkColumns, bytes_column, coded, coded_maps, coded_minutes, combined
from tubemq_spark.source.schema import default_schema

ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Shanghai"])
NOW_S = 1_709_210_096.0
"""2024-02-29 12:34:56 UTC."""

ARROW_TYPES = {
    "value": pa.binary(),
    "topic": pa.string(),
    "key": pa.string(),
    "brokerId": pa.int32(),
    "partition": pa.int32(),
    "messageType": pa.string(),
    "timestamp": pa.timestamp("us", "Etc/UTC"),
    "attributes": pa.map_(pa.string(), pa.string()),
}


TYPES = {
    "value": StringType(),
    "topic": StringType(),
    "key": StringType(),
    "brokerId": IntegerType(),
    "partition": IntegerType(),
    "messageType": StringType(),
    "timestamp": TimestampType(),
    "attributes": MapType(StringType(), StringType()),
}


VALUE = StructField("value", StringType())


def schema_of(*names):
    return StructType([StructField(name, TYPES[name]) for name in names])


def bind(schema, topic="demo", zone="UTC", message_time=MessageTime.COLUMN):
    return pickle.loads(pickle.dumps(SinkColumns.bind(schema, options(topic, zone, message_time))))


def options(topic="demo", zone="UTC", message_time=MessageTime.COLUMN):
    client = ClientConfig((Endpoint("master", 8715),), "test")
    return WriteOptions(client, topic, message_time, zone)


def messages(columns, topic="demo", zone="UTC", types=ARROW_TYPES, message_time=MessageTime.COLUMN, first=1):
    """Return the messages made of columns of values."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, types[name]) for name, values in columns.items()], names=list(columns)
    )
    bound = bind(schema_of(*columns), topic, zone, message_time)
    rows = bound.rows(batch, first, now=lambda: NOW_S)
    for row in np.flatnonzero(rows.refused).tolist():
        raise rows.refusal(row)
    return [rows.messages.message(row) for row in range(len(rows.messages))]


def test_a_value_is_enough():
    (message,) = messages({"value": [b"x"]})

    assert (message.topic, message.value) == ("demo", b"x")
    rest = (message.attributes, message.message_type, message.message_time, message.key, message.partition)
    assert rest == (None,) * 5


def test_texts_are_sent_as_utf_8():
    texts = ARROW_TYPES | {"value": pa.large_string()}

    (message,) = messages({"value": ["wörd 中"], "key": ["kéy"]}, types=texts)

    assert (message.value, message.key) == ("wörd 中".encode(), "kéy".encode())


def test_a_row_with_everything():
    moment = datetime.datetime(2024, 2, 29, 12, 34, 56, 789, datetime.UTC)
    (message,) = messages(
        {
            "value": [b"x"],
            "topic": ["other"],
            "key": ["k"],
            "brokerId": [1],
            "partition": [10_000],
            "messageType": ["news"],
            "timestamp": [moment],
            "attributes": [{"a": "b"}],
        },
        topic=None,
    )

    assert message.topic == "other"
    assert message.partition == (1, 10_000)
    assert (message.message_type, message.message_time) == ("news", "202402291234")
    assert message.attributes == {"a": "b"}


def test_the_option_wins_over_the_column():
    assert [message.topic for message in messages({"value": [b"x"], "topic": [None]}, "demo")] == ["demo"]


def test_a_row_names_a_route_or_none():
    rows = messages({"value": [b"x"] * 2, "brokerId": [1, None], "partition": [0, None]})

    assert [row.partition for row in rows] == [(1, 0), None]


@pytest.mark.parametrize(("broker", "partition"), [(1, None), (None, 0)])
def test_half_a_route_in_a_row_is_refused(broker, partition):
    told = rf"HALF_NULL_ROUTE\] Row 1 of .* has brokerId {broker} and partition {partition};"
    with pytest.raises(ProduceError, match=told):
        messages({"value": [b"x"], "brokerId": [broker], "partition": [partition]})


@pytest.mark.parametrize(
    ("zone", "moment", "expected"),
    [
        ("UTC", datetime.datetime(2024, 1, 1, 0, 0, 59, 999_999, datetime.UTC), "202401010000"),
        ("Asia/Shanghai", datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "202401010800"),
        ("UTC", datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC), "196912312359"),
        ("UTC", datetime.datetime(800, 1, 1, tzinfo=datetime.UTC), "080001010000"),
        ("UTC", None, None),
    ],
)
def test_times_are_written_in_the_topic_s_zone(zone, moment, expected):
    (message,) = messages({"value": [b"x"], "timestamp": [moment]}, zone=zone)

    assert message.message_time == expected


def test_a_time_of_the_second_of_two_equal_hours_is_refused():
    """Its text is that of an hour before, and would be read as that."""
    begin = datetime.datetime(2026, 11, 1, 5, tzinfo=datetime.UTC)
    hours = [begin + datetime.timedelta(minutes=minute) for minute in (0, 59, 60, 119, 120)]
    zone = "America/New_York"
    for moment, time in zip(hours, ("202611010100", "202611010159", None, None, "202611010200"), strict=True):
        if time is None:
            with pytest.raises(ProduceError, match="TUBEMQ_BAD_MESSAGE") as refused:
                messages({"value": [b"x"], "timestamp": [moment]}, zone=zone)
            assert "America/New_York sets its clocks back then, and 2026110101" in str(refused.value)
        else:
            (message,) = messages({"value": [b"x"], "timestamp": [moment]}, zone=zone)
            assert message.message_time == time


@given(st.integers(-900_000_000, 4_000_000_000), ZONES)
def test_a_time_that_is_written_is_read_as_it_was(minute, name):
    """To the minute, or to the one before where a zone once had an offset with seconds."""
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=minute)
    zone = zoneinfo.ZoneInfo(name)
    if minutes_of(text_of(minute, zone), zone).first < minute - 1:
        with pytest.raises(ProduceError, match="sets its clocks back then"):
            messages({"value": [b"x"], "timestamp": [moment]}, zone=name)
        return
    (message,) = messages({"value": [b"x"], "timestamp": [moment]}, zone=name)
    assert minute - minutes_of(message.message_time, zone).first in {0, 1}


def test_a_time_that_twelve_digits_cannot_tell():
    far = 253_402_300_800_000_000  # the year 10000

    with pytest.raises(ProduceError, match="TUBEMQ_BAD_MESSAGE") as refused:
        messages({"value": [b"x"], "timestamp": [far]})
    assert "yyyyMMddHHmm" in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "condition"),
    [
        ({"value": [b"x", None]}, "TUBEMQ_SINK_NULL_VALUE"),
        ({"value": [b"x", b"y"], "topic": ["demo", None]}, "TUBEMQ_SINK_NULL_TOPIC"),
    ],
)
def test_a_row_that_cannot_be_a_message(columns, condition):
    with pytest.raises(ProduceError) as refused:
        messages(columns, topic=None if "topic" in columns else "demo")

    assert refused.value.condition == condition


def test_a_frame_of_our_own_source_can_be_written_back():
    """What says where a row came from is left out."""
    columns = bind(default_schema(include_attributes=True))

    assert {"offset", "messageId"} & columns.names == set()


def test_where_a_row_came_from_is_no_route_to_write_to(caplog):
    caplog.set_level("INFO")

    assert {"brokerId", "partition"} & bind(default_schema(include_attributes=True)).names == set()
    assert "drop offset and messageId" in caplog.text


def test_a_route_is_one_when_the_columns_of_the_source_are_dropped():
    assert bind(schema_of("value", "brokerId", "partition")).names == {"value", "brokerId", "partition"}


@pytest.mark.parametrize(
    "text_type",
    [StringType(), BinaryType(), StringType("UTF8_LCASE"), VarcharType(40), CharType(3)],
    ids=lambda one: one.simpleString(),
)
def test_texts_of_any_kind_are_values(text_type):
    assert bind(StructType([StructField("value", text_type)])).names == {"value"}


@pytest.mark.parametrize("text_type", [StringType("UNICODE_CI"), VarcharType(40), CharType(3)])
def test_texts_of_any_kind_are_topics_types_and_attributes(text_type):
    fields = [StructField("messageType", text_type), StructField("attributes", MapType(text_type, text_type))]
    names = {"value", "topic", "messageType", "attributes"}
    assert bind(StructType([VALUE, StructField("topic", text_type), *fields])).names == names


def test_a_column_that_is_there_twice_is_refused():
    with pytest.raises(OptionError, match=r"TUBEMQ_SINK_DUPLICATE_COLUMN.*more than one column 'key'"):
        SinkColumns.bind(schema_of("key", "value", "key"), options())


@pytest.mark.parametrize(
    ("message_time", "expected"),
    [
        (MessageTime.NOW, ["202401010000", "202402291234"]),
        (MessageTime.COLUMN, ["202401010000", None]),
        (MessageTime.NONE, [None, None]),
    ],
)
def test_which_message_time_rows_get(message_time, expected):
    moments = [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None]

    rows = messages({"value": [b"x", b"y"], "timestamp": moments}, message_time=message_time)

    assert [row.message_time for row in rows] == expected


def test_the_time_of_writing_is_in_the_zone_of_the_message_times():
    (message,) = messages({"value": [b"x"]}, zone="Asia/Shanghai", message_time=MessageTime.NOW)

    assert message.message_time == "202402292034"


def test_the_time_of_writing_may_be_one_of_an_hour_that_comes_twice(caplog):
    """To refuse all rows for an hour would be worse; one warning says what readers take them for."""
    bound = bind(schema_of("value"), zone="America/New_York", message_time=MessageTime.NOW)
    batch = pa.RecordBatch.from_pydict({"value": [b"x"]})
    for minute in (0, 30, 59):
        now = datetime.datetime(2026, 11, 1, 6, minute, tzinfo=datetime.UTC).timestamp()
        (header,) = bound.rows(batch, 1, now=lambda now=now: now).messages.headers.values
        assert header.message_time == f"2026110101{minute:02}"
    assert len(caplog.messages) == 1
    assert "clocks of America/New_York were set back" in caplog.messages[0]


def test_an_error_names_the_row():
    with pytest.raises(ProduceError, match=r"Row 103 of this task \(b'c\\x00cc.*c'\.\.\.\) has a null"):
        messages(
            {"value": [b"a", b"b", b"c\0" + b"c" * 50], "topic": ["t", "t", None]}, topic=None, first=101
        )


def test_a_null_value_is_named_by_its_number():
    with pytest.raises(ProduceError, match=r"Row 12 of this task for topic 'demo' has a null value"):
        messages({"value": [b"a", None]}, first=11)


@in_one_test(
    ("fields", "topic", "condition", "told"),
    [
        ([StructField("key", StringType())], "demo", "TUBEMQ_SINK_NO_VALUE", "only key"),
        # Advice to drop it would leave nothing to write.
        ([StructField("body", StringType())], "demo", "TUBEMQ_SINK_NO_VALUE", "to_json(struct(*)) as value"),
        ([VALUE], None, "TUBEMQ_SINK_NO_TOPIC", "'topic'"),
        ([VALUE, StructField("partition", IntegerType())], "demo", "TUBEMQ_SINK_HALF_ROUTE", "'partition'"),
        ([VALUE, StructField("brokerId", IntegerType())], "demo", "TUBEMQ_SINK_HALF_ROUTE", "'brokerId'"),
        (
            [VALUE, StructField("brokerid", IntegerType())],
            "demo",
            "TUBEMQ_SINK_UNKNOWN_COLUMN",
            "'brokerId'?",
        ),
        ([VALUE, StructField("xyzzy", IntegerType())], "demo", "TUBEMQ_SINK_UNKNOWN_COLUMN", "messageType"),
        ([StructField("value", LongType())], "demo", "TUBEMQ_SINK_WRONG_TYPE", "string or binary"),
        (
            [VALUE, StructField("timestamp", LongType())],
            "demo",
            "TUBEMQ_SINK_WRONG_TYPE",
            "timestamp; cast it.",
        ),
        (
            [VALUE, StructField("timestamp", TimestampNTZType())],
            "demo",
            "TUBEMQ_SINK_WRONG_TYPE",
            "is timestamp_ntz, but must be timestamp_ltz; cast it.",
        ),
        (
            [StructField("value", StructType([VALUE]))],
            "demo",
            "TUBEMQ_SINK_WRONG_TYPE",
            "string or binary; make JSON of it with to_json(value).",
        ),
        (
            [VALUE, StructField("attributes", MapType(StringType(), TimestampType()))],
            "demo",
            "TUBEMQ_SINK_WRONG_TYPE",
            "map<string,string>",
        ),
    ],
)
def test_columns_that_cannot_be_written(fields, topic, condition, told):
    with pytest.raises(OptionError) as refused:
        SinkColumns.bind(StructType(fields), options(topic))

    assert refused.value.condition == condition
    assert told in str(refused.value)


TEXTS = st.none() | st.text(max_size=3)
MAPS = st.none() | st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "a:", "0", ","]), st.sampled_from([None, "", "1", ":1", "0"])),
    max_size=3,
    unique_by=lambda pair: pair[0],
)


def values(column):
    return [column.value(row) for row in range(len(column.codes))]


@given(st.lists(TEXTS, max_size=12), st.integers(0, 3))
def test_texts(texts, start):
    column = coded(pa.array(texts, pa.string()).slice(start))
    assert values(column) == texts[start:]
    assert list(column.values) == list(dict.fromkeys(texts[start:]))


@given(st.lists(MAPS, max_size=12), st.integers(0, 3))
def test_maps(maps, start):
    column = coded_maps(pa.array(maps, pa.map_(pa.string(), pa.string())).slice(start))
    assert values(column) == [pairs or None for pairs in maps[start:]]
    assert len(column.values) == len({tuple(pairs or ()) for pairs in maps[start:]})


@given(st.lists(TEXTS, max_size=12), st.integers(0, 3))
def test_bytes(texts, start):
    column = bytes_column(pa.array(texts, pa.string()).slice(start))
    expected = [None if text is None else text.encode() for text in texts[start:]]
    assert [column.value(row) for row in range(len(expected))] == expected
    assert column.offsets[0] == 0
    assert column.offsets[-1] == len(column.data)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "Etc/UTC"), pa.timestamp("ms", "UTC")])
def test_minutes(kind):
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    moments = [epoch - datetime.timedelta(seconds=1), None, epoch + datetime.timedelta(seconds=90)]
    assert values(coded_minutes(pa.array(moments, kind))) == [-1, None, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=20))
def test_combinations(rows):
    columns = [
        Coded(("a", "b", None), np.array([first for first, _ in rows])),
        Coded((0, 1, 2, 3), np.array([second for _, second in rows])),
    ]
    found = combined(*columns)
    assert values(found) == [(columns[0].values[first], second) for first, second in rows]
    assert len(found.values) == len(set(rows))
