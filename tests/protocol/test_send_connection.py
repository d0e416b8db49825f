"""Answers find their messages, whatever happens to the others; serial numbers go round."""

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from testkit.examples import examples
from tests import strategies as own
from tests.protocol.test_send_answers import frame as answer_frame, message as answer_body
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import framing
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_answers import Refusal
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_connection import NotStored, SendConnection
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
