"""What a run chooses: the seed of everything that is random, and the short or the long form of tests."""

import os
import random
import time
from typing import Final, TypeVar

from testkit.git import git

SEED_VARIABLE: Final = "TUBEMQ_SEED"
"""A number: the same one gives the same random choices."""
LONG_VARIABLE: Final = "TUBEMQ_LONG_TESTS"
"""``1``: tests that have a long form take it, as ``make nightly`` does."""


Size = TypeVar("Size")


def choose_seed() -> int:
    """Return the seed of this run; without the variable each state of the embedded server has its own.

    So a change of what the random calls try gets calls of its own, and no other change can turn red.

    It is kept in the variable, so that all processes of the run have the same one.
    """
    if SEED_VARIABLE not in os.environ:
        os.environ[SEED_VARIABLE] = str(_seed_of_embedded_server())
    return int(os.environ[SEED_VARIABLE])


def chance_of(name: str) -> random.Random:
    """Return chance that depends on the run's seed and on who asks."""
    return random.Random(f"{choose_seed()}:{name}")


def is_long() -> bool:
    """Whether tests take their long form."""
    return os.environ.get(LONG_VARIABLE) == "1"


def form(*, short: Size, long: Size) -> Size:
    """Return how much of something a test does in the short and in the long form."""
    return long if is_long() else short


def _seed_of_embedded_server() -> int:
    head = git("rev-parse", "HEAD:tubemq_spark/embedded")
    return int(head[0][:8], 16) if head else time.time_ns() & 0xFFFFFFFF
