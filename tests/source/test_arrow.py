"""Fetched messages become exactly the record batches that Spark expects."""

import dataclasses
import datetime
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from testkit.wire import decode_fetch
from tests.cases import in_one_test
from tests.protocol.fetch_answers import answers, broken_messages, odd_messages, sound_messages
from tests.source.rows import PARTITION, columns, fetched
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import MESSAGE_UID_KEY, TopicPartition
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.payload import encode_prefix, parse_attributes
from tubemq_spark.source import arrow
from tubemq_spark.source.arrow import BatchBuilder, BinaryColumn, Pieces, split_uids
from tubemq_spark.source.schema import arrow_schema, default_schema
from tubemq_spark.spark.columns import READ

pytestmark = pytest.mark.usefixtures("each_twin")

UTC = zoneinfo.ZoneInfo("UTC")
ALL_COLUMNS = default_schema(include_attributes=True)


def schema_of(*names):
    return StructType([StructField(name, READ[name].type) for name in names])


def columns_of(*names):
    return arrow_schema(schema_of(*names))


def build(batches, schema=ALL_COLUMNS, time_zone=UTC, *, exact_offsets=True):
    """Return the record batches made of fetched ones."""
    builder = BatchBuilder(arrow_schema(schema), time_zone)
    added = [made for batch in batches for made in builder.add(batch, exact_offsets=exact_offsets)]
    return added + list(builder.finish())


def one_column(name, batch, **how):
    (made,) = build([batch], schema_of(name), **how)
    return made.column(name).to_pylist()


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_values_are_cut_out_of_the_fetched_bytes(values):
    assert one_column("value", fetched([(value, "k=v") for value in values])) == values


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(answers(st.lists(st.one_of(sound_messages(), odd_messages(), broken_messages), max_size=3)))
def test_any_answer_of_a_broker_becomes_its_rows_or_an_error(body):
    """Messages laid out unusually have their payloads behind the others', so positions do not ascend."""
    try:
        _, columns, _ = decode_fetch(body)
    except RemoteProtocolError:
        return
    messages = [columns.message(row) for row in range(len(columns))]

    made = build([FetchedBatch(PARTITION, 0, 28 * len(columns), columns, dense=True)])

    rows = [row for batch in made for row in batch.to_pylist(maps_as_pydicts="strict")]
    assert [row["value"] for row in rows] == [message.value for message in messages]
    assert [row["messageId"] for row in rows] == [message.message_id for message in messages]
    assert [row["attributes"] or None for row in rows] == [message.attributes or None for message in messages]


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=9), st.randoms())
def test_values_may_lie_in_any_order(values, chance):
    columns = fetched([(value, None) for value in values]).columns
    places = list(range(len(values)))
    chance.shuffle(places)
    shuffled = FetchedBatch(PARTITION, 0, 28, columns.take(np.array(places)), dense=False)

    assert one_column("value", shuffled) == [values[place] for place in places]


@given(st.permutations(list(READ)), st.integers(1, len(READ)), st.booleans())
def test_a_batch_has_spark_s_own_schema(names, count, dense):
    """Spark compares it for equality, whatever columns are asked in whatever order."""
    schema = schema_of(*names[:count])

    (batch,) = build([fetched([(b"a", None), (b"b", "k=v")], dense=dense)], schema)

    assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
    assert batch.num_rows == 2


def test_rows_of_two_partitions_share_a_batch():
    other = TopicPartition("other", 4, 0)
    (made,) = build(
        [fetched([(b"a", None)] * 2), dataclasses.replace(fetched([(b"b", None)]), partition=other)]
    )

    places = zip(*(made.column(name).to_pylist() for name in ("topic", "brokerId", "partition")), strict=True)
    assert list(places) == [(PARTITION.topic, 3, 10_001)] * 2 + [("other", 4, 0)]


def test_every_row_says_where_it_is_from():
    (batch,) = build([fetched([(b"a", None), (b"b", None)])])

    assert batch.column("topic").to_pylist() == [PARTITION.topic] * 2
    assert batch.column("brokerId").to_pylist() == [3, 3]
    assert batch.column("partition").to_pylist() == [10_001, 10_001]
    assert batch.column("messageId").to_pylist() == [1000, 1001]


def test_offsets_count_from_the_batch_s_start_and_skip_damaged_rows():
    messages = [(b"a", None), (b"b", None), (b"c", None)]

    assert one_column("offset", fetched(messages, 280)) == [280, 308, 336]
    assert one_column("offset", fetched(messages, 280, ordinals=[0, 2, 5])) == [280, 336, 420]


