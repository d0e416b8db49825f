"""Answers find their messages, whatever happens to the others; serial numbers go round."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from testkit.examples import examples
from testkit.wire import encode_response
from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import frame_of, named
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_connection import (
    NotStored,
    Refusal,
    SendAnswerReader,
    SendConnection,
    columns_for,
    read_send_answers,
)
from tubemq_spark.protocol.send_frames import Payloads, SendCredentials, encode_place

pytestmark = pytest.mark.usefixtures("each_twin")

TIMEOUT_MS = 10_000
PAYLOADS = Payloads(BytesColumn.of([b"x"] * 40), BytesColumn.of([b""]), np.zeros(40, np.int64))
BACKS = SendCredentials(0).backs(PAYLOADS.prefixes, [MessageHeader()])
PLACE = encode_place("c", "demo", 0)


def send(connection, run, count):
    """Send a run; return the serial numbers that a broker sees."""
    wire = connection.send(run, PAYLOADS, BACKS, range(count), [(PLACE, count)])
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
    def answer_any(self, data):
        """Answers come in any order, twice, also to what was given up or was not sent yet, and in pieces."""
        self.answer(data.draw(st.lists(st.sampled_from([*self.model, *self.given_up, 77]))), data)

    @rule(data=st.data())
    def answer_in_order(self, data):
        """Usual brokers answer in the order of sending, and any number of messages at a time."""
        waiting = [*self.model]
        if waiting:
            start = data.draw(st.integers(0, len(waiting) - 1))
            self.answer(waiting[start : data.draw(st.integers(start, len(waiting)))], data)

    def answer(self, numbers, data):
        refused = data.draw(st.sets(st.sampled_from(numbers), max_size=2)) if numbers else set()
        wire = b"".join(
            answer_frame(n, answer_body(None, 419, "no") if n in refused else answer_body(28 * (1 + abs(n))))
            for n in numbers
        )
        stored, not_stored = [], []
        for piece in data.draw(own.splits(wire)):
            some_stored, some_not_stored = self.connection.receive_data(piece)
            stored += some_stored
            not_stored += some_not_stored
        self.check(list(dict.fromkeys(numbers)), refused, stored, not_stored)

    def check(self, numbers, refused, stored, not_stored):
        known = [number for number in numbers if number in self.model]
        found = [
            (one.run, position, offset)
            for one in stored
            for position, offset in zip(one.positions, one.offsets.tolist(), strict=True)
        ]
        assert sorted(found) == sorted((*self.model[n], 28 * (1 + abs(n))) for n in known if n not in refused)
        assert not_stored == [NotStored(*self.model[n], Refusal(419, "no")) for n in known if n in refused]
        for number in known:
            del self.model[number]

    @rule()
    def give_up_a_flight(self):
        """Any flight, though its owner begins with the oldest."""
        for flight in self.connection.flights[1:2]:
            assert self.connection.unanswered(flight) == self.connection.give_up(flight)
            assert not self.connection.give_up(flight)
            self.forget(lambda run, run_of=flight.run: run == run_of)

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

    def forget(self, concerns, told=None):
        gone = {number: about for number, about in self.model.items() if concerns(about[0])}
        if told is not None:
            assert [(run, place) for run, positions in told for place in positions] == list(gone.values())
        self.model = {number: about for number, about in self.model.items() if number not in gone}
        self.given_up += gone

    @invariant()
    def the_same_is_in_flight(self):
        assert len(self.connection) == len(self.model)
        runs = list(dict.fromkeys(run for run, _ in self.model.values()))
        assert [flight.run for flight in self.connection.flights] == runs
        oldest = self.connection.oldest
        assert (None if oldest is None else oldest.run) == (runs[0] if runs else None)


def test_a_connection_against_a_table():
    run_state_machine_as_test(
        Connection, settings=settings(deadline=None, max_examples=examples(30), stateful_step_count=20)
    )


def test_serial_numbers_of_a_run_do_not_wrap_within_it():
    connection = SendConnection(TIMEOUT_MS, own.INT32_MAX - 1)
    assert send(connection, "a", 2) == [own.INT32_MAX - 1, own.INT32_MAX]
    assert send(connection, "b", 2) == [own.INT32_MIN, own.INT32_MIN + 1]
    connection = SendConnection(TIMEOUT_MS, own.INT32_MAX - 1)
    assert send(connection, "a", 3)[0] == own.INT32_MIN


def answers(numbers):
    return b"".join(answer_frame(n, answer_body(28 * n)) for n in numbers)


def told(stored):
    return [(one.run, one.positions, one.offsets.tolist()) for one in stored]


def test_outcomes_of_a_run_are_told_together():
    connection = SendConnection(TIMEOUT_MS)
    numbers = send(connection, "a", 3) + send(connection, "b", 1)
    stored, not_stored = connection.receive_data(answers(numbers))
    assert told(stored) == [("a", range(3), [28, 56, 84]), ("b", range(1), [112])]
    assert not_stored == []


def test_what_is_left_of_a_run_is_told_without_the_rest():
    connection = SendConnection(TIMEOUT_MS)
    send(connection, "a", 5)
    connection.receive_data(answers([2]))
    stored, _ = connection.receive_data(answers([1, 2, 3, 4]))
    assert told(stored) == [("a", [0, 2, 3], [28, 84, 112])]
    stored, _ = connection.receive_data(answers([5, 4]))
    assert told(stored) == [("a", range(4, 5), [140])]
    assert len(connection) == 0


def own_answers(numbers):
    """Return answers whose messages differ in all that a broker tells."""
    frames = []
    for number in numbers:
        body = broker_pb2.SendMessageResponseB2P.FromString(answer_body(28 * number))
        body.messageId, body.appendTime = 1000 + number, 2000 + number
        frames.append(answer_frame(number, body.SerializeToString()))
    return b"".join(frames)


def test_details_stay_with_their_messages():
    connection = SendConnection(TIMEOUT_MS, detailed=True)
    send(connection, "a", 5)
    connection.receive_data(own_answers([2]))
    stored, _ = connection.receive_data(own_answers([1, 2, 3, 4]))
    (one,) = stored
    assert one.positions == [0, 2, 3]
    assert [column.tolist() for column in one.details] == [[1001, 1003, 1004], [2001, 2003, 2004]]


def test_without_being_asked_for_there_are_no_details():
    connection = SendConnection(TIMEOUT_MS)
    send(connection, "a", 2)
    stored, _ = connection.receive_data(own_answers([1, 2]))
    assert [one.details for one in stored] == [None]


@pytest.mark.parametrize("answered_late", [False, True])
def test_nothing_is_kept_of_runs_that_have_ended(answered_late):
    """A long time goes by while one answer does not come."""
    connection = SendConnection(TIMEOUT_MS)
    send(connection, "waits", 1)
    for number in range(2, 2000):
        assert send(connection, number, 1) == [number]
        connection.receive_data(answers([number]))
    assert [flight.run for flight in connection.flights] == ["waits"]
    assert len(connection._firsts) < 100
    assert connection.receive_data(answers([2])) == ([], []), "the answer has come twice"
    if answered_late:
        stored, _ = connection.receive_data(answers([1]))
        assert told(stored) == [("waits", range(1), [28])]
    else:
        assert connection.give_up_all() == [("waits", range(1))]
    assert len(connection) == 0


def test_serial_numbers_go_round_more_than_once():
    """Only the last message of a number is meant."""
    connection = SendConnection(TIMEOUT_MS, own.INT32_MAX)
    for run in ("first", "second", "third"):
        assert send(connection, run, 1) == [own.INT32_MAX]
        connection._next += (1 << 32) - 1
    stored, _ = connection.receive_data(answer_frame(own.INT32_MAX, answer_body(28)))
    assert told(stored) == [("third", range(1), [28])]
    assert [flight.run for flight in connection.flights] == ["first", "second"]


def test_bytes_that_are_not_answers_are_an_error():
    connection = SendConnection(TIMEOUT_MS)
    send(connection, "a", 1)
    with pytest.raises(RemoteProtocolError, match="a frame starts with"):
        connection.receive_data(b"HTTP/1.1 400 Bad Request")
    assert connection.give_up_all() == [("a", range(1))]


def answer_body(
    offset: int | None = 28, code: int = 200, text: str = "3369719412767588352", **fields
) -> bytes:
    answer = broker_pb2.SendMessageResponseB2P(success=code == 200, errCode=code, errMsg=text, **fields)
    if offset is not None:
        answer.requireAuth, answer.messageId, answer.appendTime = False, 3369719412767588352, 1704164645678
        answer.appendOffset = offset
    return answer.SerializeToString()


def answer_frame(serial_no, body, method=Method.SEND_MESSAGE):
    return framing.encode_frame(serial_no, encode_response(rpc.Response(serial_no, method, body)))


def read(pieces: Iterable[bytes]) -> list:
    """Return stored messages and then the others, since they are told apart."""
    reader = SendAnswerReader()
    stored, failed = [], []
    for piece in pieces:
        serial_nos, offsets, failures, _ = reader.receive_data(piece)
        stored += zip(serial_nos.tolist(), offsets.tolist(), strict=True)
        failed += failures
    return stored + failed


def in_chunks_of(size: int, data: bytes) -> bytes:
    """The same frame with shorter chunks, as another writer may cut it."""
    (single,) = framing.FrameDecoder().receive_data(data)
    chunks = [single.stream[start : start + size] for start in range(0, len(single.stream), size)]
    lengths = b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)
    return data[:8] + len(chunks).to_bytes(4, "big") + lengths


FAILURE = rpc.Failure(7, Status.ERROR, "java.lang.reflect.InvocationTargetException", "")
KINDS = {
    "stored": (answer_frame(7, answer_body(2800)), 2800),
    "first of a store": (answer_frame(7, answer_body(0)), 0),
    "far into a store": (answer_frame(7, answer_body(28 * (1 << 50))), 28 * (1 << 50)),
    "without time and id": (answer_frame(7, answer_body(None, appendOffset=56)), 56),
    "long text": (answer_frame(7, answer_body(28, text="x" * 200)), 28),
    "short chunks": (in_chunks_of(5, answer_frame(7, answer_body(28))), 28),
    "overflow": (answer_frame(7, answer_body(None, 419, "overflow!")), Refusal(419, "overflow!")),
    "refused with an offset": (answer_frame(7, answer_body(28, 403, "no")), Refusal(403, "no")),
    "exception": (framing.encode_frame(7, rpc.encode_failure(FAILURE)), FAILURE),
    "padded": (
        framing.encode_frame(7, encode_response(rpc.Response(7, 13, answer_body(28))) + b"\0" * 9),
        28,
    ),
}


@in_one_test("kind", KINDS)
def test_an_answer_is_read(kind):
    data, outcome = KINDS[kind]
    assert read([data]) == [(7, outcome)]


@settings(deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=8), data=st.data())
def test_answers_survive_any_split(kinds, data):
    stream = b"".join(KINDS[kind][0] for kind in kinds)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [(7, KINDS[kind][1]) for kind in kinds]
    assert read(pieces) == sorted(expected, key=lambda answer: not isinstance(answer[1], int))


def test_a_usual_answer_that_comes_in_pieces_is_read_quickly(monkeypatch):
    data, offset = KINDS["stored"]
    monkeypatch.delattr(framing.FrameDecoder, "receive_data")
    for cut in range(len(data)):
        assert read([data[:cut], data[cut:] + data]) == 2 * [(7, offset)]


@settings(deadline=None)
@given(
    offset=st.integers(0, 1 << 58),
    serial_no=st.integers(-(1 << 31), (1 << 31) - 1),
    text=st.text(max_size=80),
)
def test_serial_numbers_and_offsets_of_any_size_are_read(offset, serial_no, text):
    assert read([answer_frame(serial_no, answer_body(28 * offset, text=text))]) == [(serial_no, 28 * offset)]


def test_the_java_brokers_answer_is_read():
    recorded = frame_of(named("send_message_rsp"))
    assert read([recorded]) == [(1, 112)]


def numbered(message_id, append_time, offset, text):
    answer = broker_pb2.SendMessageResponseB2P(success=True, errCode=200, errMsg=text, appendOffset=offset)
    if message_id:
        answer.messageId, answer.appendTime = message_id, append_time
    return answer.SerializeToString()


@settings(deadline=None)
@given(
    told=st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 41), st.booleans())),
    data=st.data(),
)
def test_details_are_those_of_each_stored_message(told, data):
    """Of usual answers, of the first message of a store, and behind refusals."""
    frames, expected = [], []
    for number, (message_id, append_time, odd) in enumerate(told):
        frames.append(answer_frame(number, numbered(message_id, append_time, 28 * number, "x" * 90 * odd)))
        expected.append((number, 28 * number, message_id, append_time if message_id else 0))
        if odd:
            frames.append(answer_frame(-number, answer_body(None, 419, "no")))
    reader = SendAnswerReader(detailed=True)
    found = []
    for piece in data.draw(own.splits(b"".join(frames))):
        answers = reader.receive_data(piece)
        found += zip(answers.serial_nos, answers.offsets, *answers.details, strict=True)
    assert found == expected


def test_the_java_brokers_answer_is_read_in_detail():
    answers = SendAnswerReader(detailed=True).receive_data(frame_of(named("send_message_rsp")))
    assert [column.tolist() for column in answers.details] == [[3369719412767588352], [1704164645678]]


@in_one_test("kind", KINDS)
def test_a_reader_that_does_not_ask_for_details_gets_none(kind):
    data, _ = KINDS[kind]
    reader = SendAnswerReader()
    assert [reader.receive_data(data[at : at + 1]).details for at in range(len(data))] == [None] * len(data)


@in_one_test(
    ("body", "what"),
    [
        (answer_body(None), "append offset -1"),
        (answer_body(29), "append offset 29"),
        (answer_body(-28), "append offset -28"),
        (
            broker_pb2.SendMessageResponseB2P(success=False, errCode=200, errMsg="").SerializeToString(),
            "=False",
        ),
        (b"\x08\x01\x10\xc8\x01\x1a\x33only part of the text", "SendMessageResponseB2P"),
        (b"\x08\x01\x10\xc8\x01\x38\x1c", "errMsg"),
        (b"", "success"),
    ],
)
def test_success_without_a_sound_place_is_a_violation(body, what):
    with pytest.raises(RemoteProtocolError, match=what):
        read([answer_frame(7, body)])


def test_the_answer_of_another_method_is_a_violation():
    with pytest.raises(RemoteProtocolError, match="answered method 17"):
        read([answer_frame(7, answer_body(28), Method.GET_MESSAGE)])


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 16, b"\0" * 40])
def test_bytes_that_are_no_frames_are_a_violation(data):
    with pytest.raises(RemoteProtocolError, match="a frame starts with"):
        read([data])


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=80))
def test_no_bytes_do_more_than_break_the_connection(junk):
    reader = SendAnswerReader()
    try:
        reader.receive_data(answer_frame(1, answer_body()) + junk)
        reader.receive_data(junk)
    except RemoteProtocolError:
        pass


RUN = 4


def usual(data, position=0):
    serial_nos, offsets, *_ = columns = columns_for(data)
    end, count = read_send_answers(data, position, *columns)
    return end, serial_nos[:count].tolist(), offsets[:count].tolist()


def read_at_once(data):
    """Read answers as connections do: those that are stored, and the others."""
    serial_nos, offsets, failures, _ = SendAnswerReader().receive_data(data)
    return list(zip(serial_nos.tolist(), offsets.tolist(), strict=True)), failures


def detailed(data):
    """Read what answers say of the messages that are stored, and the others."""
    serial_nos, offsets, failures, details = SendAnswerReader(detailed=True).receive_data(data)
    columns = (serial_nos, offsets, *details)
    return list(zip(*(column.tolist() for column in columns), strict=True)), failures


def general(data, *more):
    """Read frames by the general decoders alone; ``more`` names fields besides the offset."""
    for one in framing.FrameDecoder().receive_data(data):
        answer = rpc.decode_answer(one.serial_no, one.stream)
        # Not rpc.parse_message: a text that is not UTF-8 does not make a stored message unstored.
        stored = broker_pb2.SendMessageResponseB2P.FromString(answer.body)
        yield one.serial_no, *(getattr(stored, name) for name in ("appendOffset", *more))


@st.composite
def runs(draw):
    """Answers of one length, as a store gives them; of some, one thing is out of the ordinary."""
    offset = 28 * draw(st.integers(0, 1 << 57))
    text = draw(st.text("0123456789", max_size=20) | st.text(max_size=5))
    numbers = [draw(own.int32s) for _ in range(RUN)]
    return b"".join(
        answer_frame(number, answer_body(offset + 28 * i, text=text)) for i, number in enumerate(numbers)
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_runs_are_read_as_the_general_decoders_read_them(parts):
    data = b"".join(parts)
    assert read_at_once(data) == (list(general(data)), [])
    assert detailed(data) == (list(general(data, "messageId", "appendTime")), [])


@settings(deadline=None, max_examples=30)
@given(runs(), st.data())
def test_a_damaged_byte_is_never_read_otherwise_than_by_the_general_decoders(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    damaged = data[:at] + bytes([draw.draw(st.integers(0, 255))]) + data[at + 1 :]
    end, serial_nos, offsets = usual(damaged)
    assert list(zip(serial_nos, offsets, strict=True)) == list(general(damaged[:end]))


def test_a_run_is_read_from_any_position_to_its_last_whole_frame():
    one = answer_frame(7, answer_body(2800))
    end, serial_nos, offsets = usual(b"junk" + one * RUN + one[:-1], 4)
    assert end == 4 + RUN * len(one)
    assert serial_nos == [7] * RUN
    assert offsets == [2800] * RUN


@in_one_test(
    ("odd", "outcome"),
    [
        (answer_body(None, 419, "x" * 46), Refusal(419, "x" * 46)),
        (answer_body(0), 0),
        (answer_body(28, text="\u00e9" + "x" * 17), 28),
        (answer_body(28)[:-2] + b"\x38\x01\x38\x1c", 28),
    ],
)
@in_one_test("at", [0, 1, RUN - 1])
def test_an_answer_of_another_kind_within_a_run_is_read(odd, outcome, at):
    frames = [answer_frame(number, answer_body(28 * (1 + number))) for number in range(RUN)]
    frames[at] = answer_frame(at, odd)
    expected = [(number, 28 * (1 + number)) for number in range(RUN)]
    expected[at] = (at, outcome)
    failed = isinstance(outcome, Refusal)
    assert read_at_once(b"".join(frames)) == (
        [answer for answer in expected if not (failed and answer[0] == at)],
        [(at, outcome)] if failed else [],
    )


def test_offsets_of_any_length_are_read():
    for exponent in range(5, 58):
        data = b"".join(answer_frame(number, answer_body(28 << exponent)) for number in range(RUN))
        assert usual(data) == (len(data), list(range(RUN)), [28 << exponent] * RUN)


def test_a_negative_offset_is_left_to_the_general_decoders():
    data = answer_frame(1, answer_body(-28)) * RUN
    assert usual(data) == (0, [], [])
