"""What hostile clients of a gateway reach, and what its other clients notice.

    python -m benchmarks.gateway_attacks
    python -m benchmarks.gateway_attacks --only threads items

The attacks are those of ``testkit/attacks.py``, each on a gateway of its own with default settings and limits
of 64 MiB. The table has, for each, what it has reached, how much memory the gateway took more, and the 99th
percentile of another client's heartbeats before it and during it. JSON is the last line.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from testkit.attacks import ATTACKS, run

screen = Console(stderr=True)


def main() -> None:
    """Attack and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="attacks whose names begin so")
    parser.add_argument("--quiet", type=float, default=5, help="seconds of heartbeats before each")
    arguments = parser.parse_args()
    results = {}
    columns = ("MiB more", "quiet p99 ms", "p99 ms", "ratio", "worst ms")
    table = Table("attack", Column("reached", overflow="fold", min_width=40), *columns)
    for name in ATTACKS:
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        screen.print(name)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(name, Path(folder), arguments.quiet)
        figures = outcome.figures()
        results[name] = {"reached": outcome.reached, "errors": len(outcome.errors), **figures}
        failures = [f"{len(outcome.errors)} heartbeats failed"] if outcome.errors else []
        table.add_row(
            name,
            "\n".join(outcome.reached + failures) or "nothing",
            *(f"{value:,.1f}" for value in figures.values()),
        )
    screen.print(table)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
