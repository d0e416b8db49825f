"""Bodies of InLong become rows: in order, with what belongs to them, and malformed ones by the mode."""

import datetime
import logging
import subprocess
import sys
import zoneinfo

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import StructField, StructType

from testkit.inlong_msg import binary, container, in_version_4, snappy
from tests.source.rows import PARTITION, columns, fetched
from tubemq_spark.errors import InLongMsgError
from tubemq_spark.options import ParseMode, PayloadFormat
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.source import inlong
from tubemq_spark.source.inlong import InLongBuilder, InLongMessage, parse_inlong
from tubemq_spark.source.schema import arrow_schema, check_schema, default_schema, message_columns
from tubemq_spark.spark.columns import UNPACKED

pytestmark = pytest.mark.usefixtures("each_twin")

UTC = zoneinfo.ZoneInfo("UTC")
ALL_COLUMNS = default_schema(include_attributes=True, payload=PayloadFormat.INLONG)
SOUND = container(1, [("a=1", [(b"one", b""), (b"two", b"")]), ("b=2", [(b"three", b"")])], 1500)
PACKED = container(2, [("a=1", [(b"x" * 50, b""), (b"", b"")])], compress=snappy)
MIXED = in_version_4(binary([(b"own", b"k=v")], "c=3", own=True, numbers=(1, 2), seconds=60))
EMPTY = container(0, [])
JUNK = b"no container"
DAMAGED = container(0, [("", [(b"", b"")])], compress=lambda _: b"\1x")
"""Its data is not what Snappy writes."""


def schema_of(*names):
    return StructType([StructField(name, UNPACKED[name].type) for name in names])


def build(bodies, schema=ALL_COLUMNS, mode=ParseMode.PERMISSIVE, **how):
    """Return the record batches of bodies, given as those or with the texts of their attributes."""
    messages = [body if isinstance(body, tuple) else (body, None) for body in bodies]
    builder = InLongBuilder(arrow_schema(schema), UTC, mode)
    return [*builder.add(fetched(messages, **how), exact_offsets=True), *builder.finish()]


def build_rows(bodies, *names, mode=ParseMode.PERMISSIVE):
    made = build(bodies, schema_of(*names), mode)
    return [tuple(row.values()) for batch in made for row in batch.to_pylist(maps_as_pydicts="strict")]


def test_each_message_of_a_body_is_a_row_with_all_columns():
    (batch,) = build([(SOUND, "$msgType$=red"), (MIXED, None)])

    assert batch.schema == arrow_schema(ALL_COLUMNS)
    batch.validate(full=True)
    first, *_, last = batch.to_pylist(maps_as_pydicts="strict")
    assert first == {
        "value": b"one",
        "topic": PARTITION.topic,
        "brokerId": PARTITION.broker_id,
        "partition": PARTITION.partition_id,
        "offset": 0,
        "messageId": 1000,
        "timestamp": None,
        "messageType": "red",
        "attributes": {"$msgType$": "red"},
        "inlongAttributes": {"a": "1"},
        "inlongTime": datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC),
        "inlongIndex": 0,
        "_corrupt_record": None,
    }
    assert last["offset"] == 28
    assert last["inlongAttributes"] == {
        "k": "v",
        "c": "3",
        "dt": "60000",
        "groupId": "1",
        "streamId": "2",
        "cnt": "1",
    }
    assert batch.column("inlongIndex").to_pylist() == [0, 1, 2, 0]
    assert batch.column("messageId").to_pylist() == [1000, 1000, 1000, 1001]


def test_a_malformed_body_is_a_row_of_its_own_if_permitted():
    wanted = ("value", "inlongAttributes", "inlongTime", "inlongIndex", "_corrupt_record", "messageId")
    assert build_rows([PACKED, JUNK, EMPTY, b"", PACKED], *wanted) == [
        (b"x" * 50, {"a": "1"}, datetime.datetime(1970, 1, 1, tzinfo=UTC), 0, None, 1000),
        (b"", {"a": "1"}, datetime.datetime(1970, 1, 1, tzinfo=UTC), 1, None, 1000),
        (None, None, None, 0, JUNK, 1001),
        (None, None, None, 0, b"", 1003),
        (b"x" * 50, {"a": "1"}, datetime.datetime(1970, 1, 1, tzinfo=UTC), 0, None, 1004),
        (b"", {"a": "1"}, datetime.datetime(1970, 1, 1, tzinfo=UTC), 1, None, 1004),
    ]


def test_a_malformed_body_can_be_left_out():
    found = build_rows([JUNK, SOUND, DAMAGED], "value", mode=ParseMode.DROPMALFORMED)
    assert found == [(b"one",), (b"two",), (b"three",)]
    assert build([JUNK], mode=ParseMode.DROPMALFORMED) == []


