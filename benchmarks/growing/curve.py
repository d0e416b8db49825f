"""How a cost grows: slopes, the cost that does not grow, and where a curve leaves its own line."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KNEE: Final = 1.25
"""A point that is so many times above or below what all other points say is a knee."""
_DECADE: Final = 10.5
"""A little more, for sizes such as 100 KiB and 1 MiB."""
_ENOUGH: Final = 4
"""With fewer points, nothing can be said about one from the others."""


@dataclass(frozen=True)
class Knee:
    """A point that does not fit."""

    x: float
    ratio: float
    """Its cost to that of the line through the others."""


@dataclass(frozen=True)
class Curve:
    """A cost at growing amounts of work, measured in several rounds."""

    panel: str
    name: str
    work: str
    """The unit of ``x``."""
    cost: str
    """The unit of ``y``."""
    x: Sequence[float]
    rounds: Sequence[Sequence[float]]
    """The costs at each ``x``."""
    bound: float | None = None
    """What the cost must stay below."""

    @property
    def y(self) -> list[float]:
        """The median cost at each ``x``."""
        return [statistics.median(values) for values in self.rounds]

    @property
    def slope(self) -> float:
        """The least-squares slope of log(y) over log(x): 0 is constant, 1 is proportional."""
        return _slope(self.x, self.y)

    @property
    def last_slope(self) -> float:
        """The same over the last decade, where a fixed cost weighs little; above 1 is worse than linear."""
        first = next(place for place, x in enumerate(self.x) if x * _DECADE >= self.x[-1])
        first = max(0, min(first, len(self.x) - 2))
        return _slope(self.x[first:], self.y[first:])

    @property
    def line(self) -> tuple[float, float]:
        """The fixed cost and the cost per unit that fit best, by relative errors; neither is negative."""
        return _line(np.array(self.x, float), np.array(self.y, float))

    @property
    def knees(self) -> list[Knee]:
        """Where the curve leaves the line through its other points by more than ``KNEE``."""
        if len(self.x) < _ENOUGH:
            return []
        x, y = np.array(self.x, float), np.array(self.y, float)
        found = []
        for place in range(len(x)):
            fixed, per_unit = _line(np.delete(x, place), np.delete(y, place))
            ratio = float(y[place] / (fixed + per_unit * x[place]))
            if not 1 / KNEE <= ratio <= KNEE:
                found.append(Knee(self.x[place], ratio))
        return found

    def describe(self) -> str:
        """Return slope, line and knees in words."""
        fixed, per_unit = self.line
        knees = ", ".join(f"{knee.ratio:.2f}x at {knee.x:,.0f}" for knee in self.knees) or "none"
        return (
            f"slope {self.slope:.2f}, {self.last_slope:.2f} over the last decade; "
            f"{fixed:.3g} {self.cost} + {per_unit:.3g} per unit; knees: {knees}"
            + (f"; {max(self.y):.3g} of {self.bound:g} {self.cost}" if self.bound else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return all that was measured and found."""
        fixed, per_unit = self.line
        return {
            "panel": self.panel,
            "name": self.name,
            "work": self.work,
            "cost": self.cost,
            "x": list(self.x),
            "rounds": [list(values) for values in self.rounds],
            "slope": self.slope,
            "last slope": self.last_slope,
            "fixed": fixed,
            "per unit": per_unit,
            "knees": [[knee.x, knee.ratio] for knee in self.knees],
        }


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    if len(x) < 2:
        return 0.0
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    return min(
        (found for found in _candidates(x, y) if min(found) >= 0),
        key=lambda found: float(np.sum(((found[0] + found[1] * x) / y - 1) ** 2)),
    )


def _candidates(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the best lines with both parts, without slope, and through the origin."""
    both, *_ = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(y)), rcond=None)
    constant = float(np.sum(1 / y) / np.sum(1 / y**2))
    proportional = float(np.sum(x / y) / np.sum((x / y) ** 2))
    return [(float(both[0]), float(both[1])), (constant, 0.0), (0.0, proportional)]
