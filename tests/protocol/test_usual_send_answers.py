"""Runs of usual answers are read as the general decoders read each of them."""

import pytest
from hypothesis import given, settings, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.test_send_answers import frame, message
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_answers import Refusal, SendAnswerReader, columns_for, read_send_answers

pytestmark = pytest.mark.usefixtures("each_twin")

RUN = 4


def usual(data, position=0):
    serial_nos, offsets, *_ = columns = columns_for(data)
    end, count = read_send_answers(data, position, *columns)
    return end, serial_nos[:count].tolist(), offsets[:count].tolist()


def read(data):
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
    return b"".join(frame(number, message(offset + 28 * i, text=text)) for i, number in enumerate(numbers))


@settings(deadline=None, max_examples=30)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_runs_are_read_as_the_general_decoders_read_them(parts):
    data = b"".join(parts)
    assert read(data) == (list(general(data)), [])
    assert detailed(data) == (list(general(data, "messageId", "appendTime")), [])


@settings(deadline=None, max_examples=30)
@given(runs(), st.data())
def test_a_damaged_byte_is_never_read_otherwise_than_by_the_general_decoders(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    damaged = data[:at] + bytes([draw.draw(st.integers(0, 255))]) + data[at + 1 :]
    end, serial_nos, offsets = usual(damaged)
    assert list(zip(serial_nos, offsets, strict=True)) == list(general(damaged[:end]))


def test_a_run_is_read_from_any_position_to_its_last_whole_frame():
    one = frame(7, message(2800))
    end, serial_nos, offsets = usual(b"junk" + one * RUN + one[:-1], 4)
    assert end == 4 + RUN * len(one)
    assert serial_nos == [7] * RUN
    assert offsets == [2800] * RUN


@in_one_test(
    ("odd", "outcome"),
    [
        (message(None, 419, "x" * 46), Refusal(419, "x" * 46)),
        (message(0), 0),
        (message(28, text="\u00e9" + "x" * 17), 28),
        (message(28)[:-2] + b"\x38\x01\x38\x1c", 28),
    ],
)
@in_one_test("at", [0, 1, RUN - 1])
def test_an_answer_of_another_kind_within_a_run_is_read(odd, outcome, at):
    frames = [frame(number, message(28 * (1 + number))) for number in range(RUN)]
    frames[at] = frame(at, odd)
    expected = [(number, 28 * (1 + number)) for number in range(RUN)]
    expected[at] = (at, outcome)
    failed = isinstance(outcome, Refusal)
    assert read(b"".join(frames)) == (
        [answer for answer in expected if not (failed and answer[0] == at)],
        [(at, outcome)] if failed else [],
    )


def test_offsets_of_any_length_are_read():
    for exponent in range(5, 58):
        data = b"".join(frame(number, message(28 << exponent)) for number in range(RUN))
        assert usual(data) == (len(data), list(range(RUN)), [28 << exponent] * RUN)


def test_a_negative_offset_is_left_to_the_general_decoders():
    data = frame(1, message(-28)) * RUN
    assert usual(data) == (0, [], [])
