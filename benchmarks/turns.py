"""Measuring several ways in turns, so that what changes on the machine meanwhile changes all of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Figures = Mapping[str, float]
"""What one measurement found, by name."""
Key = tuple[str, ...]
"""Names what is measured."""

screen = Console(stderr=True)
if not screen.is_terminal:
    screen.width = 140


def in_turns(
    ways: Mapping[Key, Callable[[], Figures]], *, warm_ups: int, rounds: int, title: str
) -> dict[Key, list[Figures]]:
    """Measure all ways once per round; return the figures of the counted rounds.

    Every other round goes backwards, so that no way always follows the same one.
    """
    found: dict[Key, list[Figures]] = {key: [] for key in ways}
    with _progress() as progress:
        task = progress.add_task(title, total=len(ways) * (warm_ups + rounds))
        for number in range(warm_ups + rounds):
            stage = f"warm-up {number + 1}" if number < warm_ups else f"round {number - warm_ups + 1}"
            if not screen.is_terminal:
                screen.print(f"{title}, {stage}")
            for key in ways if number % 2 == 0 else reversed(list(ways)):
                progress.update(task, description=f"{title}, {stage}: {', '.join(key)}")
                figures = ways[key]()
                if number >= warm_ups:
                    found[key].append(figures)
                progress.advance(task)
    return found


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=screen)


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
