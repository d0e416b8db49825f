"""How many examples property tests draw, and how many cases others try."""

import os
from typing import Final

_BY_NIGHT: Final = 5
_BY_DAY: Final = 3


def examples(usual: int, by_night: int | None = None) -> int:
    """Return how many a test draws: ``usual``, by night that number or five times as many."""
    if os.environ.get("TUBEMQ_LONG_TESTS") == "1":
        return by_night or usual * _BY_NIGHT
    return usual


def step() -> int:
    """Return how far a test that tries lines one after the other goes on: by night to the next one."""
    return 1 if os.environ.get("TUBEMQ_LONG_TESTS") == "1" else _BY_DAY
