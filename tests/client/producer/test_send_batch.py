"""Batches: what is accepted, what is refused and where, and that they go the way of single messages."""

import contextlib
import itertools
import signal
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from testkit.interrupts import hear_interrupts
from tests.client.scripted_cluster import OVERFLOW, SILENT, STORE, refuse
from tubemq_spark.client.producer.outgoing import outgoing_batch
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.protocol.payload import decode_payload, encode_payload
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch

NO_HEADER = MessageHeader()


def coded(values):
    distinct = list(dict.fromkeys(values))
    return Coded(tuple(distinct), np.array([distinct.index(one) for one in values], np.int64))


def bytes_column(values):
    ends = itertools.accumulate((len(value or b"") for value in values), initial=0)
    nulls = np.array([value is None for value in values])
    return BytesColumn(b"".join(value or b"" for value in values), np.array(list(ends), np.int64), nulls)


def batch_of(values, topics=None, headers=None, keys=None, partitions=None, first_row=1, uids=None):
    headers = headers or [NO_HEADER] * len(values)
    orders = [(repr(one.attributes), *one[1:]) for one in headers]
    distinct = list(dict.fromkeys(orders))
    return SendBatch(
        coded(topics or ["demo"] * len(values)),
        bytes_column(values),
        Coded(
            tuple(headers[orders.index(order)] for order in distinct),
            np.array([distinct.index(order) for order in orders], np.int64),
        ),
        None if keys is None else bytes_column(keys),
        None if partitions is None else coded(partitions),
        first_row,
        None if uids is None else bytes_column(uids),
    )


def test_a_batch_is_stored_in_the_order_of_each_partition(cluster):
    values = [b"%d" % number for number in range(1_000)]
    with cluster.sender() as producer:
        producer.send_batch(batch_of(values, partitions=[(1, number % 2) for number in range(1_000)]))
    assert cluster.broker.stored == {("demo", 0): values[::2], ("demo", 1): values[1::2]}


def test_single_messages_and_batches_keep_their_order(cluster):
    with cluster.sender() as producer:
        for number in range(0, 30, 3):
            producer.send("demo", b"%d" % number, partition=(1, 0))
            rest = [b"%d" % (number + 1), b"%d" % (number + 2)]
            producer.send_batch(batch_of(rest, partitions=[(1, 0)] * 2))
        assert producer.unacknowledged <= 30
    assert cluster.stored() == [b"%d" % number for number in range(30)]


def test_rows_without_key_take_turns(cluster):
    with cluster.sender() as producer:
        for count in (100, 150, 38):
            producer.send_batch(batch_of([b"x"] * count))
        producer.flush()
        assert [receipt.count for receipt in producer.receipts()] == [96, 96, 96]


@pytest.mark.parametrize("how", ["in turns", "one by one"])
def test_the_checksums_of_partitions_are_those_of_their_rows(cluster, how):
    values = [b"%d" % number * (number % 7 + 1) for number in range(1_000)]
    partitions = None if how == "in turns" else [(1, number % 2) for number in range(1_000)]
    with cluster.sender(checksums=True) as producer:
        producer.send_batch(batch_of(values, partitions=partitions))
        producer.flush()
        receipts = producer.receipts()
    for receipt in receipts:
        stored = cluster.broker.stored["demo", receipt.partition.partition_id]
        assert (receipt.bytes, receipt.checksum) == (sum(map(len, stored)), sum(map(zlib.crc32, stored)))
    assert sum(receipt.count for receipt in receipts) == 1_000


def test_few_rows_without_key_share_a_partition(cluster):
    with cluster.sender() as producer:
        producer.send_batch(batch_of([b"x"] * 20))
        for _ in range(12):
            producer.send("demo", b"x")
        producer.flush()
        assert [receipt.count for receipt in producer.receipts()] == [32]


def test_equal_keys_share_a_partition_with_single_messages(cluster):
    keys = [b"k%d" % (number % 5) for number in range(50)]
    with cluster.sender() as producer:
        producer.send_batch(batch_of(keys, keys=keys))
        for key in keys:
            producer.send("demo", key, key=key)
    for stored in cluster.broker.stored.values():
        assert all(stored.count(key) == 20 for key in set(stored))


