"""A broker stops reads or writes after too many failures; its stores have few files open."""

import contextlib
import errno
import logging
import os
import resource
import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tubemq_spark.embedded import scheduler
from tubemq_spark.embedded.broker import state as broker_state
from tubemq_spark.embedded.broker.state import Service
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.scheduler import monotonic_ms
from tubemq_spark.embedded.server import EmbeddedSettings


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_service_stops_with_one_error_too_many(allowed):
    service = Service(allowed, now_ms=lambda: 0)
    for _ in range(allowed):
        service.count_error(OSError(5, "Input/output error"))
    assert service.admit()
    service.count_error(OSError(5, "Input/output error"))
    assert not service.admit()
    service.count_success()
    for _ in range(allowed):
        service.count_error(OSError(5, "Input/output error"))
    assert service.admit(), "counted from none"


def test_only_errors_of_the_disk_count_against_a_service():
    service = Service(0)
    service.count_error(OSError(errno.ESHUTDOWN, "the store is closed"))
    service.count_error(KeyError("gone"))
    service.count_error(OSError(errno.EMFILE, "Too many open files"))
    service.count_error(OSError(errno.ENFILE, "Too many open files in system"))
    assert service.admit()


def test_a_service_that_errors_have_stopped_is_tried_again_by_one_request_a_pause(caplog):
    now = [0]
    service = Service(0, "Writing", now_ms=lambda: now[0])
    full = OSError(errno.ENOSPC, "No space left on device")
    service.count_error(full)
    assert not service.admit()
    now[0] = broker_state.RETRY_MS
    assert [service.admit(), service.admit()] == [True, False], "one trial"
    service.count_error(full)
    now[0] += broker_state.RETRY_MS - 1
    assert not service.admit()
    now[0] += 1
    assert service.admit()
    service.count_success()
    assert [service.admit(), service.admit()] == [True, True]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "Writing failed: [Errno 28] No space left on device; requests are refused (503); "
            "free some space; it is retried automatically"
        ),
        "Writing works again",
    ]


