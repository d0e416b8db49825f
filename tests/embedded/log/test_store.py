"""One store: an index and a data log that agree, shared by partitions."""

import contextlib
import logging
import os
import shutil
import struct
import threading
import time

import pytest
from hypothesis import given, strategies as st

from tests.embedded.store_model import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SMALL_FILES,
    cut_log,
    extend_log,
    files,
    kill,
    limits,
    log_end,
    payloads_of,
    read_all,
    record,
)
from tubemq_spark.embedded.log import store as store_module
from tubemq_spark.embedded.log.segments import SegmentedLog
from tubemq_spark.embedded.log.store import DamagedRecords, Store, StoreSettings
from tubemq_spark.errors import DataLossError


@pytest.fixture
def open_store(tmp_path, closing):
    def open_it(settings=None, **arguments):
        store = Store(tmp_path / "demo-0", settings or StoreSettings(), **arguments)
        closing.callback(lambda: store._closed or store.close())
        return store

    return open_it


def test_an_empty_store_has_nothing(open_store):
    store = open_store()
    bounds = store.bounds
    assert (bounds.earliest, bounds.latest, bounds.flushed) == (0, 0, 0)
    assert store.read(0, 0, limits(store)) is None


def test_a_store_that_was_closed_has_no_files_open(open_store):
    awake = set()
    store = open_store(awake=awake)
    assert (awake, store.open_files) == ({store}, 2)
    store.close()
    assert (awake, store.open_files) == (set(), 0)


def test_what_is_cut_off_is_not_flushed_either(open_store):
    store = open_store()
    store.append([record(b"x") for _ in range(5)])
    store.flush()
    assert store.lose_from(3 * ENTRY_BYTES) == store.bounds.flushed == 3 * ENTRY_BYTES
    store.append([record(b"y")])
    assert store.bounds.flushed == 3 * ENTRY_BYTES
    store.close()
    assert read_all(open_store())[0] == [b"x", b"x", b"x", b"y"]


def test_offsets_rise_by_28_over_all_partitions_and_ids_by_one(open_store):
    store = open_store()
    first = store.append([record(b"a"), record(b"b", partition_id=1)])
    second = store.append([record(b"c")])
    assert (first.offset, second.offset) == (0, 2 * ENTRY_BYTES)
    assert first.message_id > 0
    assert second.message_id >= first.message_id + 2
    batch = store.read(0, 0, limits(store))
    assert payloads_of(batch) == [b"a", b"c"]
    assert batch.records.message_ids.tolist() == [first.message_id, second.message_id]
    assert batch.next_offset == store.bounds.latest == 3 * ENTRY_BYTES


def test_the_files_have_the_layout_of_tubemq(open_store, tmp_path):
    store = open_store()
    appended = store.append([record(b"one", partition_id=1, key_code=7), record(b"three", flag=2)])
    data = files(tmp_path, ".tube")[0].read_bytes()
    index = files(tmp_path, ".index")[0].read_bytes()
    size = HEADER_BYTES + 5
    assert struct.unpack_from(">iqiiq", index, ENTRY_BYTES) == (
        0,
        HEADER_BYTES + 3,
        size,
        -1,
        appended.time_ms,
    )
    checksum = record(b"three").checksum
    at = HEADER_BYTES + 3
    assert struct.unpack_from(">iIiiqqiiqi", data, at) == (
        *(48 + 5, 0x02C998B8, checksum, 0, ENTRY_BYTES, appended.time_ms, 0, -1, appended.message_id + 1, 2),
    )
    assert data[at + HEADER_BYTES :] == b"three"


@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (62, 1), (63, 2), (124, 2), (125, 3), (10_000, 5)])
def test_a_read_stops_after_the_message_that_reaches_the_bytes(open_store, max_bytes, count):
    store = open_store()
    store.append([record(b"x" * 10) for _ in range(5)])
    batch = store.read(0, 0, limits(store, max_bytes=max_bytes))
    assert len(batch.records) == count
    assert batch.next_offset == count * ENTRY_BYTES
    assert batch.data_end == count * (HEADER_BYTES + 10)


