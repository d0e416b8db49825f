"""A log in files returns what was appended, whatever the size of the files."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tubemq_spark.embedded.log.segments import SegmentedLog
from tubemq_spark.errors import DataLossError


@pytest.fixture
def open_log(tmp_path, closing):
    def open_it(segment_bytes=100):
        log = SegmentedLog(tmp_path, ".tube", segment_bytes)
        closing.callback(log.close)
        return log

    return open_it


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_new_log_is_one_empty_file_named_after_its_start(open_log, tmp_path):
    log = open_log()
    assert (log.start, log.end) == (0, 0)
    assert names(tmp_path) == ["00000000000000000000.tube"]


def test_a_file_that_reached_its_size_is_followed_by_another(open_log, tmp_path):
    log = open_log(segment_bytes=100)
    log.append(b"a" * 99)
    log.append(b"b")
    assert len(log.segments) == 1
    log.append(b"c")
    assert names(tmp_path) == ["00000000000000000000.tube", "00000000000000000100.tube"]
    assert log.read(98, 10) == b"ab", "a read ends at the border of a file"
    assert log.read(100, 10) == b"c"


@settings(max_examples=30)
@given(chunks=st.lists(st.binary(min_size=1, max_size=50), max_size=30), segment_bytes=st.integers(1, 80))
def test_appended_bytes_are_read_also_after_reopening(tmp_path_factory, chunks, segment_bytes):
    directory = tmp_path_factory.mktemp("log")
    whole = b"".join(chunks)
    log = SegmentedLog(directory, ".tube", segment_bytes)
    for chunk in chunks:
        log.append(chunk)
    for _ in range(2):
        position = 0
        while piece := log.read(position, 1000):
            assert piece == whole[position : position + len(piece)]
            position += len(piece)
        assert position == log.end == len(whole)
        log.close()
        log = SegmentedLog(directory, ".tube", segment_bytes)
    log.close()


@pytest.mark.parametrize("end", [0, 1, 99, 100, 101, 250, 300])
def test_truncate_leaves_what_is_before(open_log, end):
    log = open_log(segment_bytes=100)
    for _ in range(3):
        log.append(b"x" * 100)
    log.truncate(end)
    assert log.end == end
    log.append(b"new")
    assert log.read(end, 10) == b"new"
    log.close()
    assert open_log().end == end + 3


def test_a_hole_between_files_is_refused_and_nothing_changed(open_log, tmp_path):
    log = open_log(segment_bytes=10)
    for _ in range(3):
        log.append(b"x" * 10)
    log.close()
    (tmp_path / "00000000000000000010.tube").unlink()
    before = names(tmp_path)
    with pytest.raises(
        DataLossError, match=r"^\[TUBEMQ_STORE_DAMAGED\] .*ends at 10, but .*020\.tube follows"
    ):
        open_log()
    assert names(tmp_path) == before


def test_other_files_in_the_directory_do_not_matter(open_log, tmp_path):
    (tmp_path / "note.tube").write_text("not mine")
    (tmp_path / "00000000000000000010.other").write_text("not mine")
    assert open_log().end == 0


def test_dropped_files_are_gone_and_can_still_be_read_by_who_reads(open_log, tmp_path):
    log = open_log(segment_bytes=10)
    for byte in (b"a", b"b", b"c"):
        log.append(byte * 10)
    reading = log.segments[0]
    log.drop_before(20, now_ms=1_000)
    assert (log.start, log.end) == (20, 30)
    assert names(tmp_path) == ["00000000000000000020.tube"]
    assert os.pread(reading.fd, 10, 0) == b"a" * 10
    log.drop_before(20, now_ms=121_000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(reading.fd, 10, 0)


def test_dropping_continues_after_a_failure_and_without_a_file_that_is_gone(open_log, tmp_path, monkeypatch):
    log = open_log(segment_bytes=10)
    for byte in b"abcde":
        log.append(bytes([byte]) * 10)
    log.segments[0].path.unlink()
    unlink = Path.unlink

    def stuck(path, **arguments):
        if path.name.startswith(f"{20:020}"):
            raise OSError(errno.EBUSY, "busy")
        unlink(path, **arguments)

    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", stuck)
        with pytest.raises(OSError, match="busy"):
            log.drop_before(40, now_ms=0)
    assert (log.start, log.open_files) == (20, 5)
    log.drop_before(40, now_ms=200_000)
    assert (log.start, names(tmp_path)) == (40, ["00000000000000000040.tube"])
    log.close()
    assert log.open_files == 0


def test_the_last_file_is_never_dropped(open_log):
    log = open_log(segment_bytes=10)
    log.append(b"a" * 10)
    log.drop_before(1_000, now_ms=0)
    assert (log.start, log.end) == (0, 10)


def test_files_expire_by_the_time_of_their_last_write(open_log):
    log = open_log(segment_bytes=10)
    for number in range(4):
        log.append(b"x" * 10)
        os.utime(log.segments[-1].path, (0, number))
    assert log.expired_end(written_before_ms=-1) == 0
    assert log.expired_end(written_before_ms=0) == 10
    assert log.expired_end(written_before_ms=1_500) == 20
    assert log.expired_end(written_before_ms=10**9) == 30, "not the last"


def test_a_write_that_fails_leaves_the_log_as_it_was(open_log, monkeypatch):
    log = open_log()
    log.append(b"whole")
    write = os.pwrite

    def disk_full_in_the_middle(fd, data, position):
        if position > 5:
            raise OSError(28, "No space left on device")
        return write(fd, data[:2], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", disk_full_in_the_middle)
        with pytest.raises(OSError, match="No space left"):
            log.append(b"torn")
    assert log.end == 5
    assert log.segments[-1].path.read_bytes() == b"whole"
    log.append(b"!")
    assert log.read(0, 100) == b"whole!"


def test_a_short_write_goes_on(open_log, monkeypatch):
    log = open_log()
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: write(fd, data[:3], position))
    log.append(b"ten bytes!")
    assert log.read(0, 100) == b"ten bytes!"


def test_a_file_that_gets_a_successor_is_brought_to_the_disk_first(open_log, monkeypatch):
    """Otherwise a power failure could leave a gap between files, and the log would be refused."""
    log = open_log(segment_bytes=10)
    log.append(b"x" * 10)
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or sync(fd))
    full = log.segments[0].fd
    log.append(b"next")
    assert synced[0] == full
    assert len(synced) == 2, "and the directory, for the name of the new one"


@pytest.mark.parametrize("step", range(1, 8))
def test_a_truncation_that_is_interrupted_leaves_no_hole(open_log, tmp_path, monkeypatch, step):
    """The log can be opened again, whatever it was doing when it was killed."""
    log = open_log(segment_bytes=10)
    for byte in (b"a", b"b", b"c", b"d"):
        log.append(byte * 10)
    left = [step]

    def killed_at(function):
        def call(*arguments):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("unlink", "ftruncate", "fsync"):
            patch.setattr(os, name, killed_at(getattr(os, name)))
        try:
            log.truncate(5)
            assert left[0] > 0
        except KeyboardInterrupt:
            pass
    log.close()
    again = open_log(segment_bytes=10)
    assert again.read(0, 10).startswith(b"a" * 5)
    again.truncate(5)
    assert again.end == 5


def test_a_failed_sync_is_never_forgotten(open_log, monkeypatch):
    log = open_log()
    log.append(b"x")

    def broken(_fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            log.sync()
    for use in (log.sync, log.roll):
        with pytest.raises(OSError, match="Input/output error"):
            use()
    assert len(log.segments) == 1
