"""Every test leaves the process as it found it: no thread and no socket more."""

import threading
import time

import psutil
import pytest

from tests.changed import ROOT, changed_files, distance_from

GRACE_SECONDS = 3.0
"""Threads of a closed peer end a moment after the test."""


def pytest_addoption(parser):
    parser.addoption(
        "--changed-first", action="store_true", help="begin with the tests of files that git sees as changed"
    )


def pytest_collection_modifyitems(config, items):
    """Sort after the shuffle, which comes first."""
    if config.getoption("--changed-first"):
        distance = distance_from(changed_files())
        items.sort(key=lambda item: distance(item.path.relative_to(ROOT).as_posix()))


def open_sockets():
    return {(item.fd, item.laddr, item.raddr) for item in psutil.Process().net_connections(kind="inet")}


def left_behind(threads, sockets):
    more_threads = [thread for thread in threading.enumerate() if thread not in threads]
    return more_threads, open_sockets() - sockets


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a running thread or an open socket."""
    threads, sockets = set(threading.enumerate()), open_sockets()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    left = left_behind(threads, sockets)
    while any(left) and time.monotonic() < deadline:
        time.sleep(0.01)
        left = left_behind(threads, sockets)
    assert not any(left), f"left behind: {left}"