def test_messages_of_other_partitions_cost_entries_but_no_bytes(open_store):
    store = open_store()
    store.append([record(b"x" * 10, partition_id=number % 3) for number in range(9)])
    batch = store.read(1, 0, limits(store, max_bytes=100))
    assert (len(batch.records), batch.next_offset) == (2, 5 * ENTRY_BYTES)
    batch = store.read(1, 0, limits(store, max_entries=4))
    assert (len(batch.records), batch.next_offset) == (1, 4 * ENTRY_BYTES)
    batch = store.read(7, 0, limits(store))
    assert (payloads_of(batch), batch.next_offset) == ([], 9 * ENTRY_BYTES)


def test_a_read_ends_at_the_border_of_an_index_file(open_store):
    store = open_store(SMALL_FILES)
    for number in range(8):
        store.append([record(bytes([number]) * 60)])
    assert store.read(0, 0, limits(store)).next_offset == 3 * ENTRY_BYTES
    assert read_all(store) == ([bytes([number]) * 60 for number in range(8)], 3)


def test_the_end_may_be_set_before_the_real_one(open_store):
    store = open_store()
    store.append([record(b"x") for _ in range(3)])
    assert len(store.read(0, 0, limits(store, end=2 * ENTRY_BYTES)).records) == 2
    assert store.read(0, 2 * ENTRY_BYTES, limits(store, end=2 * ENTRY_BYTES)) is None


def test_records_far_apart_are_read_one_by_one_and_near_ones_together(open_store):
    store = open_store(StoreSettings(data_segment_bytes=20_000))
    sizes = [10, 100, 9_000, 1, 5_000, 4_097, 4_096, 4_095, 30_000, 7, 7]
    store.append([record(b"x" * size, partition_id=number % 2) for number, size in enumerate(sizes)])
    store.append([record(b"y" * size, partition_id=number % 2) for number, size in enumerate(sizes)])
    assert len(files(store._directory, ".tube")) == 2
    for partition_id in (0, 1):
        expected = [letter * size for letter in (b"x", b"y") for size in sizes[partition_id::2]]
        assert read_all(store, partition_id)[0] == expected


def test_damaged_records_are_counted_and_logged_once(open_store, tmp_path, caplog):
    store = open_store(StoreSettings(data_segment_bytes=1))
    store.append([record(b"gone")])
    store.append([record(b"aaaa"), record(b"bbbb"), record(b"cccc")])
    store._data.drop_before(HEADER_BYTES + 4, 0)
    path = files(tmp_path, ".tube")[-1]
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"BBBB"))
    for _ in range(2):
        assert read_all(store, start=0)[0] == [b"aaaa", b"cccc"]
    assert store.traffic.damaged == 1, "what has expired is not damaged"
    (said,) = [item.getMessage() for item in caplog.records if item.levelno == logging.ERROR]
    assert "1 damaged records from offset 56 to 56 are not delivered" in said


def test_only_a_limited_number_of_damaged_records_is_remembered(monkeypatch, caplog):
    monkeypatch.setattr(store_module, "_MAX_REMEMBERED", 2)
    damaged = DamagedRecords("demo-0")
    assert damaged.report((0, 28, 56)) == 2
    assert damaged.report((84,)) == 0
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("payload", "flag", "delivered"),
    [
        (b"\0\0\0\1=body", 1, True),
        (b"\0\0\0\0body", 1, True),
        (b"\0\0\0\5body", 1, False),
        (b"\0\0\0", 1, False),
        (b"\xff\xff\xff\xffbody", 1, True),
        (b"\0\0\0", 2, True),
    ],
)
def test_attributes_that_are_not_there_are_not_delivered(open_store, payload, flag, delivered):
    """The Java broker stores such a message and never delivers it."""
    store = open_store()
    store.append([record(payload, flag=flag)])
    assert read_all(store)[0] == [payload] * delivered


@pytest.mark.parametrize("at", [0, 7, 15, 23], ids=["length", "magic", "partition", "offset"])
def test_a_record_whose_header_does_not_fit_its_index_entry_is_passed_over(open_store, tmp_path, at):
    store = open_store()
    store.append([record(b"aaaa"), record(b"bbbb")])
    with files(tmp_path, ".tube")[0].open("r+b") as file:
        file.seek(at)
        file.write(b"\x55")
    assert read_all(store)[0] == [b"bbbb"]


