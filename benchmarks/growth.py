"""What queries cost against how much work they have: a picture for the docs, and each line's slope.

    make bench-growth                               # draws docs/spark/growth.svg
    make bench-growth ARGS="--quick"                # under a minute, draws build/growth.svg

CPU is that of Spark's whole process tree, with the embedded server in a process of its own. All reads are
measured in turns. Each curve is compared with a fixed cost plus a cost per unit of work: a point that is
more than a quarter off the line through the other points is marked as a knee. JSON, with all rounds, is the
last line.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyspark
from rich.table import Table

from benchmarks.growing.curve import Curve
from benchmarks.growing.drawing import draw
from benchmarks.growing.measuring import Growth
from benchmarks.growing.topics import FULL, QUICK
from benchmarks.spark import ROOT, session
from benchmarks.turns import screen
from integration_tests.rig.server_process import ServerProcess
from tubemq_spark.protocol import speedups


def measure(*, quick: bool, warm_ups: int, rounds: int) -> list[Curve]:
    """Measure all panels."""
    work = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            ServerProcess(folder / "server", work.topics(), folder / "log") as server,
            session(folder, "local[2]") as spark,
        ):
            work.fill(server.master)
            growth = Growth(spark, server.master, work)
            memory = growth.memory()
            cpu = growth.cpu(warm_ups, rounds)
        return [*cpu, growth.planning(rounds), *memory]


def show(curves: Sequence[Curve]) -> None:
    """Draw the table."""
    table = Table("panel", "curve", "found")
    for curve in curves:
        table.add_row(curve.panel, curve.name, curve.describe())
    screen.print(table)


def main() -> None:
    """Measure, draw and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little work and one round, to try the program")
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds before them")
    parser.add_argument("--output", type=Path, help="where to draw; by default docs/spark/growth.svg")
    arguments = parser.parse_args()
    quick, rounds = arguments.quick, 1 if arguments.quick else arguments.rounds
    curves = measure(quick=quick, warm_ups=0 if quick else arguments.warm_ups, rounds=rounds)
    twin = "Python" if speedups.compiled is None else "compiled"
    caption = (
        f"PySpark {pyspark.__version__}, {twin} twin; medians of {rounds} rounds, shaded: least to greatest. "
        "Dotted: fixed cost + cost per unit. Circles: knees."
    )
    output = arguments.output or ROOT / ("build" if quick else "docs/spark") / "growth.svg"
    draw(curves, output, caption)
    show(curves)
    screen.print(f"drew {output}")
    sys.stdout.write(json.dumps([curve.to_json() for curve in curves]) + "\n")


if __name__ == "__main__":
    main()
