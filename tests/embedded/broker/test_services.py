"""A broker stops reads or writes after too many of them have failed."""

import contextlib
import errno
import resource
import time

import pytest

from tubemq_spark.embedded.broker import state as broker_state
from tubemq_spark.embedded.broker.state import Service
from tubemq_spark.embedded.scheduler import monotonic_ms
from tubemq_spark.embedded.server import EmbeddedSettings


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_service_stops_with_one_error_too_many(allowed):
    service = Service(allowed, now_ms=lambda: 0)
    for _ in range(allowed):
        service.count_error(OSError(5, "Input/output error"))
    assert service.admits()
    service.count_error(OSError(5, "Input/output error"))
    assert not service.admits()
    service.count_success()
    for _ in range(allowed):
        service.count_error(OSError(5, "Input/output error"))
    assert service.admits(), "counted from none"


def test_only_errors_of_the_disk_count_against_a_service():
    service = Service(0)
    service.count_error(OSError(errno.ESHUTDOWN, "the store is closed"))
    service.count_error(KeyError("gone"))
    service.count_error(OSError(errno.EMFILE, "Too many open files"))
    service.count_error(OSError(errno.ENFILE, "Too many open files in system"))
    assert service.admits()


def test_a_service_that_errors_have_stopped_is_tried_again_by_one_request_a_pause(caplog):
    now = [0]
    service = Service(0, "Writing", now_ms=lambda: now[0])
    full = OSError(errno.ENOSPC, "No space left on device")
    service.count_error(full)
    assert not service.admits()
    now[0] = broker_state.RETRY_MS
    assert [service.admits(), service.admits()] == [True, False], "one trial"
    service.count_error(full)
    now[0] += broker_state.RETRY_MS - 1
    assert not service.admits()
    now[0] += 1
    assert service.admits()
    service.count_success()
    assert [service.admits(), service.admits()] == [True, True]
    assert [record.getMessage() for record in caplog.records] == [
        (
            "Writing failed: [Errno 28] No space left on device; requests are refused (503); "
            "free some space; it is retried automatically"
        ),
        "Writing works again",
    ]


@contextlib.contextmanager
def files_up_to(size):
    """Make the kernel refuse to write more than this to a file of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_broker_writes_again_by_itself_when_there_is_room(tubemq, broker, monkeypatch, caplog):
    monkeypatch.setattr(broker_state, "RETRY_MS", 20)
    with files_up_to(1 << 20):
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