def test_a_null_key_is_no_key(cluster):
    with cluster.sender() as producer:
        producer.send_batch(batch_of([b"x"] * 96, keys=[None] * 96))
        producer.flush()
        assert [receipt.count for receipt in producer.receipts()] == [32, 32, 32]


def test_headers_travel_with_their_rows(cluster):
    headers = [NO_HEADER, MessageHeader({"a": "1"}, "typ", "202401020304"), MessageHeader(None, "other")]
    with cluster.sender() as producer:
        producer.send_batch(batch_of([b"0", b"1", b"2"], headers=headers, partitions=[(1, 0)] * 3))
    first, second, third = cluster.broker.requests
    assert (first.data, first.flag, first.HasField("msgType")) == (b"0", 0, False)
    assert decode_payload(second.data, second.flag).attributes == {
        "$msgType$": "typ",
        "$msgTime$": "202401020304",
        "a": "1",
    }
    assert (second.msgType, second.msgTime) == ("typ", "202401020304")
    assert decode_payload(third.data, third.flag).attributes == {"$msgType$": "other"}


def test_an_empty_batch_asks_no_server(cluster):
    with cluster.sender() as producer:
        producer.send_batch(batch_of([]))
    assert cluster.master.seen == []


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        (batch_of([b"a", b"b", b"", b"d"], first_row=11), OptionError, r"its value is empty \(message 13 of"),
        (
            batch_of([b"a", b"b", b"c"], headers=[NO_HEADER, NO_HEADER, MessageHeader(None, "a,b")]),
            OptionError,
            r"contains ',' or '=' \(message 3 of producer .* \(b'c'\)\)",
        ),
        (
            batch_of([b"a", b"b", b"x" * (1 << 20) + b"y"]),
            ProduceError,
            "TUBEMQ_MESSAGE_TOO_LONG.*message 3 of",
        ),
        (batch_of([b"a", b"b", b"c"], topics=["demo", "demo", "nowhere"]), ProduceError, "'nowhere'"),
        (batch_of([b"a", b"b", b"c"], partitions=[None, None, (1, 7)]), ProduceError, "no partition 1:7"),
    ],
)
def test_the_rows_before_one_that_is_refused_are_accepted(cluster, batch, error, text):
    with cluster.sender() as producer:
        with pytest.raises(error, match=text) as refused:
            producer.send_batch(batch)
        assert refused.value.row == 2
        producer.send("demo", b"after")
    assert sorted(cluster.stored()) == [b"a", b"after", b"b"]


def test_refused_rows_are_told_in_order_and_the_others_are_stored(cluster):
    values = [b"%d" % number if number % 3 else b"" for number in range(200)]
    topics = ["nowhere" if number % 4 == 1 else "demo" for number in range(200)]
    refused = []
    with cluster.sender() as sender:
        sender.send_batch(batch_of(values, topics=topics), lambda row, error: refused.append((row, error)))
    expected = [row for row in range(200) if row % 3 == 0 or row % 4 == 1]
    assert [row for row, _ in refused] == expected
    assert {error.condition for _, error in refused} == {"TUBEMQ_BAD_MESSAGE", "TUBEMQ_TOPIC_UNKNOWN"}
    assert sorted(cluster.stored()) == sorted(values[row] for row in range(200) if row not in expected)
    assert sum("nowhere" in topics for topics in cluster.master.asked_for) <= 1, "asked for once"


def test_what_concerns_all_rows_is_raised_and_not_told_as_a_refusal(cluster):
    cluster.master.deployed.add("closed")
    with contextlib.closing(cluster.sender(delivery_timeout_ms=100)) as sender:
        with pytest.raises(ProduceError, match="TUBEMQ_TOPIC_UNPUBLISHABLE") as raised:
            sender.send_batch(batch_of([b"0"], topics=["closed"]), pytest.fail)
        assert raised.value.row == 0


def test_a_batch_larger_than_the_window_goes_through_it(cluster):
    values = [b"%0100d" % number for number in range(500)]
    with cluster.sender(max_in_flight=7, max_in_flight_bytes=450) as producer:
        producer.send_batch(batch_of(values, partitions=[(1, 0)] * 500))
    assert cluster.stored() == values