@pytest.mark.parametrize(("dense", "exact"), [(False, True), (True, False), (False, False)])
def test_an_offset_that_is_not_sure_is_null(dense, exact):
    batch = fetched([(b"a", None), (b"b", None)], 280, dense=dense)

    assert one_column("offset", batch, exact_offsets=exact) == [None, None]


def test_offsets_that_are_sure_stand_beside_others():
    """Where partitions share a store, a fetch may hold records of others too."""
    batches = [
        fetched([(b"a", None), (b"b", None)], 280),
        fetched([(b"c", None)], 336, dense=False),
        fetched([(b"d", None)], 420),
    ]
    (made,) = build(batches, schema_of("offset"))

    assert made.column("offset").to_pylist() == [280, 308, None, 420]


def test_the_message_type_comes_from_the_attributes():
    texts = ["$msgType$=news,$msgTime$=202402291234,k=v", "k=v", "", None]
    (batch,) = build([fetched([(b"x", text) for text in texts])])

    assert batch.column("messageType").to_pylist() == ["news", None, None, None]
    assert [row and dict(row) for row in batch.column("attributes").to_pylist()] == [
        {"$msgType$": "news", "$msgTime$": "202402291234", "k": "v"},
        {"k": "v"},
        None,
        None,
    ]


@in_one_test(
    ("text", "zone", "expected"),
    [
        ("202402291234", "UTC", datetime.datetime(2024, 2, 29, 12, 34, tzinfo=datetime.UTC)),
        ("202402291234", "Asia/Shanghai", datetime.datetime(2024, 2, 29, 4, 34, tzinfo=datetime.UTC)),
        ("196912312359", "UTC", datetime.datetime(1969, 12, 31, 23, 59, tzinfo=datetime.UTC)),
        ("999912312359", "UTC", datetime.datetime(9999, 12, 31, 23, 59, tzinfo=datetime.UTC)),
        ("202302291234", "UTC", None),
        ("202402292460", "UTC", None),
        ("000001010000", "UTC", None),
        ("20240229123", "UTC", None),
        ("2024022912345", "UTC", None),
        ("2024-2-29 12", "UTC", None),
        ("٢٠٢٤٠٢٢٩١٢٣٤", "UTC", None),
        ("", "UTC", None),
    ],
)
def test_times_are_read_in_the_topic_s_zone_and_wrong_ones_are_null(text, zone, expected):
    batch = fetched([(b"x", f"$msgTime$={text}"), (b"y", None)])

    assert one_column("timestamp", batch, time_zone=zoneinfo.ZoneInfo(zone)) == [expected, None]


def test_a_time_that_a_zone_shows_twice_is_read_as_the_first_and_one_warning_says_so(caplog):
    batch = fetched([(b"x", f"$msgTime$=2026110101{minute:02}") for minute in range(60)])
    read = one_column("timestamp", batch, time_zone=zoneinfo.ZoneInfo("America/New_York"))
    begin = datetime.datetime(2026, 11, 1, 5, tzinfo=datetime.UTC)
    assert read == [begin + datetime.timedelta(minutes=minute) for minute in range(60)]
    (warning,) = caplog.messages
    assert "202611010100 may mean two times, since clocks of America/New_York" in warning
    one_column("timestamp", fetched([(b"x", "$msgTime$=202611010200")]), time_zone=zoneinfo.ZoneInfo("UTC"))
    assert len(caplog.messages) == 1


def test_the_first_moment_there_is_can_be_read_in_every_zone():
    batch = fetched([(b"x", "$msgTime$=000101010000")])

    assert build([batch], schema_of("timestamp"), zoneinfo.ZoneInfo("Asia/Shanghai"))[0].num_rows == 1


def test_more_texts_than_are_remembered_are_parsed_all_the_same(monkeypatch):
    monkeypatch.setattr(arrow, "_MAX_DISTINCT_TEXTS", 3)
    texts = [f"n={number % 7}" for number in range(50)]
    builder = BatchBuilder(columns_of("attributes"), UTC)

    list(builder.add(fetched([(b"x", text) for text in texts]), exact_offsets=True))
    (made,) = builder.finish()

    assert made.column("attributes").to_pylist() == [[("n", str(number % 7))] for number in range(50)]
    assert len(builder._attributes._parsed) <= 3


