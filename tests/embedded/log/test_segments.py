"""A log in files when something is in the way: other files, holes, failures, readers, interruptions.

What was appended is read, whatever the size of the files: stores, which are made of logs, prove it.
"""

import errno
import os
from pathlib import Path

import pytest

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
