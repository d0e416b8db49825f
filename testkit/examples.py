"""How many examples property tests draw."""

import os
from typing import Final

_BY_NIGHT: Final = 5


def examples(usual: int) -> int:
    """Return how many a test draws: ``usual`` with every change, more by night."""
    return usual * _BY_NIGHT if os.environ.get("TUBEMQ_LONG_TESTS") == "1" else usual
