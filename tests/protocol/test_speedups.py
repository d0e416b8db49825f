"""The compiled twin: that it is there, that it can be left out, and that bytes cannot harm it."""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from testkit.examples import examples
from testkit.wire import decode_fetch
from tests import strategies as own
from tests.protocol.fetch_answers import answers, broken_messages, odd_messages, sound_messages
from tests.protocol.test_send_connection import answer_body as answer_message, answer_frame
from tubemq_spark import __version__
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol import fetch_decoder, framing, rpc, speedups
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.framing import FrameDecoder
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_batch import BytesColumn, MessageHeader
from tubemq_spark.protocol.send_frames import SendCredentials, encode_place

_speedups = pytest.importorskip(
    "tubemq_spark.protocol._speedups", reason="the compiled twin was not built", exc_type=ImportError
)

any_answers = answers(st.lists(st.one_of(sound_messages(), odd_messages(), broken_messages), max_size=5))


def outcome(body, twin):
    """Return all that a twin finds, or what it says is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "compiled", twin)
        try:
            header, found, corrupt = decode_fetch(body)
        except RemoteProtocolError as error:
            return str(error)
    rows = [(int(found.ordinals[row]), found.message(row)) for row in range(len(found))]
    return header, rows, corrupt.tolist()


@settings(max_examples=examples(40, by_night=500))
@given(any_answers)
def test_both_twins_find_the_same(body):
    assert outcome(body, _speedups) == outcome(body, None)


@settings(max_examples=examples(60, by_night=750))
@given(any_answers.filter(len), st.data())
def test_both_twins_find_the_same_in_damaged_answers(body, data):
    damaged = bytearray(body)
    damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(body)))])

    assert outcome(bytes(damaged), _speedups) == outcome(bytes(damaged), None)
    assert outcome(cut, _speedups) == outcome(cut, None)


@given(st.binary(max_size=40))
def test_the_compiled_module_and_protobuf_make_the_same_of_bytes(body):
    found = _speedups.outline_fetch(body)
    if found is not None:
        *head, count = found
        answer = broker_pb2.RawGetMessageResponseB2C.FromString(body)
        assert len(answer.messages) == count
        assert fetch_decoder.FetchHeader(*head) == fetch_decoder.header_of(answer)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x08\x01",
        b"\x10\xc8\x01",
        b"\x08\x00\x10\x94\x03\x1a\x04gone",
        b"\x08\x01\x10\xc8\x01\x1a\x01\xff",
        b"\x08\x02\x10\xc8\x01\x28\x1c\x28\x38\x38\x01\x48\x01\x50\x00",
        b"\x08\x01\x10" + b"\xff" * 9 + b"\x01\x30\xff\xff\xff\xff\x7f\x40" + b"\xff" * 9 + b"\x01",
    ],
)
def test_both_twins_read_the_same_head(body):
    """With and without its fields, and with numbers of more bits than protobuf keeps."""
    assert outcome(body, _speedups) == outcome(body, None)


@given(st.binary(max_size=60), st.integers(-1, 9))
def test_messages_are_not_counted_on_the_caller_s_word(body, count):
    if not 0 <= count <= len(body) // 8:
        with pytest.raises(ValueError, match="messages in"):
            _speedups.scan_fetch(body, count)
    else:
        found, outline = _speedups.scan_fetch(body, count), _speedups.outline_fetch(body)
        assert found is None or outline is None or outline[-1] == count


def test_the_usual_answer_is_not_left_to_python():
    """Otherwise nothing would be faster, and no other test would notice."""
    answer = broker_pb2.GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=0)
    answer.messages.add(messageId=5, checkSum=-1, payLoadData=b"body", flag=0)
    body = rpc.serialize_message(answer)

    *_, count = _speedups.outline_fetch(body)
    numbers, damaged = _speedups.scan_fetch(body, count)

    assert np.frombuffer(numbers, np.int64)[0] == 5
    assert damaged == b"\x01"


@pytest.mark.parametrize("by_tables", [False, True])
def test_checksums_are_those_of_zlib(by_tables):
    """Of every length around the borders of blocks, wherever in memory they begin."""
    data = np.random.default_rng(7).bytes(640)
    for start in range(17):
        for size in range(601):
            piece = memoryview(data)[start : start + size]
            assert _speedups.crc32(piece, by_tables) == zlib.crc32(piece)


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 32), st.booleans())
def test_checksums_of_long_data_are_those_of_zlib(size, seed, by_tables):
    data = np.random.default_rng(seed).bytes(size)
    assert _speedups.crc32(data, by_tables) == zlib.crc32(data)


def test_the_usual_send_and_its_answer_are_not_left_to_python():
    values, prefixes = BytesColumn.of([b"body"] * 3), BytesColumn.of([b""])
    backs = SendCredentials(0).backs(prefixes, [MessageHeader()])
    place = encode_place("client", "demo", 0)
    codes, rows, counts = np.zeros(3, np.int64), np.arange(3), np.array([3])
    borders = np.array([0, len(place)])

    columns = (*values[:2], *prefixes[:2], *backs[:2], codes, rows, place, borders, counts)
    assert _speedups.encode_sends(*columns, 10_000, 1) is not None

    data = b"".join(answer_frame(number, answer_message(28 * number)) for number in range(1, 9))
    serial_nos, offsets, *_ = columns = np.zeros((4, 8), np.int64)
    assert _speedups.read_send_answers(data, 0, *columns) == (len(data), 8)
    assert serial_nos.tolist() == list(range(1, 9))
    assert offsets.tolist() == [28 * number for number in range(1, 9)]


numbers = st.lists(st.integers(-1, 9) | own.int64s, max_size=5).map(lambda some: np.array(some, np.int64))


@given(
    st.lists(st.tuples(st.binary(max_size=9), numbers), min_size=4, max_size=4),
    st.tuples(numbers, numbers, numbers),
    st.tuples(own.int64s, own.int64s),
)
def test_columns_that_make_no_sense_are_left_to_python(texts, columns, more):
    (values, prefixes, backs, places), (codes, rows, counts) = texts, columns
    wire = _speedups.encode_sends(*values, *prefixes, *backs, codes, rows, *places, counts, *more)
    if wire is not None:
        assert len(FrameDecoder().receive_data(wire)) == len(rows) == counts.sum()


@pytest.mark.parametrize(
    ("position", "rooms"),
    [(-1, (4, 4, 4, 4)), (5, (4, 4, 4, 4)), (0, (3, 4, 4, 4)), (0, (4, 4, 3, 4)), (0, (4, 4, 4, 3))],
)
def test_answers_are_read_from_where_they_are_to_where_there_is_room(position, rooms):
    columns = [np.zeros(room, np.int64) for room in rooms]
    with pytest.raises(ValueError, match="outside the data"):
        _speedups.read_send_answers(b"data", position, *columns)


def test_no_more_answers_are_read_than_there_is_room_for():
    data = answer_frame(1, answer_message(28)) * 3
    numbers = np.zeros((4, 2), np.int64)
    assert _speedups.read_send_answers(data, 0, *numbers) == (len(data) // 3 * 2, 2)


def append(data, starts, ends, room=99, size=0):
    """Append pieces; return where they end, the target, and where each piece ends."""
    target, borders = bytearray(b"." * room), np.zeros(len(starts), np.int32)
    end = _speedups.append(target, size, borders, data, starts, ends)
    return end, bytes(target), borders.tolist()


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 20), st.integers(0, 80), st.data())
def test_pieces_are_put_behind_what_is_there(texts, size, room, data):
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))[: len(texts)]
    order = np.array(data.draw(st.permutations(range(len(texts)))), np.int64)

    end, target, borders = append(b"".join(texts), starts[order], ends[order], size + room, size)

    picked = b"".join(texts[row] for row in order)
    assert end == size + len(picked)
    borders_of_all, joined = _speedups.gather(b"".join(texts), starts[order], ends[order])
    assert joined == picked
    assert np.diff(np.frombuffer(borders_of_all, np.int32)).tolist() == [len(texts[row]) for row in order]
    if len(picked) > room:
        assert target == b"." * (size + room)
    else:
        assert target == b"." * size + picked + b"." * (room - len(picked))
        assert np.diff([size, *borders]).tolist() == [len(texts[row]) for row in order]


@given(st.lists(st.sampled_from([b"", b"a", b"b", b"ab"]), max_size=12), st.integers(-1, 20))
def test_runs_begin_where_a_text_differs_from_the_one_before(texts, most):
    borders = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int32)
    expected = [row for row, text in enumerate(texts) if row == 0 or text != texts[row - 1]]
    found = _speedups.runs(b"".join(texts), borders, most)
    assert found == (expected if len(expected) <= max(most, 0) else None)


@pytest.mark.parametrize("borders", [[-1, 0], [0, 4], [2, 1], [0, -(1 << 31)]])
def test_a_text_outside_the_data_is_refused(borders):
    with pytest.raises(ValueError, match="outside the data"):
        _speedups.runs(b"abc", np.array(borders, np.int32), 9)


outside = pytest.mark.parametrize(
    ("starts", "ends"),
    [([-1], [0]), ([0], [4]), ([2], [1]), ([0, 0], [1]), ([1 << 62], [1 << 62]), ([0], [-(1 << 63)])],
)


@outside
def test_a_piece_outside_its_data_is_refused(starts, ends):
    with pytest.raises(ValueError, match="outside its data"):
        append(b"abc", np.array(starts, np.int64), np.array(ends, np.int64))
    with pytest.raises(ValueError, match="outside its data"):
        _speedups.gather(b"abc", np.array(starts, np.int64), np.array(ends, np.int64))


@pytest.mark.parametrize(("size", "borders"), [(-1, 1), (4, 1), (0, 0)])
def test_pieces_are_put_only_where_there_is_room(size, borders):
    with pytest.raises(ValueError, match="room"):
        _speedups.append(
            bytearray(3), size, np.zeros(borders, np.int32), b"x", np.zeros(1, np.int64), np.ones(1, np.int64)
        )


@outside
def test_the_checksum_of_what_is_outside_its_data_is_left_to_python(starts, ends):
    assert _speedups.running_checksums(b"abc", np.array(starts, np.int64), np.array(ends, np.int64)) is None


def run_alone(program):
    """Run a program that may end with a signal."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_columns_that_change_in_another_thread_are_no_write_beyond_the_target():
    run_alone("""
import array, contextlib, threading
from tubemq_spark.protocol import _speedups
rows = 50_000
data, starts, ends = bytes(1 << 20), array.array("q", [0] * rows), array.array("q", [8] * rows)
target, borders = bytearray(8 * rows + 1), array.array("i", [0] * rows)
stop = threading.Event()
def change():
    while not stop.is_set():
        ends[rows - 1] = 1 << 20
        ends[rows - 1] = 8
changing = threading.Thread(target=change)
changing.start()
for _ in range(2000):
    with contextlib.suppress(ValueError):
        _speedups.append(target, 0, borders, data, starts, ends)
stop.set()
changing.join()
assert target[-1] == 0
print("alive")
""")