@given(at=st.integers(0, 5 * ENTRY_BYTES - 1), value=st.integers(0, 255))
def test_a_damaged_index_hides_what_it_damages_and_nothing_else(tmp_path_factory, at, value):
    directory = tmp_path_factory.mktemp("damaged")
    with contextlib.closing(Store(directory, StoreSettings())) as store:
        payloads = [bytes([number]) * 20 for number in range(5)]
        store.append([record(payload) for payload in payloads])
        with files(directory, ".index")[0].open("r+b") as file:
            file.seek(at)
            file.write(bytes([value]))
        found = read_all(store)[0]
    hit = at // ENTRY_BYTES
    assert found in (payloads, payloads[:hit] + payloads[hit + 1 :])


def test_files_that_expire_during_a_read_hide_only_what_was_in_them(open_store, monkeypatch):
    store = open_store(StoreSettings(data_segment_bytes=2 * (HEADER_BYTES + 10)))
    for number in range(6):
        store.append([record(bytes([number]) * 10)])
    read = store._data.read

    def expire_and_read(position, size):
        monkeypatch.setattr(store._data, "read", read)
        store._data.drop_before(4 * (HEADER_BYTES + 10), 0)
        return read(position, size)

    monkeypatch.setattr(store._data, "read", expire_and_read)
    assert read_all(store)[0] == [bytes([number]) * 10 for number in (4, 5)]


def test_bytes_between_far_records_are_not_read(open_store, monkeypatch):
    store = open_store()
    store.append(
        [record(b"x" * (10 if number % 2 else 100_000), partition_id=number % 2) for number in range(10)]
    )
    sizes = []
    read = store._data.read
    monkeypatch.setattr(
        store._data, "read", lambda position, size: sizes.append(size) or read(position, size)
    )
    assert read_all(store, 1)[0] == [b"x" * 10] * 5
    assert sizes == [HEADER_BYTES + 10] * 5


def test_a_batch_that_cannot_be_written_is_not_stored_at_all(open_store, monkeypatch):
    store = open_store()
    store.append([record(b"before")])

    def full(_data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store._index, "append", full)
        with pytest.raises(OSError, match="No space"):
            store.append([record(b"lost"), record(b"too")])
    store.append([record(b"after")])
    assert read_all(store)[0] == [b"before", b"after"]
    assert store.bounds.data_latest == 2 * HEADER_BYTES + 11
    assert store.traffic.messages_in == 2


def test_flushed_lags_behind_until_something_is_due(open_store):
    now = [0]
    store = open_store(StoreSettings(flush_messages=3, flush_interval_ms=100), elapsed_ms=lambda: now[0])
    store.append([record(b"x"), record(b"x")])
    store.flush_if_due()
    assert (store.bounds.flushed, store.bounds.latest) == (0, 56)
    store.append([record(b"x")])
    store.flush_if_due()
    assert store.bounds.flushed == 84
    store.append([record(b"x")])
    now[0] = 99
    store.flush_if_due()
    assert store.bounds.flushed == 84
    now[0] = 100
    store.flush_if_due()
    assert store.bounds.flushed == 112


def test_a_clock_that_is_put_back_does_not_put_off_flushes(open_store):
    now, elapsed = [3_600_000], [0]
    store = open_store(
        StoreSettings(flush_interval_ms=100), now_ms=lambda: now[0], elapsed_ms=lambda: elapsed[0]
    )
    store.append([record(b"x")])
    now[0], elapsed[0] = 0, 100
    store.flush_if_due()
    assert store.bounds.flushed == ENTRY_BYTES


@pytest.mark.parametrize("log", ["_data", "_index"])
def test_after_a_failed_flush_nothing_more_is_flushed_or_taken(open_store, monkeypatch, log):
    """The kernel forgets what it could not write, so the next sync would succeed and prove nothing."""
    store = open_store(StoreSettings(flush_messages=1))
    store.append([record(b"flushed")])
    store.flush()
    store.append([record(b"not flushed")])
    failing = getattr(store, log).segments[-1].fd
    sync = os.fsync

    def broken(fd):
        if fd == failing:
            raise OSError(5, "Input/output error")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            store.flush_if_due()
    with pytest.raises(OSError, match="Input/output error"):
        store.flush_if_due()
    with pytest.raises(OSError, match=r"the disk did not keep the data of store demo-0 .*restart the server"):
        store.flush()
    with pytest.raises(OSError, match="the disk did not keep"):
        store.append([record(b"refused")])
    assert (store.bounds.flushed, store.bounds.latest) == (ENTRY_BYTES, 2 * ENTRY_BYTES)
    assert read_all(store)[0] == [b"flushed", b"not flushed"], "reads go on"
    with pytest.raises(OSError, match="the disk did not keep"):
        store.close()
    store = open_store()
    assert store.append([record(b"after a restart")]).offset == 2 * ENTRY_BYTES