@pytest.mark.parametrize("length", [100_000, 1 << 20])
def test_a_row_costs_what_it_weighs(length):
    """Not as if the rows beside it were there too."""
    batch = fetched([(b"x", f"n={'y' * length}")])
    before = pa.total_allocated_bytes()

    (made,) = build([batch], schema_of("attributes", "messageType"))

    assert pa.total_allocated_bytes() - before < 3 * length
    assert made.column("attributes").to_pylist() == [[("n", "y" * length)]]


def test_long_texts_are_not_remembered():
    builder = BatchBuilder(columns_of("attributes"), UTC)
    for number in range(50):
        list(builder.add(fetched([(b"x", f"n={number}{'y' * 100_000}")]), exact_offsets=True))
        list(builder.finish())
    remembered = sum(map(len, builder._attributes._parsed))
    assert remembered < 100_000


@given(st.lists(st.tuples(st.sampled_from(["red", "blue"]), st.integers(1, 9)), max_size=8))
def test_a_value_is_right_however_often_it_comes(counts):
    builder = BatchBuilder(columns_of("messageType"), UTC)
    made = []
    for kind, count in counts:
        list(builder.add(fetched([(b"x", f"$msgType$={kind}")] * count), exact_offsets=True))
        made += builder.finish()
    assert [batch.column("messageType").to_pylist() for batch in made] == [
        [kind] * count for kind, count in counts
    ]


def test_a_value_that_comes_again_is_made_for_twice_as_many_rows():
    constants = arrow._Constants()

    def length(value, count):
        assert constants.repeat("topic", value, pa.string(), count).to_pylist() == [value] * count
        _, array = constants._arrays["topic"]
        return len(array)

    assert [length("demo", count) for count in (10, 11, 20, 50)] == [10, 20, 20, 50]
    assert [length("other", 5), length("other", 6)] == [5, 10]


repeated_texts = st.sampled_from(
    [
        None,
        "n=1",
        "n=2,$msgType$=a",
        "$msgTime$=202601010000",
        f"n=1,{MESSAGE_UID_KEY}=x",
        f"{MESSAGE_UID_KEY}=y",
    ]
)


@given(st.lists(st.lists(repeated_texts, max_size=6), min_size=1, max_size=4))
def test_attributes_are_the_same_however_they_repeat(texts):
    """Runs of equal texts are looked for first; where there are more than a few, texts are hashed."""
    batches = [fetched([(b"x", text) for text in some]) for some in texts]
    for more in ((), ("attributes",)):  # without these, ids are cut out before texts are compared
        schema = schema_of("timestamp", "messageType", "messageUid", *more)
        by_runs = build(batches, schema)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow, "_FEW_RUNS", 0)
            by_hashing = build(batches, schema)
        assert [batch.to_pydict() for batch in by_hashing] == [batch.to_pydict() for batch in by_runs]


@given(st.lists(st.integers(0, 9), max_size=30))
def test_small_fetches_are_put_together_in_their_order(sizes):
    """Every row comes once and in order; all batches but the last are worth handing over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "TARGET_ROWS", 12)
        numbers, batches = iter(range(sum(sizes))), []
        for size in sizes:
            batches.append(fetched([(b"%d" % next(numbers), None) for _ in range(size)]))

        made = build(batches, schema_of("value"))

    assert [int(value) for batch in made for value in batch.column("value").to_pylist()] == list(
        range(sum(sizes))
    )
    assert all(12 <= batch.num_rows < 12 + 9 for batch in made[:-1])
    assert all(batch.num_rows for batch in made)


def test_a_large_fetch_is_handed_over_at_once(monkeypatch):
    monkeypatch.setattr(arrow, "TARGET_BYTES", 100)
    builder = BatchBuilder(columns_of("value"), UTC)

    def add(*rows):
        return [batch.num_rows for batch in builder.add(fetched(rows), exact_offsets=True)]

    assert add((bytes(99), None)) == []
    assert add((b"x", None)) == [2]
    assert list(builder.finish()) == []


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


def build_texts(rows, schema):
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
    assert [row["messageUid"] for row in build_texts(rows, WITH_ATTRIBUTES)] == [
        pairs.get("messageUid") for pairs in expected
    ]
    built = build_texts(rows, PLAIN)
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
    (row,) = build_texts(["messageUid=7,a=b"], WITH_ATTRIBUTES)
    assert row == {"messageUid": "7", "attributes": {"messageUid": "7", "a": "b"}}