@contextlib.contextmanager
def limited(kind, most):
    """Make the kernel refuse this process more than a limit: bytes of a file, or open files."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def test_a_broker_writes_again_by_itself_when_there_is_room(tubemq, broker, monkeypatch, caplog):
    monkeypatch.setattr(broker_state, "RETRY_MS", 20)
    with limited(resource.RLIMIT_FSIZE, 1 << 20):
        stored = 0
        while broker.try_send(b"x" * 100_000).success:
            stored += 1
        codes = [broker.try_send(b"x" * 100_000).errCode for _ in range(20)]
        assert set(codes) == {500, 503}
    deadline = time.monotonic() + 20
    while not broker.try_send(b"after").success:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    broker.register()
    assert broker.drain() == [b"x" * 100_000] * stored + [b"after"]
    said = [line.getMessage() for line in caplog.records if line.name == broker_state.__name__]
    assert len(said) == 3, "when it begins, when it stops, when it is over"
    assert "File too large" in said[0]
    assert said[-1] == "Writing at broker 1 works again"


TROUBLE = "[Errno 5] Input/output error"


def broken(*_):
    raise OSError(5, "Input/output error")


def end_pause(service, monkeypatch):
    monkeypatch.setattr(service, "_now_ms", lambda: monotonic_ms() + broker_state.RETRY_MS)


def test_a_broker_that_cannot_write_refuses_sends_only(tubemq, broker, monkeypatch):
    broker.send(b"x")
    broker.register()
    store = tubemq._state.stores.all()["demo", 0]
    with monkeypatch.context() as patch:
        patch.setattr(store, "append", broken)
        assert [broker.try_send().errCode for _ in range(5)] == [500] * 4 + [503]
    answer = broker.try_send()
    assert (answer.errCode, answer.errMsg) == (503, f"Write StoreService temporary unavailable! {TROUBLE}")
    assert [broker.fetch().errCode, broker.commit().errCode, broker.heartbeat().errCode] == [200] * 3
    end_pause(tubemq._state.writes, monkeypatch)
    assert broker.try_send().success


def test_a_broker_that_cannot_read_refuses_fetches_only(start, connect, monkeypatch):
    server = start(settings=EmbeddedSettings(allowed_io_errors=1))
    broker = connect(server)
    broker.send(b"x")
    broker.register()
    store = server._state.stores.all()["demo", 0]
    with monkeypatch.context() as patch:
        patch.setattr(store, "read", broken)
        assert [broker.fetch().errCode for _ in range(3)] == [500, 500, 503]
    answer = broker.fetch()
    assert (answer.errCode, answer.errMsg) == (503, f"Read StoreService temporary unavailable! {TROUBLE}")
    assert (answer.currOffset, answer.currDataDlt) == (-1, -1)
    assert broker.try_send().success
    assert [broker.register().errCode, broker.commit().errCode] == [200] * 2
    end_pause(server._state.reads, monkeypatch)
    assert broker.fetch().success


@pytest.mark.parametrize("client", ["", " "])
def test_a_stopped_service_is_told_before_anything_else(start, connect, client):
    server = start(settings=EmbeddedSettings(allowed_io_errors=0))
    broker = connect(server)
    for service in (server._state.reads, server._state.writes):
        service.count_error(OSError(5, "Input/output error"))
    assert broker.fetch(clientId=client, topicName="nosuch").errCode == 503
    assert broker.try_send(client=client, topic="nosuch").errCode == 503


def test_a_store_that_is_full_takes_no_more_until_it_is_flushed(start, connect):
    settings = EmbeddedSettings(max_unflushed_bytes=200, flush_check_ms=3_600_000)
    server = start(settings=settings)
    broker = connect(server)
    broker.send(b"x" * 100)
    assert broker.try_send(b"x" * 100).success, "152 bytes wait"
    answer = broker.try_send(b"x")
    assert (answer.success, answer.errCode) == (False, 419)
    assert answer.errMsg == "Put message failed from 127.0.0.1, server receive message overflow!"
    server._state.stores.flush_due()
    assert broker.try_send(b"x").success
    broker.register()
    assert len(broker.fetch().messages) == 3, "what was refused is not stored"


def test_stores_are_never_full_by_default(tubemq, broker):
    broker.send(*(b"x" * 1000 for _ in range(100)))
    assert not tubemq._state.stores.all()["demo", 0].full


def open_files(server):
    return sum(store.open_files for store in server._state.stores.all().values())


def test_more_stores_than_files_are_written_and_read(start, connect, monkeypatch, tmp_path):
    monkeypatch.setattr(broker_state, "_MOST_FILES", 8)
    server = start(tmp_path, topics={"demo": (40, 1)})
    broker = connect(server)
    for number in (*range(40), *range(40)):
        broker.send(b"%d" % number, partition_id=10_000 * number)
        assert open_files(server) <= 10
    server.close()
    server = start(tmp_path, topics={"demo": (40, 1)})
    assert open_files(server) <= 10, "after a start"
    broker = connect(server)
    for number in range(40):
        broker.register(10_000 * number)
        assert broker.drain(10_000 * number) == [b"%d" % number] * 2
    assert open_files(server) <= 10
    server.apply_retention("demo", older_than_ms=0)
    assert open_files(server) <= 14, "those of a store that had something to delete"
    assert server.stats().messages_out == 80


def test_stores_open_an_eighth_of_the_files_that_the_process_may(start, connect):
    server = start(topics={"demo": (20, 1)})
    broker = connect(server)
    with limited(resource.RLIMIT_NOFILE, 200):
        for number in range(20):
            broker.send(b"x", partition_id=10_000 * number)
        assert open_files(server) <= 200 // 8 + 2


def test_too_many_open_files_are_no_fault_of_the_disk(tubemq, broker, monkeypatch):
    """The answer says what to do, and the broker goes on when there are fewer."""
    broker.send(b"1")
    (store,) = tubemq._state.stores.all().values()
    store.rest()

    def no_more(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as context:
        context.setattr(Store, "_require_open", no_more)
        answers = [broker.try_send() for _ in range(10)]
    assert {answer.errCode for answer in answers} == {500}
    assert "Too many open files; let it open more files (ulimit -n)" in answers[0].errMsg
    assert broker.try_send().success


def test_a_topic_whose_files_cannot_be_deleted_is_gone(start, tmp_path, monkeypatch, caplog):
    server = start(tmp_path, topics={"busy": (2, 1), "demo": (1, 1)})
    for number in (0, 1):
        server._state.stores.open("busy", number)
    rmtree = shutil.rmtree

    def in_use(path, **arguments):
        if "busy-0" in path.name:
            raise OSError(errno.EBUSY, "Device or resource busy")
        rmtree(path, **arguments)

    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", in_use)
        server.remove_topic("busy")
        server.add_topic("other")
        server.close()
        server = start(tmp_path, topics={})
        assert set(server.topics()) == {"demo", "other"}
        server.add_topic("busy")
    left = [path for path in tmp_path.rglob(".removed-*") if path.is_dir()]
    assert [path.name[: len(".removed-busy-0")] for path in left] == [".removed-busy-0"]
    assert "Deleting" in caplog.text
    assert server._state.stores.open("busy", 0).bounds.latest == 0
    server._state.stores.expire()
    assert not list(tmp_path.rglob(".removed-*"))


def test_a_topic_whose_directory_cannot_be_renamed_stays_removed(tubemq, monkeypatch, caplog):
    tubemq._state.stores.open("demo", 0)

    def in_use(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as context:
        context.setattr(Path, "rename", in_use)
        tubemq.remove_topic("demo")
        tubemq.add_topic("other")
    assert "Removing topic demo failed" in caplog.text
    assert tubemq._state.catalog.get("demo").status is TopicStatus.REMOVED
    tubemq.add_topic("third")
    assert set(tubemq.topics()) == {"other", "third"}


def test_a_resting_store_with_nothing_to_delete_is_not_opened(tubemq, broker):
    broker.send(b"1")
    (store,) = tubemq._state.stores.all().values()
    store.rest()
    store.flush_if_due()
    tubemq._state.stores.expire()
    assert store.bounds.latest == 28
    assert store.resting


QUICK = EmbeddedSettings(
    lease_timeout_ms=60, client_timeout_ms=60, scan_period_ms=10, flush_check_ms=10, offsets_save_ms=10
)


def test_leases_run_out_in_time_while_a_flush_waits_for_the_disk(start, connect, monkeypatch):
    server = start(settings=QUICK)
    broker = connect(server)
    broker.send(*(b"x" for _ in range(1000)))
    waiting, go_on = threading.Event(), threading.Event()
    sync = os.fsync

    def slow(fd):
        waiting.set()
        go_on.wait(30)
        sync(fd)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", slow)
            assert broker.register().success
            broker.send(*(b"x" for _ in range(1000)))
            assert waiting.wait(10)
            wait_until(lambda: not server._state.leases.all())
            assert not go_on.is_set()
    finally:
        go_on.set()


def test_offsets_that_cannot_be_saved_are_told_once(start, connect, monkeypatch, caplog):
    server = start(settings=QUICK)
    broker = connect(server)
    failures = []

    def full(*_):
        failures.append(1)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tubemq_spark.embedded.files.replace_text", full)
        broker.register()
        wait_until(lambda: len(failures) > 3)
    wait_until(lambda: "works again" in caplog.text)
    said = [line.getMessage() for line in caplog.records if line.name == scheduler.__name__]
    assert said == [
        "Saving offsets failed: [Errno 28] No space left on device",
        "Saving offsets works again",
    ]
    assert not [line for line in caplog.records if line.levelno > logging.INFO and line.exc_info]
