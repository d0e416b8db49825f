"""What a universe's seed decides, besides the order in which its tasks run and the delays of its network."""

from collections.abc import Sequence
from typing import Final, TypeVar

import simloom

Item = TypeVar("Item")

_STEPS: Final = 1024
"""Where a long value is drawn from few, a failing universe shrinks sooner."""


def below(bound: int) -> int:
    """Return a number from 0 up to but not including ``bound``."""
    return simloom.draw("chance", bound)


def happens(percent: int) -> bool:
    """Return True so often."""
    return below(100) < percent


def between(least: float, most: float) -> float:
    """Return a number from ``least`` to ``most``."""
    return least + (most - least) * below(_STEPS) / (_STEPS - 1)


def one_of(items: Sequence[Item]) -> Item:
    """Return an item of a sequence that is not empty."""
    return items[below(len(items))]
