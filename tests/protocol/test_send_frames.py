"""Frames of both twins are those of the general way."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from testkit.examples import examples
from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import VECTORS, frame_of
from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import MAX_FRAME_BYTES, Method, ServiceType
from tubemq_spark.protocol.payload import Payload, encode_prefix
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import Payloads, SendCredentials, encode_place, encode_sends

pytestmark = pytest.mark.usefixtures("each_twin")

TIMEOUT_MS = 10_000
SENDS = [vector for vector in VECTORS if vector.get("message") == "SendMessageRequestP2B"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.sampled_from([127, 128, 7900, 8192, 16300, 20_000]).flatmap(
        lambda size: st.integers(-120, 120).map(lambda more: b"x" * (size + more))
    ),
)


def payloads_of(prefixes, values, codes):
    return Payloads(BytesColumn.of(values), BytesColumn.of(prefixes), np.array(codes, np.int64))


def encode(place, calls, first_serial_no, timeout_ms):
    """Encode messages, given as (prefix, value, type, time), in one piece."""
    client_id, topic, partition_id, *credentials = place
    headers = [MessageHeader(None, kind, moment) for _, _, kind, moment in calls]
    prefixes = [prefix for prefix, *_ in calls]
    payloads = payloads_of(prefixes, [value for _, value, *_ in calls], range(len(calls)))
    backs = SendCredentials(*credentials).backs(payloads.prefixes, headers)
    where = encode_place(client_id, topic, partition_id)
    return encode_sends(
        payloads, backs, timeout_ms, first_serial_no, range(len(calls)), [(where, len(calls))]
    )


def general_frame(place, serial_no, payload, message_type, message_time, timeout_ms) -> bytes:
    client_id, topic, partition_id, sent_addr, visit_token, *user_token = place
    message = broker_pb2.SendMessageRequestP2B(
        clientId=client_id,
        topicName=topic,
        partitionId=partition_id,
        data=payload.data,
        flag=payload.flag,
        checkSum=-1,
        sentAddr=sent_addr,
        msgType=message_type,
        msgTime=message_time,
    )
    message.authInfo.visitAuthorizedToken = visit_token
    if any(user_token):
        message.authInfo.authAuthorizedToken = user_token[0]
    client = RpcConnection(Role.CLIENT)
    client._next_serial_no = serial_no
    body = rpc.serialize_message(message)
    client.send_request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, body, timeout_ms)
    return client.data_to_send()


@settings(max_examples=examples(40, by_night=500))
@given(
    st.tuples(texts, texts, own.int32s, own.int32s, own.int64s, texts),
    st.lists(
        st.tuples(
            st.just(b"") | st.binary(min_size=5, max_size=40), values, st.none() | texts, st.none() | texts
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(own.INT32_MIN, own.INT32_MAX - 4),
    st.integers(1, 1 << 40),
)
def test_frames_are_those_of_the_general_way(place, calls, first_serial_no, timeout_ms):
    expected = [
        general_frame(place, number, Payload(prefix + value, 1 if prefix else 0), *names, timeout_ms)
        for number, (prefix, value, *names) in enumerate(calls, first_serial_no)
    ]
    assert encode(place, calls, first_serial_no, timeout_ms) == b"".join(expected)


@in_one_test("size", range(7_950, 8_200))
def test_frames_around_the_border_of_a_chunk(size):
    place = ("10.1.2.3-1-2-3-py", "demo", 10001, 167838211, 1_700_000_001_000)
    call = (b"", bytes(size), "fA", "202401020304")
    expected = general_frame(place, 1, Payload(bytes(size), 0), "fA", "202401020304", TIMEOUT_MS)
    assert encode(place, [call], 1, TIMEOUT_MS) == expected


@pytest.mark.parametrize(
    "vector",
    [vector for vector in SENDS if vector["fields"]["checkSum"] == -1],
    ids=lambda vector: vector["name"],
)
def test_the_recorded_sends(vector):
    fields = vector["fields"]
    place = (
        fields["clientId"],
        fields["topicName"],
        fields["partitionId"],
        fields["sentAddr"],
        fields["authInfo"]["visitAuthorizedToken"],
    )
    data = bytes.fromhex(fields["data"]["hex"])
    middle = 4 + int.from_bytes(data[:4], "big") if fields["flag"] else 0
    call = (data[:middle], data[middle:], fields.get("msgType"), fields.get("msgTime"))
    assert encode(place, [call], vector["serialNo"], TIMEOUT_MS) == frame_of(vector)


def test_some_sends_are_recorded():
    assert {len(vector["chunkLengths"]) for vector in SENDS if vector["fields"]["checkSum"] == -1} >= {1, 3}


@given(own.names, own.names)
def test_credentials_forget_nothing_between_messages(first_type, second_type):
    """What is remembered of one type must not show up in another's frame."""
    credentials = SendCredentials(0)
    place = ("c", "demo", 0, 0, -2)
    for serial_no, kind in enumerate([first_type, second_type, first_type, None]):
        header = MessageHeader(None, kind, None)
        prefix = encode_prefix(*header)
        payloads = payloads_of([prefix], [b"body"], [0])
        backs = credentials.backs(payloads.prefixes, [header])
        expected = general_frame(
            place, serial_no, Payload(prefix + b"body", int(bool(prefix))), kind, None, TIMEOUT_MS
        )
        assert (
            encode_sends(payloads, backs, TIMEOUT_MS, serial_no, [0], [(encode_place(*place[:3]), 1)])
            == expected
        )


