"""One gateway for all tests of a module, whose threads and connections stay from one test to the next.

So what is left behind is looked for at the end of the module.
"""

import threading
import time

import pytest

from tests.conftest import GRACE_SECONDS, left_behind, open_sockets


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind_by_the_module():
    threads, sockets = set(threading.enumerate()), open_sockets()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while any(left := left_behind(threads, sockets)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(left), f"left behind: {left}"


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """In place of that for single tests."""