def test_columns_may_begin_anywhere():
    starts, ends = (
        memoryview(b"x" + np.array(column, np.int64).tobytes())[1:] for column in ([0, 2], [2, 3])
    )
    target, borders = bytearray(3), bytearray(9)
    assert _speedups.append(target, 0, memoryview(borders)[1:], b"abc", starts, ends) == 3
    assert (target, np.frombuffer(borders, np.int32, 2, 1).tolist()) == (b"abc", [2, 3])
    assert _speedups.runs(b"abc", memoryview(b"x" + np.array([0, 2, 3], np.int32).tobytes())[1:], 9) == [0, 1]


def test_pieces_of_two_gib_are_refused():
    data = bytes(1 << 20)
    count = 2048
    with pytest.raises(ValueError, match="piece"):
        append(data, np.zeros(count, np.int64), np.full(count, len(data), np.int64))
    with pytest.raises(ValueError, match="too long together"):
        _speedups.gather(data, np.zeros(count, np.int64), np.full(count, len(data), np.int64))


def framed(body, serial_no=7, status=b"\x08\x00\x18\x03", chunk=framing.CHUNK_BYTES):
    """Return the frame of an answer, cut into chunks of a length."""
    message = b"\x08\x0e\x12" + rpc.encode_varint(len(body)) + body
    stream = b"\x02\x08\x01\x04" + status + rpc.encode_varint(len(message)) + message
    chunks = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]
    head = struct.pack(">Iii", 0xFF7FF4FE, serial_no, len(chunks))
    return head + b"".join(struct.pack(">i", len(some)) + some for some in chunks)