def test_refused_rows_of_a_batch_are_sent_again_and_the_others_are_not(cluster):
    cluster.broker.script = lambda _, number: OVERFLOW if number < 90 and number % 3 == 0 else STORE
    values = [b"%d" % number for number in range(300)]
    with cluster.sender() as producer:
        producer.send_batch(batch_of(values))
        producer.flush()
        assert producer.retried == 30
        assert sum(receipt.retried for receipt in producer.receipts()) == 30
    assert sorted(cluster.stored()) == sorted(values)


@pytest.mark.parametrize("use", ["send_batch", "send"])
def test_the_first_error_stays(cluster, use):
    cluster.broker.script = lambda _, number: refuse(400, "no") if number == 100 else STORE
    producer = cluster.sender()
    with pytest.raises(ProduceError, match=r"message \d+ of") as first:
        send_many(producer, use)
    assert first.value.condition == "TUBEMQ_SEND_FAILED"
    uses = (
        lambda: producer.send_batch(batch_of([b"x"])),
        lambda: producer.send("demo", b"x"),
        producer.flush,
    )
    for between in (lambda: None, producer.close):
        between()
        for again in uses:
            with pytest.raises(ProduceError) as later:
                again()
            assert later.value is first.value


def test_an_interrupt_breaks_the_sender_for_good(cluster):
    def interrupt_at_the_second_attempt(_, number):
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return SILENT

    hear_interrupts()
    cluster.broker.script = interrupt_at_the_second_attempt
    with contextlib.closing(cluster.sender(rpc_timeout_ms=300, delivery_timeout_ms=9_000)) as sender:
        sender.send("demo", b"x")
        with pytest.raises(KeyboardInterrupt):
            sender.flush()
        for use in (sender.flush, lambda: sender.send("demo", b"y")):
            with pytest.raises(ProduceError, match="1 messages not acknowledged"):
                use()


def send_and_flush(producer, body):
    """Either raises what the broker's answer is worth, when the answer comes."""
    producer.send("demo", body)
    producer.flush()


def test_messages_are_numbered_through_batches_and_single_ones(cluster):
    cluster.broker.script = lambda request, _: refuse(400) if request.data == b"bad" else STORE
    producer = cluster.sender()
    producer.send_batch(batch_of([b"x"] * 70))
    producer.send("demo", b"x")
    producer.flush()
    with pytest.raises(ProduceError, match="message 72 of"):
        send_and_flush(producer, b"bad")


def send_many(producer, use):
    values = [b"%d" % number for number in range(2_000)]
    if use == "send_batch":
        producer.send_batch(batch_of(values))
    for value in values:
        producer.send("demo", value)


def test_nothing_is_accepted_after_an_error_or_a_close(cluster):
    with cluster.sender() as producer:
        producer.send_batch(batch_of([b"x"]))
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        producer.send_batch(batch_of([b"x"]))


headers = st.builds(
    MessageHeader,
    st.none() | st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), max_size=2),
    st.sampled_from([None, "typ", "un,fit"]),
    st.sampled_from([None, "202401020304"]),
)


def with_uid(header, uid):
    attributes = {**(header.attributes or {}), "messageUid": uid.decode(errors="surrogateescape")}
    return header._replace(attributes=attributes)


uids = st.sampled_from([b"7-a_", b"u.1", "id é".encode(), b"", b" ", b"a,b", b"a=b", b"$msgType$", b"\xff"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=5), headers, st.none() | uids), min_size=1, max_size=20),
    st.booleans(),
)
def test_a_batch_is_written_as_its_messages_would_be(rows, stamped):
    batch = batch_of(
        [value for value, _, _ in rows],
        headers=[header for _, header, _ in rows],
        uids=[uid for _, _, uid in rows] if stamped else None,
    )
    outgoing, unwritable = outgoing_batch(batch)
    assert len(outgoing) == len(rows)
    rows = [
        (value, header if uid is None or not stamped else with_uid(header, uid))
        for value, header, uid in rows
    ]
    for row, (value, header) in enumerate(rows):
        if row in unwritable:
            with pytest.raises(OptionError) as refused:
                encode_payload(value, *header[:3])
            assert str(refused.value) == str(unwritable[row]) or "is not text" in str(unwritable[row])
            continue
        assert batch.message(row)[1:5] == (value, *header[:3])
        payload = encode_payload(value, *header[:3])
        assert outgoing.prefix(row) + outgoing.value(row) == payload.data
        assert outgoing.size(row) == len(payload.data)
        assert outgoing.has_time(row) == (header.message_time is not None)
