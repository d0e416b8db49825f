"""Every test leaves the process as it was: no thread and no socket more; and no assertion fails in secret."""

import asyncio
import concurrent.futures.thread
import contextlib
import gc
import inspect
import logging
import os
import stat
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from testkit.git import ROOT
from testkit.interrupts import hear_interrupts
from testkit.sampling import leave_most_cases_to_the_night
from tests.changed import REST, changed_files, distance_from
from tubemq_spark.cluster.kept_producers import process_producers
from tubemq_spark.net import loop
from tubemq_spark.net.connections import process_connections
from tubemq_spark.protocol import speedups

GRACE_SECONDS = 10.0
"""Threads of a closed peer end a moment after the test."""


# Property tests are not judged by the clock of a busy machine.
settings.register_profile("nightly", deadline=None)
settings.register_profile("usual", deadline=None, max_examples=20)
settings.register_profile("quick", deadline=None, max_examples=15)


def pytest_addoption(parser):
    parser.addoption(
        "--quick",
        action="store_true",
        help="tests of changed files first, few examples, new processes only where something changed",
    )


def pytest_configure(config):
    gc.disable()  # until all tests are collected
    hear_interrupts()
    usual = "nightly" if os.environ.get("TUBEMQ_LONG_TESTS") == "1" else "usual"
    settings.load_profile("quick" if config.getoption("--quick") else usual)


def pytest_collection_modifyitems(config, items):
    """Sort after the shuffle, which comes first."""
    leave_most_cases_to_the_night(items)
    if not config.getoption("--quick"):
        return
    distance = distance_from(changed_files())
    far = {item: distance(item.path.relative_to(ROOT).as_posix()) for item in items}
    left_out = [item for item in items if far[item] == REST and item.get_closest_marker("process")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted((item for item in items if item not in set(left_out)), key=far.__getitem__)


def pytest_collection_finish():
    """Spare the collector ten thousand tests, which it would look at each time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(nothing_left_in_loop(pyfuncitem.obj(**arguments)))
    return True


async def nothing_left_in_loop(test):
    """Fail a test that leaves a task, or an error that only its loop is told of."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    await test
    gc.collect()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"left behind: {left}"
    assert not told, told


def open_sockets():
    """Return the descriptor and the inode of each socket; the list of connections would take milliseconds."""
    found = set()
    for fd in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                found.add((fd, status.st_ino))
    return found


def connections_of(sockets):
    """Return those of the sockets that lead out of the process: an event loop's own pair does not."""
    if not sockets:
        return set()
    fds = {fd for fd, _ in sockets}
    connections = psutil.Process().net_connections(kind="inet")
    return {(item.fd, item.laddr, item.raddr) for item in connections if item.fd in fds}


def left_behind(threads, sockets, tasks):
    more_threads = [
        thread
        for thread in threading.enumerate()
        # gRPC has one thread for all event loops of a process, which never ends.
        if thread not in threads
        and "_poll_wrapper" not in thread.name
        # The process's event loop never ends; its tasks do.
        and thread.name != "tubemq-loop"
        # And it has threads of its own, which Python knows as soon as they log something.
        and not isinstance(thread, threading._DummyThread)
    ]
    return more_threads, connections_of(open_sockets() - sockets), max(0, loop.task_count() - tasks)


@pytest.fixture(scope="module", params=["python", "compiled"])
def each_twin(request):
    """Run a module's tests over both twins of the hot loops."""
    twin = None
    if request.param == "compiled":
        reason = "the compiled twin was not built"
        twin = pytest.importorskip("tubemq_spark.protocol._speedups", reason=reason, exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "compiled", twin)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_thread_holds_up_the_end():
    """Fail what starts a thread of the package that the end of the process would wait for."""
    start = threading.Thread.start

    def start_daemon(thread):
        in_a_pool = thread._target is concurrent.futures.thread._worker
        assert thread.daemon or in_a_pool or not thread.name.startswith("tubemq-"), thread
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_daemon)
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a running thread or task, or an open socket."""
    before = set(threading.enumerate()), open_sockets(), loop.task_count()
    yield
    process_producers().close_idle()
    loop.call_soon(process_connections().close_kept)
    deadline = time.monotonic() + GRACE_SECONDS
    left = left_behind(*before)
    while any(left) and time.monotonic() < deadline:
        time.sleep(0.01)
        left = left_behind(*before)
    assert not any(left), f"left behind: {left}"


class Complaints(logging.Handler):
    """What asyncio says of tasks whose outcome is not taken, or whose end is not waited for."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.records = []

    def emit(self, record):
        text = record.getMessage()
        # A test's own coroutines, and futures that users drop, are no tasks of the package.
        of_package = text.startswith("Task ") and "/tests/" not in text.partition("Traceback")[0]
        if of_package and ("never retrieved" in text or "was destroyed but it is pending" in text):
            self.records.append(text)


@pytest.fixture(scope="session")
def complaints():
    handler = Complaints()
    logging.getLogger("asyncio").addHandler(handler)
    yield handler.records
    logging.getLogger("asyncio").removeHandler(handler)


@pytest.fixture(autouse=True)
def every_task_has_an_owner(complaints):
    """Fail a test in which asyncio complains; what is collected late is held against the next one."""
    yield
    said = complaints[:]
    complaints.clear()
    assert not said, "\n".join(said)


@pytest.fixture(autouse=True)
def no_assertion_swallowed(caplog):
    """Fail a test whose callback failed an assertion: the package logs what callbacks raise, and goes on."""
    yield
    raised = [record.exc_info[1] for record in caplog.get_records("call") if record.exc_info]
    swallowed = [error for error in raised if isinstance(error, AssertionError | pytest.fail.Exception)]
    if swallowed:
        raise swallowed[0]