@pytest.mark.parametrize(("flush_bytes", "flushed"), [(0, 0), (54, 0), (53, 28)])
def test_flushing_by_bytes(open_store, flush_bytes, flushed):
    store = open_store(StoreSettings(flush_bytes=flush_bytes))
    store.append([record(b"x")])
    store.flush_if_due()
    assert store.bounds.flushed == flushed


def test_an_append_waits_for_the_disk_when_too_much_is_not_flushed(open_store):
    store = open_store(StoreSettings(wait_bytes=200))
    size = HEADER_BYTES + 48
    for number in range(1, 6):
        store.append([record(b"x" * 48)])
        assert store.bounds.data_latest == number * size
        assert store.bounds.flushed == max(0, number - 1) // 2 * 2 * ENTRY_BYTES


def test_half_of_what_an_append_waits_for_is_flushed_when_due(open_store):
    store = open_store(StoreSettings(wait_bytes=2 * (HEADER_BYTES + 10)))
    store.append([record(b"x" * 9)])
    store.flush_if_due()
    assert store.bounds.flushed == 0
    store.append([record(b"x")])
    store.flush_if_due()
    assert store.bounds.flushed == 2 * ENTRY_BYTES


def test_expiry_goes_by_whole_files_and_raises_the_earliest_offset(open_store):
    store = open_store(SMALL_FILES)
    for number in range(8):
        store.append([record(bytes([number]) * 60)])
    assert store.expire(60_000) == 0, "too young"
    earliest = store.expire(0)
    assert earliest == store.bounds.earliest > 0
    assert earliest % ENTRY_BYTES == 0
    assert read_all(store)[0] == [bytes([number]) * 60 for number in range(earliest // ENTRY_BYTES, 8)]
    assert store.read(0, 0, limits(store)) is None


def test_a_clock_that_jumps_closes_no_file_under_a_reader(open_store):
    now = [time.time_ns() // 1_000_000]
    store = open_store(now_ms=lambda: now[0])
    store.append([record(b"a")])
    store.expire(-60_000, roll=True)
    files = store.open_files
    assert files == 4, "two that were deleted, and two new ones"
    now[0] += 3_600_000
    store.expire(0)
    assert store.open_files == files


def test_a_store_is_not_flushed_when_no_file_expires(open_store):
    """Consumers of flushed messages must not see them earlier because someone looked for expired files."""
    store = open_store()
    store.append([record(b"x")])
    assert store.expire(0) == 0
    assert store.bounds.flushed == 0


def test_after_all_expired_earliest_is_latest_and_numbering_goes_on(open_store):
    store = open_store()
    store.append([record(b"x") for _ in range(26)])
    assert store.expire(0, roll=True) == 728
    bounds = store.bounds
    assert (bounds.earliest, bounds.latest) == (728, 728)
    store.close()
    store = open_store()
    assert store.append([record(b"y")]).offset == 728
    assert read_all(store)[0] == [b"y"]


def test_earliest_is_the_first_message_whose_data_are_there(open_store):
    """Data files are small here and index files large, so only data expires."""
    store = open_store(StoreSettings(data_segment_bytes=1))
    for number in range(5):
        store.append([record(bytes([number]))])
    assert store.expire(0) == 4 * ENTRY_BYTES
    store.close()
    assert open_store().bounds.earliest == 4 * ENTRY_BYTES


def test_ids_rise_over_a_restart_even_if_the_clock_does_not(open_store, monkeypatch):
    store = open_store()
    first = store.append([record(b"x")])
    store.close()
    monkeypatch.setattr("tubemq_spark.embedded.log.store.time.time_ns", lambda: 1_000_000)
    store = open_store()
    assert store.append([record(b"y")]).message_id == first.message_id + 1


def test_a_closed_store_refuses_everything(open_store):
    store = open_store()
    store.append([record(b"x")])
    store.close()
    for use in (
        lambda: store.append([record(b"y")]),
        lambda: store.read(0, 0, limits),
        lambda: store.bounds,
        store.flush,
        lambda: store.expire(0),
    ):
        with pytest.raises(OSError, match="store demo-0 is closed"):
            use()
    store.flush_if_due()


def test_closing_waits_for_a_read_under_way(open_store, monkeypatch):
    store = open_store()
    store.append([record(b"x")])
    reading, go_on = threading.Event(), threading.Event()

    def slow_read(*_):
        reading.set()
        go_on.wait(5)

    monkeypatch.setattr("tubemq_spark.embedded.log.store.read_batch", slow_read)
    reader = threading.Thread(target=store.read, args=(0, 0, limits(store)))
    reader.start()
    reading.wait(5)
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive()
    go_on.set()
    closer.join(5)
    reader.join(5)
    assert not closer.is_alive()


def recovery_messages(caplog):
    return [item.getMessage() for item in caplog.records if item.levelno == logging.WARNING]


def test_a_kill_between_writes_says_nothing_and_loses_nothing(open_store, caplog):
    store = open_store()
    store.append([record(b"x"), record(b"y")])
    kill(store)
    assert read_all(open_store())[0] == [b"x", b"y"]
    assert recovery_messages(caplog) == []


def test_a_torn_write_is_cut_and_told_with_counts(open_store, tmp_path, caplog):
    store = open_store()
    store.append([record(b"kept")])
    store.append([record(b"torn"), record(b"torn too")])
    kill(store)
    cut_log(tmp_path, ".tube", log_end(tmp_path, ".tube") - 1)
    cut_log(tmp_path, ".index", log_end(tmp_path, ".index") - 3)
    store = open_store()
    assert read_all(store)[0] == [b"kept", b"torn"]
    (message,) = recovery_messages(caplog)
    assert (
        "cut off 1 unfinished index entries (25 bytes) and 59 bytes of data; 2 messages are left" in message
    )
    assert message.startswith("Store demo-0 was not closed properly: ")


def test_data_without_index_are_cut(open_store, tmp_path, caplog):
    store = open_store()
    store.append([record(b"kept")])
    kill(store)
    extend_log(tmp_path, ".tube", b"half a record")
    store = open_store()
    assert store.bounds.data_latest == HEADER_BYTES + 4
    assert (
        "cut off 0 unfinished index entries (0 bytes) and 13 bytes of data; 1 messages are left"
        in caplog.text
    )
    store.append([record(b"new")])
    assert read_all(store)[0] == [b"kept", b"new"]


@pytest.mark.parametrize("garbage", [b"\0" * 28, b"\xff" * 28, b"\x01" * 100], ids=["zeros", "ones", "long"])
def test_garbage_behind_the_index_is_cut(open_store, tmp_path, garbage):
    store = open_store()
    store.append([record(b"kept")])
    kill(store)
    extend_log(tmp_path, ".index", garbage)
    extend_log(tmp_path, ".tube", b"\0" * 500)
    assert read_all(open_store())[0] == [b"kept"]


def test_a_damaged_record_after_the_flushed_point_is_cut_one_before_is_not(open_store, tmp_path):
    store = open_store()
    store.append([record(b"flushed1"), record(b"flushed2")])
    store.flush()
    store.append([record(b"later1"), record(b"later2")])
    kill(store)
    path = files(tmp_path, ".tube")[0]
    raw = bytearray(path.read_bytes())
    for good in (b"flushed1", b"later1"):
        raw[raw.index(good)] ^= 1
    path.write_bytes(raw)
    store = open_store()
    assert store.bounds.latest == 2 * ENTRY_BYTES
    assert read_all(store)[0] == [b"flushed2"]


def test_only_unflushed_records_are_checked_on_opening(open_store, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    store = open_store(SMALL_FILES)
    for number in range(20):
        store.append([record(bytes([number]) * 60)])
    store.flush()
    store.append([record(b"a"), record(b"b")])
    kill(store)
    asked = []
    read = SegmentedLog.read
    monkeypatch.setattr(
        SegmentedLog,
        "read",
        lambda log, position, size: asked.append((log._suffix, position)) or read(log, position, size),
    )
    open_store(SMALL_FILES)
    flushed = 20 * (HEADER_BYTES + 60)
    behind = [position for suffix, position in asked if suffix == ".tube" and position < flushed]
    assert behind == []
    assert f"checked the last {2 * (HEADER_BYTES + 1)} bytes of its data" in caplog.text


@pytest.mark.parametrize("count", [4095, 4096, 4097])
def test_many_unflushed_messages_are_looked_at_in_steps(open_store, count):
    store = open_store()
    payloads = [b"%d" % number for number in range(count)]
    store.append([record(payload) for payload in payloads])
    store.append([record(b"x" * (5 << 20)), record(b"y" * (5 << 20)), record(b"last")])
    kill(store)
    store = open_store()
    assert store.bounds.latest == (count + 3) * ENTRY_BYTES
    assert read_all(store, max_bytes=100 << 20, max_entries=10_000)[0][:count] == payloads


WRONG_POINT = struct.pack(">qqI", 0, 2 * (HEADER_BYTES + 60), 0)


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\0" * 20, WRONG_POINT], ids=["none", "short", "zeros", "torn"]
)
def test_without_a_flushed_point_the_last_index_file_is_looked_at(open_store, tmp_path, content):
    store = open_store(SMALL_FILES)
    for number in range(8):
        store.append([record(bytes([number]) * 60)])
    store.close()
    (tmp_path / "demo-0" / "flushed").write_bytes(content)
    cut_log(tmp_path, ".tube", log_end(tmp_path, ".tube") - 1)
    assert read_all(open_store(SMALL_FILES))[0] == [bytes([number]) * 60 for number in range(7)]


def test_a_log_that_lost_flushed_bytes_is_not_opened_or_changed(open_store, tmp_path, tmp_path_factory):
    """Their offsets would be used again, for other messages."""
    store = open_store(SMALL_FILES)
    for number in range(9):
        store.append([record(bytes([number]) * 60)])
    store.close()
    whole = tmp_path_factory.mktemp("backup") / "whole"
    shutil.copytree(tmp_path / "demo-0", whole)

    def reopened():
        before = {path: path.read_bytes() for path in (tmp_path / "demo-0").rglob("*") if path.is_file()}
        with pytest.raises(DataLossError) as info:
            open_store(SMALL_FILES)
        after = {path: path.read_bytes() for path in (tmp_path / "demo-0").rglob("*") if path.is_file()}
        assert {path: after[path] for path in before} == before
        return str(info.value)

    end = log_end(tmp_path, ".tube")
    cut_log(tmp_path, ".tube", end - 1)
    text = reopened()
    assert f"its data was flushed up to byte {end}, but ends at byte {end - 1};" in text
    assert "restore it from a backup" in text
    shutil.rmtree(tmp_path / "demo-0" / "index")
    text = reopened()
    assert f"its index was flushed up to byte {9 * ENTRY_BYTES}, but ends at byte 0 and its data" in text
    shutil.rmtree(tmp_path / "demo-0")
    whole.rename(tmp_path / "demo-0")
    assert len(read_all(open_store(SMALL_FILES))[0]) == 9, "as it was restored"


def test_recovery_passes_over_entries_whose_data_have_expired(open_store, tmp_path):
    store = open_store(StoreSettings(data_segment_bytes=1))
    for number in range(5):
        store.append([record(bytes([number]))])
    store.expire(0)
    kill(store)
    (tmp_path / "demo-0" / "flushed").write_bytes(b"")
    store = open_store(StoreSettings(data_segment_bytes=1))
    assert (store.bounds.earliest, store.bounds.latest) == (4 * ENTRY_BYTES, 5 * ENTRY_BYTES)


def test_an_index_entry_that_points_back_is_cut(open_store, tmp_path):
    """If data has expired, nothing else distinguishes it from a valid one."""
    store = open_store(StoreSettings(data_segment_bytes=1))
    for number in range(5):
        store.append([record(bytes([number]))])
    store.expire(0)
    kill(store)
    extend_log(tmp_path, ".index", struct.pack(">iqiiq", 0, 0, HEADER_BYTES + 1, -1, 0))
    assert open_store(StoreSettings(data_segment_bytes=1)).bounds.latest == 5 * ENTRY_BYTES


def test_an_index_that_lost_more_than_the_data_that_are_left(open_store, tmp_path):
    """Without a flushed point nothing says that they were whole; data without an index is deleted."""
    settings = StoreSettings(data_segment_bytes=1)
    store = open_store(settings)
    for number in range(5):
        store.append([record(bytes([number]))])
    store.expire(0)
    store.close()
    (tmp_path / "demo-0" / "flushed").unlink()
    cut_log(tmp_path, ".index", 2 * ENTRY_BYTES)
    store = open_store(settings)
    assert (store.bounds.earliest, store.bounds.latest) == (56, 56)
    store.append([record(b"new")])
    assert read_all(store)[0] == [b"new"]
    store.close()
    assert read_all(open_store(settings))[0] == [b"new"]
