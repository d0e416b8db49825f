"""Frames survive any way the network cuts them; everything that is no frame is refused at once."""

import contextlib
import itertools
import random
import struct

import pytest
from hypothesis import given, strategies as st

from tests import strategies as own
from tests.cases import in_one_test
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN, MAX_CHUNKS, MAX_FRAME_BYTES
from tubemq_spark.protocol.framing import Frame, FrameDecoder, encode_frame


def header(chunks: int, serial_no: int = 7, token: int = FRAME_TOKEN) -> bytes:
    return struct.pack(">Iii", token, serial_no, chunks)


def raw_frame(serial_no: int, chunks: list[bytes]) -> bytes:
    """Frame chunks of any sizes, as peers other than Java's writer may."""
    body = b"".join(struct.pack(">i", len(chunk)) + chunk for chunk in chunks)
    return header(len(chunks), serial_no) + body


@given(st.data(), st.lists(own.frames, max_size=5))
def test_any_split_gives_the_same_frames(data, frames):
    decoder = FrameDecoder()
    sent = b"".join(encode_frame(frame.serial_no, frame.stream) for frame in frames)

    seen = [frame for piece in data.draw(own.splits(sent)) for frame in decoder.receive_data(piece)]

    assert seen == frames
    assert not decoder.mid_frame


@given(own.int32s, st.lists(st.binary(max_size=20), min_size=1, max_size=30))
def test_chunk_borders_mean_nothing(serial_no, chunks):
    """Chunks of any length, empty ones too, are one stream."""
    assert FrameDecoder().receive_data(raw_frame(serial_no, chunks)) == [Frame(serial_no, b"".join(chunks))]


@given(
    st.lists(
        st.sampled_from([CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 0, 5, CHUNK_BYTES + 1]),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=10),
    st.integers(0, 1 << 32),
)
def test_full_chunks_between_others_however_they_come(lengths, cuts, seed):
    """Full chunks are taken many at once; borders of reads lie anywhere."""
    chance = random.Random(seed)
    chunks = [chance.randbytes(length) for length in lengths]
    sent = raw_frame(1, chunks) + raw_frame(2, chunks[:1])
    decoder, seen, rest = FrameDecoder(), [], sent
    for cut in itertools.cycle(cuts):
        seen += decoder.receive_data(rest[:cut])
        rest = rest[cut:]
        if not rest:
            break
    assert seen == [Frame(1, b"".join(chunks)), Frame(2, chunks[0])]
    assert not decoder.mid_frame


def test_a_chunk_far_above_8192_bytes_is_taken():
    chunk = bytes(300_000)
    assert FrameDecoder().receive_data(raw_frame(1, [chunk])) == [Frame(1, chunk)]


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (1, [1]),
        (CHUNK_BYTES - 1, [CHUNK_BYTES - 1]),
        (CHUNK_BYTES, [CHUNK_BYTES]),
        (CHUNK_BYTES + 1, [CHUNK_BYTES, 1]),
        (2 * CHUNK_BYTES, [CHUNK_BYTES, CHUNK_BYTES]),
        (2 * CHUNK_BYTES + 1, [CHUNK_BYTES, CHUNK_BYTES, 1]),
    ],
)
def test_chunks_are_cut_as_java_cuts_them(size, lengths):
    """Full chunks, the rest in the last one, and no empty chunk behind a multiple."""
    stream = bytes(size)
    assert encode_frame(1, stream) == raw_frame(1, [bytes(length) for length in lengths])


@in_one_test("head_size", [0, 1, 20, 8191])
@in_one_test("size", [1, 8172, 8191, 8192, 8193, 16364, 16365, 20_000])
def test_a_head_is_framed_as_if_it_were_the_begin_of_the_stream(head_size, size):
    head, stream = bytes(range(256)) * 32, bytes(range(250, 0, -1)) * 80
    head, stream = head[:head_size], stream[:size]
    assert encode_frame(5, stream, head) == encode_frame(5, head + stream)


def test_the_longest_frame_passes_and_one_byte_more_does_not():
    stream = bytes(MAX_FRAME_BYTES)
    data = encode_frame(1, stream)

    (frame,) = FrameDecoder().receive_data(data)

    assert frame.stream == stream
    with pytest.raises(LocalProtocolError, match=f"frame of {MAX_FRAME_BYTES + 1} bytes"):
        encode_frame(1, stream + b"x")


