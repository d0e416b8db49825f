"""Records made from columns are what looking at one message after the other gives."""

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from testkit.wire import decode_fetch
from tests.protocol.fetch_answers import answers, sound_messages
from tubemq_spark.client.reader.records import Record, record_type, records_of
from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY, TopicPartition
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.payload import checksum, encode_payload
from tubemq_spark.protocol.pb import broker_pb2

PARTITION = TopicPartition("topic", 1, 10_000)
START = 28_000

pytestmark = pytest.mark.usefixtures("each_twin")


def one_by_one(batch, *, exact):
    for row, ordinal in enumerate(batch.columns.ordinals.tolist()):
        message = batch.columns.message(row)
        offset = batch.start + 28 * ordinal if exact and batch.dense else None
        yield Record(message.value, message.attributes, message.message_id, batch.partition, offset)


@given(answers(st.lists(sound_messages(), max_size=12)), st.booleans(), st.booleans(), st.data())
def test_records_of_any_rows(body, dense, exact, data):
    _, columns, _ = decode_fetch(body)
    kept = data.draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns)))
    batches = [
        FetchedBatch(PARTITION, START, START, columns, dense),
        FetchedBatch(PARTITION, START, START, columns.take(np.flatnonzero(kept)), dense),
    ]
    records = [
        record for batch in batches for record in records_of(batch, exact_offsets=exact, time_zone="UTC")
    ]
    assert records == [record for batch in batches for record in one_by_one(batch, exact=exact)]
    for record in records:
        kinds = [type(part) for part in record]
        assert kinds[:1] + kinds[2:4] == [bytes, int, TopicPartition]
        assert type(record.offset) in (int, type(None))


def test_messages_of_one_text_do_not_share_their_attributes():
    answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200)
    for value in (b"a", b"b"):
        payload = encode_payload(value, {"k": "v"})
        answer.messages.add(
            messageId=1, checkSum=checksum(payload.data), payLoadData=payload.data, flag=payload.flag
        )
    one, other = decode_fetch(answer.SerializeToString())[1].attributes()
    one["k"] = "changed"
    assert other == {"k": "v"}


def test_a_record_is_a_value():
    record = Record(b"body", {MSG_TYPE_KEY: "fA", MSG_TIME_KEY: "202401020304"}, 7, PARTITION, 28)
    assert (record.message_type, record.message_time, record.topic) == ("fA", "202401020304", "topic")
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(AttributeError):
        record.value = b"another"
    plain = record._replace(attributes=None)
    assert (plain.message_type, plain.message_time) == (None, None)
    assert (record.flag, plain.flag) == (1, 0)
    assert type(plain) is Record


def record(value=b"{}", attributes=None, time_zone="UTC"):
    return record_type(time_zone)(value, attributes, 1, PARTITION, START)


@pytest.mark.parametrize(
    ("text", "zone", "moment"),
    [
        ("202601311200", "UTC", "2026-01-31T12:00+00:00"),
        ("202601311200", "Asia/Shanghai", "2026-01-31T12:00+08:00"),
        ("202610250230", "Europe/Berlin", "2026-10-25T02:30+02:00"),  # comes again an hour later
        ("202602301200", "UTC", None),
        (None, "UTC", None),
    ],
)
def test_a_timestamp_is_the_message_time_in_its_zone(text, zone, moment):
    read = record(attributes={} if text is None else {MSG_TIME_KEY: text}, time_zone=zone)
    for timestamp in (read.timestamp, pickle.loads(pickle.dumps(read)).timestamp):
        assert (timestamp and timestamp.isoformat(timespec="minutes")) == moment
    assert read.timestamp is None or str(read.timestamp.tzinfo) == zone


def test_a_record_is_the_same_in_each_zone_but_for_its_timestamp():
    far, near = record(time_zone="Asia/Tokyo"), record()
    assert far == near
    assert isinstance(far, Record)
    assert repr(far) == repr(near)


def test_a_value_is_read_as_text_and_as_json():
    assert record('{"käse": [1]}'.encode()).text() == '{"käse": [1]}'
    assert record("käse".encode("latin-1")).text("latin-1") == "käse"
    assert record(b'{"a": [1, null]}').json() == {"a": [1, None]}
    with pytest.raises(ValueError, match="Expecting value"):
        record(b"home").json()
    with pytest.raises(UnicodeDecodeError):
        record(b"\xff").text()
