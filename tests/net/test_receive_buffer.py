"""Frames in any layout, received in any parts."""

import platform
import struct
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.net.receive_buffer import ReceiveBuffer
from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN
from tubemq_spark.protocol.framing import FrameDecoder, encode_frame

streams = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.integers(1, 5 * CHUNK_BYTES).map(lambda size: bytes(range(251)) * (size // 251) + b"x" * (size % 251)),
    st.sampled_from([CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 200 * CHUNK_BYTES]).map(bytes),
)


def in_chunks(serial_no, stream, sizes):
    """Return a frame whose chunks have other sizes than TubeMQ's."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(stream[start : start + size])
        start += size
    chunks.append(stream[start:])
    head = struct.pack(">IiI", FRAME_TOKEN, serial_no, len(chunks))
    return head + b"".join(struct.pack(">I", len(chunk)) + chunk for chunk in chunks)


class Receiver:
    """A connection's end: puts bytes into a buffer, and what the buffer returns into a decoder."""

    def __init__(self):
        self.buffer, self.decoder, self.frames = ReceiveBuffer(), FrameDecoder(), []
        self.handed_over = 0

    def receive(self, data):
        while data:
            room = self.buffer.room[: len(data)]
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self.take(self.buffer.add(len(room)))

    def take(self, view):
        if view is None:
            return
        self.handed_over += 1
        self.frames += self.decoder.receive_data(view)
        view[:] = bytes(len(view))  # nothing refers to it any more
        if self.decoder.mid_frame:
            self.buffer.pass_on()


@given(st.lists(streams, min_size=1, max_size=4), st.lists(st.integers(1, 30_000), max_size=20))
def test_usual_frames_are_handed_over_whole(sent, cuts):
    receiver = Receiver()
    for serial_no, stream in enumerate(sent):
        data, before = encode_frame(serial_no, stream), receiver.handed_over
        for cut in cuts:
            receiver.receive(data[:cut])
            data = data[cut:]
        receiver.receive(data)
        assert receiver.handed_over == before + 1

    assert receiver.frames == list(enumerate(sent))
    assert not receiver.buffer.begun


@given(
    st.lists(st.tuples(streams, st.lists(st.integers(0, 9_000), max_size=4)), min_size=1, max_size=4),
    st.lists(st.integers(1, 30_000), max_size=20),
)
def test_frames_of_any_layout_come_when_what_is_here_is_asked_for(sent, cuts):
    receiver = Receiver()
    data = b"".join(in_chunks(number, stream, sizes) for number, (stream, sizes) in enumerate(sent))
    for cut in cuts:
        receiver.receive(data[:cut])
        data = data[cut:]
    receiver.receive(data)
    receiver.take(receiver.buffer.flush())

    assert receiver.frames == [(number, stream) for number, (stream, _) in enumerate(sent)]


def test_a_long_frame_has_a_buffer_of_its_own_and_leaves_none():
    buffer = ReceiveBuffer()
    usual = len(buffer.room)
    receiver = Receiver()
    receiver.buffer = buffer
    long = bytes(3 * usual)
    receiver.receive(encode_frame(7, long))

    assert receiver.frames == [(7, long)]
    assert len(buffer.room) == usual


def test_asking_for_nothing_changes_nothing():
    """In the middle of a frame, the next byte is handed on as it comes."""
    buffer = ReceiveBuffer()
    buffer.pass_on()
    assert buffer.flush() is None
    buffer.room[:1] = b"x"
    assert buffer.add(1) == b"x"


_COUNT_FAULTS = """
import resource
from tubemq_spark.net.receive_buffer import keep_freed_memory

def use():
    return [b"x" * (8 << 20) for _ in range(3)]

keep_freed_memory(16 << 20)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_large_pieces_that_were_freed_are_used_again():
    """Three of 8 MiB are freed together: by itself glibc would give them back, and take 6000 new pages."""
    counted = subprocess.run(
        [sys.executable, "-c", _COUNT_FAULTS], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(counted.stdout) < 1000
