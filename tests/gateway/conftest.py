"""One TubeMQ and one gateway for the tests of a module: each has topics and clients of its own.

Threads and connections of that gateway stay from one test to the next, so what such a module has left behind
is looked for at its end, and not after each test.
"""

import contextlib
import threading
import time

import pytest

from tests.conftest import GRACE_SECONDS, left_behind, open_sockets
from tests.gateway.fleet import Fleet
from tests.gateway.running import gateway, tubemq
from tubemq_spark.net import loop


@pytest.fixture(scope="module")
def nothing_left_behind_by_the_module():
    before = set(threading.enumerate()), open_sockets(), loop.task_count()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while any(left := left_behind(*before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(left), f"left behind: {left}"


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """That of single tests, where the module does not look at its end."""
    if "nothing_left_behind_by_the_module" not in request.fixturenames:
        request.getfixturevalue("nothing_left_behind")


@pytest.fixture(scope="module")
def server(nothing_left_behind_by_the_module):
    with tubemq(demo=(1, 1)) as running:
        yield running


@pytest.fixture(scope="module")
def served(server):
    with gateway(server, poll_ms=20, housekeeping_ms=20, disconnect_ms=20, route_refresh_ms=50) as running:
        yield running


@pytest.fixture
def fleet(server, served):
    with contextlib.closing(Fleet(server, served)) as made:
        yield made
