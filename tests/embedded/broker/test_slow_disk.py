"""A slow or failing disk delays what waits for it, and nothing else."""

import logging
import os
import threading

from tests.waiting import wait_until
from tubemq_spark.embedded import scheduler
from tubemq_spark.embedded.server import EmbeddedSettings

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