def test_an_empty_stream_is_not_framed():
    with pytest.raises(LocalProtocolError, match="frame of 0 bytes"):
        encode_frame(1, b"")


@pytest.mark.parametrize("chunks", [1, MAX_CHUNKS])
def test_chunk_counts_at_the_bounds_are_taken(chunks):
    assert FrameDecoder().receive_data(raw_frame(1, [b"x"] * chunks)) == [Frame(1, b"x" * chunks)]


@in_one_test(
    ("data", "text"),
    [
        (header(1, token=FRAME_TOKEN ^ 1), "starts with 0xff7ff4ff, not 0xff7ff4fe"),
        (header(1, token=0), "starts with 0x00000000"),
        (b"GET / HTTP/1.1\r\n", "starts with 0x47455420"),
        (header(0), "frame 7 claims 0 chunks"),
        (header(-1), "claims -1 chunks"),
        (header(MAX_CHUNKS + 1), f"claims {MAX_CHUNKS + 1} chunks"),
        (header(2**31 - 1), "claims 2147483647 chunks"),
        (header(1) + struct.pack(">i", -1), "a chunk of -1 bytes after 0"),
        (header(1) + struct.pack(">i", -(2**31)), "a chunk of -2147483648 bytes"),
        (
            header(1) + struct.pack(">i", MAX_FRAME_BYTES + 1),
            f"a chunk of {MAX_FRAME_BYTES + 1} bytes after 0",
        ),
        (header(1) + struct.pack(">i", 2**31 - 1), "a chunk of 2147483647 bytes"),
        (
            header(2) + struct.pack(">i", 5) + b"12345" + struct.pack(">i", MAX_FRAME_BYTES - 4),
            f"a chunk of {MAX_FRAME_BYTES - 4} bytes after 5",
        ),
    ],
)
def test_what_is_no_frame_is_refused_before_its_bytes_are_awaited(data, text):
    with pytest.raises(RemoteProtocolError, match=text):
        FrameDecoder().receive_data(data)


def test_a_frame_of_exactly_28_mib_in_unequal_chunks_is_awaited():
    decoder = FrameDecoder()
    start = header(2) + struct.pack(">i", 5) + b"12345" + struct.pack(">i", MAX_FRAME_BYTES - 5)
    assert decoder.receive_data(start) == []
    assert decoder.mid_frame


def test_full_chunks_beyond_28_mib_are_refused():
    """Also where they could be taken at once."""
    most = MAX_FRAME_BYTES - 4 * CHUNK_BYTES
    decoder = FrameDecoder()
    assert decoder.receive_data(header(7) + struct.pack(">i", most) + bytes(most)) == []
    full_chunk = struct.pack(">i", CHUNK_BYTES) + bytes(CHUNK_BYTES)
    with pytest.raises(RemoteProtocolError, match=f"a chunk of 8192 bytes after {MAX_FRAME_BYTES}"):
        decoder.receive_data(full_chunk * 5)


def test_each_frame_has_a_limit_of_its_own():
    decoder = FrameDecoder()
    decoder.receive_data(raw_frame(1, [b"first"]))
    assert decoder.receive_data(header(1) + struct.pack(">i", MAX_FRAME_BYTES)) == []
    assert decoder.mid_frame


def test_after_an_error_the_decoder_stays_broken():
    """A sound frame that follows must not be taken: where frames begin is lost."""
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        decoder.receive_data(header(0))
    with pytest.raises(RemoteProtocolError, match="claims 0 chunks"):
        decoder.receive_data(encode_frame(1, b"sound"))


def test_a_truncated_frame_waits_for_its_rest_at_every_byte():
    data = raw_frame(3, [b"ab", b"", b"cdef"])
    for at in range(len(data)):
        decoder = FrameDecoder()
        assert decoder.receive_data(data[:at]) == []
        assert decoder.mid_frame == (at > 0)
        assert decoder.receive_data(data[at:]) == [Frame(3, b"abcdef")]
        assert not decoder.mid_frame


@given(st.binary(max_size=64))
def test_any_bytes_give_frames_or_our_error(data):
    with contextlib.suppress(RemoteProtocolError):
        FrameDecoder().receive_data(data)
