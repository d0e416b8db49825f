"""Frames are those of the general way; answers find their messages, whatever happens to the others."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests import strategies as own
from tests.protocol.test_send_answers import frame as answer_frame, message as answer_body
from tests.protocol.vectors import VECTORS, frame_of
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import MAX_FRAME_BYTES, Method, ServiceType
from tubemq_spark.protocol.payload import Payload, encode_prefix
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_answers import Refusal
from tubemq_spark.protocol.send_batch import MessageHeader
from tubemq_spark.protocol.send_connection import (
    NotStored,
    Payloads,
    SendConnection,
    SendCredentials,
    Stored,
    encode_place,
    encode_sends,
)

TIMEOUT_MS = 10_000
SENDS = [vector for vector in VECTORS if vector.get("message") == "SendMessageRequestP2B"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.sampled_from([127, 128, 7900, 8192, 16300, 20_000]).flatmap(
        lambda size: st.integers(-120, 120).map(lambda more: b"x" * (size + more))
    ),
)


def encode(place, calls, first_serial_no, timeout_ms):
    """Encode messages, given as (prefix, value, type, time), in one piece."""
    client_id, topic, partition_id, *credentials = place
    headers = [MessageHeader(None, kind, moment) for _, _, kind, moment in calls]
    prefixes = [prefix for prefix, *_ in calls]
    offsets = [0, *itertools.accumulate(len(value) for _, value, *_ in calls)]
    data = b"".join(value for _, value, *_ in calls)
    payloads = Payloads(data, offsets, prefixes, range(len(calls)))
    backs = SendCredentials(*credentials).backs(prefixes, headers)
    where = encode_place(client_id, topic, partition_id)
    return encode_sends(payloads, backs, timeout_ms, first_serial_no, range(len(calls)), [where] * len(calls))


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


@settings(max_examples=200)
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


@pytest.mark.parametrize("size", range(7_950, 8_200))
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
        payloads = Payloads(b"body", [0, 4], [prefix], [0])
        backs = credentials.backs([prefix], [header])
        expected = general_frame(
            place, serial_no, Payload(prefix + b"body", int(bool(prefix))), kind, None, TIMEOUT_MS
        )
        assert (
            encode_sends(payloads, backs, TIMEOUT_MS, serial_no, [0], [encode_place(*place[:3])]) == expected
        )


def test_rows_of_a_batch_are_sent_in_any_order_to_any_place():
    places = [("c", "demo", 0), ("client", "other", 10_001)]
    payloads = Payloads(memoryview(b"abbccc"), [0, 1, 3, 6], [b""], [0, 0, 0])
    backs = SendCredentials(0).backs([b""], [MessageHeader()])
    wire = encode_sends(payloads, backs, 9, 5, [2, 0], [encode_place(*place) for place in places])
    expected = [general_frame((*places[0], 0, -2), 5, Payload(b"ccc", 0), None, None, 9)]
    expected.append(general_frame((*places[1], 0, -2), 6, Payload(b"a", 0), None, None, 9))
    assert wire == b"".join(expected)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_send_without_time_out_is_refused(timeout_ms):
    with pytest.raises(LocalProtocolError, match=f"time-out {timeout_ms} ms"):
        encode(("c", "demo", 0, 0), [(b"", b"x", None, None)], 1, timeout_ms)


def test_a_frame_above_28_mib_is_refused():
    with pytest.raises(LocalProtocolError, match="a frame of"):
        encode(("c", "demo", 0, 0), [(b"", bytes(MAX_FRAME_BYTES), None, None)], 1, TIMEOUT_MS)


PAYLOADS = Payloads(b"x" * 40, range(41), [b""], [0] * 40)
BACKS = SendCredentials(0).backs([b""], [MessageHeader()])
PLACE = encode_place("c", "demo", 0)


def send(connection, run, count):
    """Send a run; return the serial numbers that a broker sees."""
    wire = connection.send(run, PAYLOADS, BACKS, range(count), [PLACE] * count)
    return [request.serial_no for request in framing.FrameDecoder().receive_data(wire)]


class Connection(RuleBasedStateMachine):
    """A connection against a table of what each serial number is about."""

    def __init__(self):
        super().__init__()
        self.connection = SendConnection(TIMEOUT_MS)
        self.model = {}
        """Serial number -> (run, position) of what is in flight, in the order of sending."""
        self.given_up = []
        self.runs = 0

    @initialize(next_serial_no=st.sampled_from([1, -5, own.INT32_MAX - 12]))
    def begin(self, next_serial_no):
        self.connection = SendConnection(TIMEOUT_MS, next_serial_no)

    @rule(count=st.integers(1, 8))
    def send(self, count):
        self.runs += 1
        numbers = send(self.connection, self.runs, count)
        assert numbers == list(range(numbers[0], numbers[0] + count))
        assert not self.model.keys() & set(numbers)
        self.model |= {number: (self.runs, position) for position, number in enumerate(numbers)}

    @rule(data=st.data())
    def answer(self, data):
        """Answers come in any order, also to what was given up, and in pieces."""
        numbers = data.draw(st.lists(st.sampled_from([*self.model, *self.given_up, 77]), unique=True))
        refused = data.draw(st.sets(st.sampled_from(numbers))) if numbers else set()
        wire = b"".join(
            answer_frame(n, answer_body(None, 419, "no") if n in refused else answer_body(28 * abs(n)))
            for n in numbers
        )
        stored, not_stored = [], []
        for piece in data.draw(own.splits(wire)):
            some_stored, some_not_stored = self.connection.receive_data(piece)
            stored += some_stored
            not_stored += some_not_stored
        self.check(numbers, refused, stored, not_stored)

    def check(self, numbers, refused, stored, not_stored):
        known = [number for number in numbers if number in self.model]
        found = [
            (one.run, position, offset)
            for one in stored
            for position, offset in zip(one.positions, one.offsets, strict=True)
        ]
        assert sorted(found) == sorted((*self.model[n], 28 * abs(n)) for n in known if n not in refused)
        assert not_stored == [NotStored(*self.model[n], Refusal(419, "no")) for n in known if n in refused]
        for number in known:
            del self.model[number]

    @rule()
    def give_up_the_oldest(self):
        flight = self.connection.oldest
        if flight is None:
            return
        positions = self.connection.give_up(flight)
        self.forget(lambda run: run == flight.run, [(flight.run, positions)])

    @rule()
    def give_up_all(self):
        self.forget(lambda _: True, self.connection.give_up_all())

    def forget(self, concerns, told):
        gone = {number: about for number, about in self.model.items() if concerns(about[0])}
        assert [(run, position) for run, positions in told for position in positions] == list(gone.values())
        self.model = {number: about for number, about in self.model.items() if number not in gone}
        self.given_up += gone

    @invariant()
    def the_same_is_in_flight(self):
        assert len(self.connection) == len(self.model)
        runs = list(dict.fromkeys(run for run, _ in self.model.values()))
        assert [flight.run for flight in self.connection.flights] == runs
        oldest = self.connection.oldest
        assert (None if oldest is None else oldest.run) == (runs[0] if runs else None)


TestConnection = Connection.TestCase
TestConnection.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)


def test_serial_numbers_of_a_run_do_not_wrap_within_it():
    connection = SendConnection(TIMEOUT_MS, own.INT32_MAX - 1)
    assert send(connection, "a", 2) == [own.INT32_MAX - 1, own.INT32_MAX]
    assert send(connection, "b", 2) == [own.INT32_MIN, own.INT32_MIN + 1]
    connection = SendConnection(TIMEOUT_MS, own.INT32_MAX - 1)
    assert send(connection, "a", 3)[0] == own.INT32_MIN


def test_outcomes_of_a_run_are_told_together():
    connection = SendConnection(TIMEOUT_MS)
    numbers = send(connection, "a", 3) + send(connection, "b", 1)
    wire = b"".join(answer_frame(n, answer_body(28 * n)) for n in numbers)
    assert connection.receive_data(wire) == (
        [Stored("a", [0, 1, 2], [28, 56, 84]), Stored("b", [0], [112])],
        [],
    )


def test_bytes_that_are_not_answers_are_an_error():
    connection = SendConnection(TIMEOUT_MS)
    send(connection, "a", 1)
    with pytest.raises(RemoteProtocolError, match="a frame starts with"):
        connection.receive_data(b"HTTP/1.1 400 Bad Request")
    assert connection.give_up_all() == [("a", [0])]
