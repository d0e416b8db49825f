"""The server's clocks; tests replace them."""

import time


def wall_ms() -> int:
    """Return the time of day in ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the time of a clock in ms that never goes back; only differences have a meaning."""
    return time.monotonic_ns() // 1_000_000
