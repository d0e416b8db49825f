"""Ids of messages become a column, wherever they stand; cutting them out changes no other column."""

import dataclasses
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import StructField, StructType

from tests.source.rows import PARTITION, columns, fetched
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.payload import encode_prefix, parse_attributes
from tubemq_spark.source.arrow import BatchBuilder, BinaryColumn, Pieces, split_uids
from tubemq_spark.source.schema import arrow_schema
from tubemq_spark.spark.columns import READ

PLAIN = StructType(
    [StructField(name, READ[name].type) for name in ("messageUid", "messageType", "timestamp")]
)
WITH_ATTRIBUTES = StructType([StructField(name, READ[name].type) for name in ("messageUid", "attributes")])

texts = st.lists(
    st.sampled_from(
        [
            "messageUid=7",
            "messageUid=8",
            "xmessageUid=9",
            "messageUid=",
            "messageUid=a=b",
            "messageUid",
            "$msgType$=red",
        ]
    ),
    max_size=4,
).map(",".join)


def build(rows, schema):
    builder = BatchBuilder(arrow_schema(schema), zoneinfo.ZoneInfo("UTC"))
    list(builder.add(fetched([(b"x", text) for text in rows]), exact_offsets=True))
    (batch,) = builder.finish()
    return batch.to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize("twin", [speedups.compiled, None], ids=["compiled", "python"])
def test_a_column_holds_all_pieces_that_were_added(twin, monkeypatch):
    """However many and long they are; and again after each array."""
    monkeypatch.setattr(speedups, "compiled", twin)
    column = BinaryColumn()
    for sizes in ([3], [], [0, 100, 70_000, 1] * 3, [1] * 3_000, [200_000], [2]):
        texts = [bytes([row % 251]) * size for row, size in enumerate(sizes)]
        ends = np.cumsum(sizes, dtype=np.int64)
        for start in range(0, len(texts), 1_000):
            some = slice(start, start + 1_000)
            column.add(Pieces(b"".join(texts), (ends - sizes)[some].astype(np.int64), ends[some]))
        assert column.nbytes == sum(sizes)
        assert column.finish().to_pylist() == texts
        assert column.nbytes == 0


@given(st.lists(texts, min_size=1, max_size=8))
def test_ids_are_those_that_the_attributes_hold(rows):
    expected = [parse_attributes(text) for text in rows]
    assert [row["messageUid"] for row in build(rows, WITH_ATTRIBUTES)] == [
        pairs.get("messageUid") for pairs in expected
    ]
    built = build(rows, PLAIN)
    assert [row["messageUid"] for row in built] == [pairs.get("messageUid") for pairs in expected]
    assert [row["messageType"] for row in built] == [pairs.get("$msgType$") for pairs in expected]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, {"k": "v"}, {"k": "other"}]),
            st.sampled_from([None, "red"]),
            st.none() | st.text("0aZ-_", min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_attributes_that_our_sink_writes_are_cut_apart(rows):
    prefixes = [
        encode_prefix({**(own or {}), **({"messageUid": uid} if uid else {})}, kind, "202401020304")[4:]
        for own, kind, uid in rows
    ]
    split = split_uids(pa.array(prefixes, pa.binary()))
    if rows[0][2] is None:
        assert split is None
        return
    assert split.uids.to_pylist() == [uid and uid.encode() for _, _, uid in rows]
    assert split.texts.to_pylist() == [encode_prefix(own, kind, "202401020304")[4:] for own, kind, _ in rows]


def test_a_message_uid_that_is_not_text_becomes_text():
    """Also where many different ids are cut out at once."""
    for uids in (["?"], [*(f"{number}?" for number in range(50)), None]):
        texts = ["a=b" if uid is None else f"messageUid={uid}" for uid in uids]
        messages = columns([(b"x", text) for text in texts])
        odd = dataclasses.replace(messages, data=messages.data.replace(b"?", b"\xff"))
        builder = BatchBuilder(arrow_schema(PLAIN), zoneinfo.ZoneInfo("UTC"))
        list(builder.add(FetchedBatch(PARTITION, 0, 28, odd, dense=True), exact_offsets=True))
        (batch,) = builder.finish()
        assert batch.column("messageUid").to_pylist() == [uid and uid.replace("?", "\ufffd") for uid in uids]


def test_attributes_show_ids_as_well():
    """What is written back keeps them."""
    (row,) = build(["messageUid=7,a=b"], WITH_ATTRIBUTES)
    assert row == {"messageUid": "7", "attributes": {"messageUid": "7", "a": "b"}}