@pytest.mark.parametrize("serial_no", [1, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("size", [0, 1, 8_170, 8_171, 8_172, 8_173, 8_174, 8_175, 8_192, 16_384, 70_000])
def test_the_answer_in_a_frame_is_unwrapped(size, serial_no):
    body = np.random.default_rng(size).bytes(size)
    data = framed(body, serial_no)

    assert _speedups.unwrap_answer(data) == (serial_no, 14, body)
    assert RpcConnection(Role.CLIENT).receive_data(data) == []  # nothing was asked


@pytest.mark.parametrize(
    "data",
    [
        b"",
        framed(b"body")[:-1],
        framed(b"body") + b"x",
        framed(b"body") * 2,
        framed(b"body", chunk=5),
        framed(bytes(20_000), chunk=8_191),
        framed(bytes(20_000)).replace(b"\0\0\x20\0", b"\0\0\x1f\0"),
        framed(b"body", status=b"\x08\x01\x18\x03"),
        framed(b"body").replace(b"\xff\x7f", b"\xff\x7e", 1),
        framed(b"body").replace(b"\x12\x04", b"\x12\x03", 1),
        framed(b"body").replace(b"\x12\x04", b"\x1a\x04", 1),
        struct.pack(">Iiii", 0xFF7FF4FE, 1, 1 << 30, 8_192),
        struct.pack(">Iiii", 0xFF7FF4FE, 1, 0, 0),
        struct.pack(">Iiii", 0xFF7FF4FE, 1, 1, 0),
        struct.pack(">Iiii", 0xFF7FF4FE, 1, 1, -1),
        struct.pack(">Iii", 0xFF7FF4FE, 1, 1),
    ],
)
def test_other_bytes_are_left_to_python(data):
    assert _speedups.unwrap_answer(data) is None


def test_a_frame_within_a_message_is_no_answer():
    """However the network has cut the bytes."""
    connection = RpcConnection(Role.CLIENT)
    outer, inner = (connection.send_request(1, 1, b"", 1) for _ in range(2))
    hidden = framed(b"hidden", inner)
    data = framed(hidden, outer)

    assert connection.receive_data(data[: -len(hidden)]) == []
    assert connection.receive_data(hidden) == [rpc.Response(outer, 14, hidden)]
    assert connection.in_flight == {inner}


def test_a_length_that_another_process_changes_is_no_read_beyond_the_frame():
    run_alone(f"""
import mmap, os, signal
from tubemq_spark.protocol import _speedups
frame = {framed(bytes(100))!r}
shared = mmap.mmap(-1, 4096)
shared[:len(frame)] = frame
length = frame[12:16]
parent = os.getpid()
changing = os.fork()
while changing == 0 and os.getppid() == parent:
    shared[12:16] = b"\\x7f\\xff\\xff\\xff"
    shared[12:16] = length
if changing == 0:
    os._exit(0)
try:
    data = memoryview(shared)[:len(frame)]
    outcomes = {{_speedups.unwrap_answer(data) for _ in range(1_000_000)}}
finally:
    os.kill(changing, signal.SIGKILL)
    os.waitpid(changing, 0)
assert outcomes <= {{None, (7, 14, bytes(100))}}
print("alive")
""")


def test_no_answer_is_taken_after_a_fault():
    connection = RpcConnection(Role.CLIENT)
    connection.send_request(1, 1, b"", 1)
    for data in (b"no frame at all.", framed(b"body", 1)):
        with pytest.raises(RemoteProtocolError):
            connection.receive_data(data)


@given(st.binary(max_size=30), st.data())
def test_both_twins_unwrap_the_same(body, data):
    """Also of damaged frames."""
    frame = bytearray(framed(body))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))

    def unwrapped(twin):
        connection = RpcConnection(Role.CLIENT)
        for _ in range(7):
            connection.send_request(1, 1, b"", 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(speedups, "compiled", twin)
            try:
                events = connection.receive_data(bytes(frame))
            except RemoteProtocolError as error:
                return str(error)
        return events, connection.in_flight, connection.frame_count, connection.mid_frame

    assert unwrapped(_speedups) == unwrapped(None)


@pytest.mark.parametrize(("pure", "said"), [("", "compiled"), ("1", "pure Python")])
def test_a_variable_chooses_the_twin_and_the_version_names_it(pure, said):
    command = [sys.executable, "-m", "tubemq_spark", "--version"]
    environment = os.environ | {speedups.PURE_VARIABLE: pure}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == f"tubemq_spark {__version__} ({said})\n"
