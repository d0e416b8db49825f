"""How many files the stores of a broker have open, and what becomes of stores that rest."""

import contextlib
import errno
import os
import resource

from tubemq_spark.embedded.broker import stores
from tubemq_spark.embedded.log.store import Store


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


def test_a_resting_store_with_nothing_to_delete_is_not_opened(tubemq, broker):
    broker.send(b"1")
    (store,) = tubemq._state.stores.all().values()
    store.rest()
    store.flush_if_due()
    tubemq._state.stores.expire()
    assert store.bounds.latest == 28
    assert store.resting
