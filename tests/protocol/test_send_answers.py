from collections.abc import Iterable

import pytest
from hypothesis import given, settings, strategies as st

from testkit.wire import encode_response
from tests import strategies as own
from tests.cases import in_one_test
from tests.protocol.vectors import frame_of, named
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import framing, rpc
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_answers import Refusal, SendAnswerReader

pytestmark = pytest.mark.usefixtures("each_twin")


def message(offset: int | None = 28, code: int = 200, text: str = "3369719412767588352", **fields) -> bytes:
    answer = broker_pb2.SendMessageResponseB2P(success=code == 200, errCode=code, errMsg=text, **fields)
    if offset is not None:
        answer.requireAuth, answer.messageId, answer.appendTime = False, 3369719412767588352, 1704164645678
        answer.appendOffset = offset
    return answer.SerializeToString()


def frame(serial_no: int, body: bytes, method: int = Method.SEND_MESSAGE) -> bytes:
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
    "stored": (frame(7, message(2800)), 2800),
    "first of a store": (frame(7, message(0)), 0),
    "far into a store": (frame(7, message(28 * (1 << 50))), 28 * (1 << 50)),
    "without time and id": (frame(7, message(None, appendOffset=56)), 56),
    "long text": (frame(7, message(28, text="x" * 200)), 28),
    "short chunks": (in_chunks_of(5, frame(7, message(28))), 28),
    "overflow": (frame(7, message(None, 419, "overflow!")), Refusal(419, "overflow!")),
    "refused with an offset": (frame(7, message(28, 403, "no")), Refusal(403, "no")),
    "exception": (framing.encode_frame(7, rpc.encode_failure(FAILURE)), FAILURE),
    "padded": (
        framing.encode_frame(7, encode_response(rpc.Response(7, 13, message(28))) + b"\0" * 9),
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


@in_one_test("kind", KINDS)
def test_an_answer_is_read_byte_by_byte(kind):
    data, outcome = KINDS[kind]
    assert read(data[at : at + 1] for at in range(len(data))) == [(7, outcome)]


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
    assert read([frame(serial_no, message(28 * offset, text=text))]) == [(serial_no, 28 * offset)]


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
        frames.append(frame(number, numbered(message_id, append_time, 28 * number, "x" * 90 * odd)))
        expected.append((number, 28 * number, message_id, append_time if message_id else 0))
        if odd:
            frames.append(frame(-number, message(None, 419, "no")))
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
        (message(None), "append offset -1"),
        (message(29), "append offset 29"),
        (message(-28), "append offset -28"),
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
        read([frame(7, body)])


def test_the_answer_of_another_method_is_a_violation():
    with pytest.raises(RemoteProtocolError, match="answered method 17"):
        read([frame(7, message(28), Method.GET_MESSAGE)])


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 16, b"\0" * 40])
def test_bytes_that_are_no_frames_are_a_violation(data):
    with pytest.raises(RemoteProtocolError, match="a frame starts with"):
        read([data])


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=80))
def test_no_bytes_do_more_than_break_the_connection(junk):
    reader = SendAnswerReader()
    try:
        reader.receive_data(frame(1, message()) + junk)
        reader.receive_data(junk)
    except RemoteProtocolError:
        pass
