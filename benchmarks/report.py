"""Tables of medians, with the ratio of the first two columns round by round."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Line:
    """One figure, by column: its value in each counted round."""

    what: str
    unit: str
    values: Mapping[str, Sequence[float]]

    def ratios(self, first: str, second: str) -> list[float]:
        """Return the ratio of two columns in each round, sorted; nothing if one of them is missing or 0."""
        mine, others = self.values.get(first, ()), self.values.get(second, ())
        if not all(others):
            return []
        return sorted(own / other for own, other in zip(mine, others, strict=False))


@dataclass(frozen=True)
class Section:
    """Lines with the same columns."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Line]

    def show(self, console: Console) -> None:
        """Draw the table."""
        table = Table(title=self.title)
        table.add_column("what")
        table.add_column("unit")
        for name in (*self.columns, *(["ratio", "least", "greatest"] if len(self.columns) > 1 else [])):
            table.add_column(name, justify="right")
        for line in self.lines:
            cells = [
                _number(statistics.median(line.values[name])) if line.values.get(name) else ""
                for name in self.columns
            ]
            table.add_row(line.what, line.unit, *cells, *(f"{value:.2f}" for value in self._spread(line)))
        console.print(table)

    def to_json(self) -> dict[str, Any]:
        """Return all values of all rounds, and what the table shows."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "lines": [
                {
                    "what": line.what,
                    "unit": line.unit,
                    "rounds": {
                        name: [round(value, 6) for value in line.values[name]] for name in line.values
                    },
                    "median": {name: statistics.median(line.values[name]) for name in line.values},
                    "ratio": dict(zip(("median", "least", "greatest"), self._spread(line), strict=False)),
                }
                for line in self.lines
            ],
        }

    def _spread(self, line: Line) -> list[float]:
        """Return median, least and greatest of the ratios of the first column to the second."""
        found = line.ratios(*self.columns[:2]) if len(self.columns) > 1 else []
        return [statistics.median(found), found[0], found[-1]] if found else []


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:,.1f}" if size >= 10 else f"{value:.3f}"