def test_a_malformed_body_can_fail_the_query_by_its_name():
    with pytest.raises(InLongMsgError) as failed:
        build([SOUND, JUNK], mode=ParseMode.FAILFAST)
    assert str(failed.value).startswith(
        "[TUBEMQ_INLONG_MALFORMED] The body of message 1001 in demo/3:10001 is not a sound InLongMsg: "
        "it begins with 6e6f, not with 0f and a version from 0 to 4. Set mode=PERMISSIVE"
    )


@pytest.mark.parametrize("mode", [ParseMode.PERMISSIVE, ParseMode.DROPMALFORMED])
def test_a_task_tells_of_its_first_malformed_body(mode, caplog):
    with caplog.at_level(logging.WARNING):
        build([SOUND, JUNK, JUNK], mode=mode)
    (record,) = caplog.records
    assert "message 1001 in demo/3:10001" in record.getMessage()
    caplog.clear()
    build([SOUND, EMPTY], mode=mode)
    assert caplog.records == []


@given(
    st.lists(st.sampled_from([SOUND, PACKED, MIXED, EMPTY, JUNK]), max_size=20),
    st.sampled_from([ParseMode.PERMISSIVE, ParseMode.DROPMALFORMED]),
    st.integers(1, 10),
)
def test_rows_do_not_depend_on_what_is_unpacked_together(bodies, mode, most_rows):
    alone = [row for body in bodies for row in build_rows([body], "value", "_corrupt_record", mode=mode)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inlong, "TARGET_ROWS", most_rows)
        assert build_rows(bodies, "value", "_corrupt_record", mode=mode) == alone
        patch.setattr(inlong, "TARGET_BYTES", 1)
        assert build_rows(bodies, "value", "_corrupt_record", mode=mode) == alone


def test_a_body_of_many_messages_is_handed_over_in_several_batches():
    count = 50_001
    body = container(1, [("a=1", [(b"%d" % number, b"") for number in range(count)])])
    made = build([body], schema_of("value", "inlongIndex"))

    assert max(len(batch) for batch in made) <= 2 * inlong.TARGET_ROWS
    assert [row for batch in made for row in batch.column("inlongIndex").to_pylist()] == list(range(count))
    assert made[-1].column("value")[-1].as_py() == b"%d" % (count - 1)


def test_a_batch_is_as_large_as_what_its_bodies_hold():
    """Also a malformed body is held: a batch of such bodies ends like any other."""
    large = container(1, [("a=1", [(b"x" * 1000, b"")]), ("b=2", [(b"y", b"")])])
    bodies = [large, b"?" * 1000, PACKED]
    column = pa.array(bodies, pa.binary())
    (unpacked,) = inlong.unpack_bodies(column, ParseMode.PERMISSIVE, lambda *_: None)

    assert 1000 + 1 + 1000 + 50 <= unpacked.nbytes <= sum(map(len, bodies)) + 100


def test_bodies_wait_for_others_like_bodies_that_stay_packed():
    builder = InLongBuilder(arrow_schema(ALL_COLUMNS), UTC, ParseMode.PERMISSIVE)
    assert builder.empty
    batch = FetchedBatch(PARTITION, 0, 28, columns([(SOUND, None)]), dense=False)
    assert list(builder.add(batch, exact_offsets=True)) == []
    assert not builder.empty
    (made,) = builder.finish()
    assert made.column("offset").to_pylist() == [None] * 3
    assert builder.empty


@given(st.permutations(list(UNPACKED)), st.integers(1, len(UNPACKED)))
def test_any_columns_in_any_order(names, count):
    schema = schema_of(*names[:count])
    check_schema(schema, message_columns(PayloadFormat.INLONG))
    (batch,) = build([SOUND, JUNK], schema)
    assert batch.schema == arrow_schema(schema)
    assert len(batch) == 4


def test_the_messages_of_one_body_are_values():
    first, second, third = parse_inlong(SOUND)
    assert first == InLongMessage(b"one", {"a": "1"}, 1500, 0)
    assert (second.value, second.attributes, second.index) == (b"two", {"a": "1"}, 1)
    assert (third.value, third.attributes, third.time_ms, third.index) == (b"three", {"b": "2"}, 1500, 2)
    assert [message.value for message in parse_inlong(PACKED)] == [b"x" * 50, b""]
    (own,) = parse_inlong(MIXED)
    assert (own.value, own.attributes["k"], own.attributes["groupId"], own.time_ms) == (
        b"own",
        "v",
        "1",
        60_000,
    )
    assert parse_inlong(EMPTY) == []
    with pytest.raises(TypeError):
        first.attributes["a"] = "2"
    for malformed in JUNK, DAMAGED, b"":
        with pytest.raises(InLongMsgError, match="TUBEMQ_INLONG_MALFORMED"):
            parse_inlong(malformed)


def test_a_client_unpacks_without_spark():
    """As the source does: the messages of both are the same."""
    program = (
        "import sys; from tubemq_spark.client import InLongMessage, parse_inlong; "
        f"print(parse_inlong({SOUND!r})[2].value, 'pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "b'three' False\n"
