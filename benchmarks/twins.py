"""Timing both twins of the hot loops in turns: the command line, the table and the JSON line."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from tubemq_spark.protocol import speedups

Row = tuple[str, ...]
"""Names what is measured."""

screen = Console(stderr=True)


def compare(
    description: str | None,
    headings: Sequence[str],
    unit: str,
    measure: Callable[[], Iterable[tuple[Row, float]]],
) -> None:
    """Run a program that times both twins; each figure is the best of all rounds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    built = speedups.compiled
    twins = {"python": None} | ({"compiled": built} if built is not None else {})
    best: dict[Row, dict[str, float]] = {}
    for _ in range(arguments.rounds):
        for twin, module in twins.items():
            speedups.compiled = module
            for row, cost in measure():
                costs = best.setdefault(row, {})
                costs[twin] = min(cost, costs.get(twin, cost))
    table = Table(*headings, *(f"{twin}, {unit}" for twin in twins))
    for row, costs in best.items():
        table.add_row(*row, *(f"{costs[twin]:.3f}" for twin in twins))
    screen.print(table)
    figures = {
        " / ".join((*row, twin)): round(cost, 4)
        for row, costs in best.items()
        for twin, cost in costs.items()
    }
    sys.stdout.write(json.dumps(figures) + "\n")
