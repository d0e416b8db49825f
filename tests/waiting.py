"""Waiting for what another thread is about to do."""

import time


def wait_until(condition, seconds=5.0):
    """Return when the condition holds; fail when it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
