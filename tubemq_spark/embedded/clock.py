"""The server's clocks; tests pass others in their place."""

import time


def wall_ms() -> int:
    """Return the time of day in ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock in ms that never goes back; only differences mean something."""
    return time.monotonic_ns() // 1_000_000
