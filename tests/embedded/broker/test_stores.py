"""The stores of a broker: their files, stores that rest, and what waits for a slow or failing disk."""

import contextlib
import errno
import logging
import os
import resource
import shutil
import threading
from pathlib import Path

from tests.waiting import wait_until
from tubemq_spark.embedded import scheduler
from tubemq_spark.embedded.broker import stores
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.server import EmbeddedSettings


@contextlib.contextmanager
def files_of_process(limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(server):
    return sum(store.open_files for store in server._state.stores.all().values())


def test_more_stores_than_files_are_written_and_read(start, connect, monkeypatch, tmp_path):
    monkeypatch.setattr(stores, "_MOST_FILES", 8)
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
    with files_of_process(200):
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
