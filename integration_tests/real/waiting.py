"""Waiting for a server to get somewhere, with an end to the patience."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str, poll_s: float = 0.1) -> None:
    """Ask `condition` again and again until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(poll_s)