@st.composite
def sends(draw):
    """Rows of a batch in any order, in turns to places, with repeated headers."""
    headers = draw(st.lists(headers_with_prefix, min_size=1, max_size=3))
    codes = draw(st.lists(st.integers(0, len(headers) - 1), min_size=1, max_size=12))
    bodies = [draw(values) for _ in codes]
    turns = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=5))
    count = sum(count for _, count in turns)
    rows = draw(st.lists(st.integers(0, len(codes) - 1), min_size=count, max_size=count))
    return headers, codes, bodies, turns, rows


headers_with_prefix = st.tuples(
    st.just(b"") | st.binary(min_size=5, max_size=40),
    st.builds(MessageHeader, st.none(), st.none() | texts, st.none()),
)
PLACES = [("c", "demo", 0), ("client", "other", 10_001), ("", "", -1)]


@settings(max_examples=examples(40, by_night=500))
@given(sends(), st.booleans())
def test_rows_of_a_batch_are_sent_in_any_order_to_any_place(batch, in_place):
    headers, codes, bodies, turns, rows = batch
    payloads = payloads_of([prefix for prefix, _ in headers], bodies, codes)
    if in_place:  # as a column of a larger buffer
        column = payloads.values
        moved = BytesColumn(memoryview(b"?" + column.data + b"??"), column.offsets + 1)
        payloads = payloads._replace(values=moved)
    backs = SendCredentials(0).backs(payloads.prefixes, [header for _, header in headers])
    where = [(encode_place(*PLACES[place]), count) for place, count in turns]
    expected = []
    goes_to = [PLACES[place] for place, count in turns for _ in range(count)]
    for serial_no, (row, place) in enumerate(zip(rows, goes_to, strict=True), 5):
        prefix, header = headers[codes[row]]
        payload = Payload(prefix + bodies[row], int(bool(prefix)))
        expected.append(general_frame((*place, 0, -2), serial_no, payload, header.message_type, None, 9))
    assert encode_sends(payloads, backs, 9, 5, rows, where) == b"".join(expected)


@pytest.mark.parametrize(("rows", "places"), [([0], []), ([0, 0], [(b"", 1)]), ([0], [(b"", 2)])])
def test_every_row_needs_a_place_and_every_place_its_rows(rows, places):
    payloads = payloads_of([b""], [b"x"], [0])
    with pytest.raises(ValueError, match="rows, and places for"):
        encode_sends(
            payloads, SendCredentials(0).backs(payloads.prefixes, [MessageHeader()]), 9, 5, rows, places
        )


@pytest.mark.parametrize(("rows", "codes"), [([1], [0]), ([0], [1]), ([1 << 40], [0])])
def test_what_is_not_in_the_batch_is_not_sent(rows, codes):
    payloads = payloads_of([b""], [b"x"], codes)
    backs = SendCredentials(0).backs(payloads.prefixes, [MessageHeader()])
    with pytest.raises(IndexError):
        encode_sends(payloads, backs, 9, 5, rows, [(b"", 1)])


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_send_without_time_out_is_refused(timeout_ms):
    with pytest.raises(LocalProtocolError, match=f"time-out {timeout_ms} ms"):
        encode(("c", "demo", 0, 0), [(b"", b"x", None, None)], 1, timeout_ms)


def test_a_frame_above_28_mib_is_refused():
    with pytest.raises(LocalProtocolError, match="a frame of"):
        encode(("c", "demo", 0, 0), [(b"", bytes(MAX_FRAME_BYTES), None, None)], 1, TIMEOUT_MS)
