"""What it costs to split one long range over several tasks: CPU of Spark's whole process tree, and time.

    make bench-splitting
    make bench-splitting ARGS="--rows 500000 --tasks 2 8 32"

One partition on an embedded server in a process of its own, read by one task and by several
(``minPartitions``), in turns: every round measures each once, and a ratio is that of one round.
JSON is the last line.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.meter import SECONDS, SERVER_CPU, SPARK_CPU, SparkMeter
from benchmarks.report import Line, Section
from benchmarks.spark import session
from integration_tests.rig.produce import client_config
from integration_tests.rig.server_process import ServerProcess
from tubemq_spark.client import TubeMQClient

TOPIC = "long_range"
SIZE = 100
screen = Console(stderr=True)


def fill(master: str, rows: int) -> None:
    """Store rows in the only partition."""
    with TubeMQClient(client_config(master, "bench")) as client, client.producer() as producer:
        for number in range(rows):
            producer.send(TOPIC, b"%012d" % number + b"x" * (SIZE - 12))


def range_of(spark: SparkSession, master: str, tasks: int) -> DataFrame:
    """Return a read of the whole partition by so many tasks."""
    options = {"tubemq.master.servers": master, "subscribe": TOPIC, "tubemq.group": "bench"}
    if tasks > 1:
        options["minPartitions"] = str(tasks)
    return spark.read.format("tubemq").options(**options).load()


def measure(
    spark: SparkSession, server: ServerProcess, tasks: list[int], rounds: int, warm_ups: int
) -> list[Line]:
    """Return the figures of each number of tasks in each round."""
    meter = SparkMeter()
    names = {count: name_of(count) for count in tasks}
    units = {SPARK_CPU: "s", SERVER_CPU: "s", SECONDS: "s"}
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in names.values()} for what in units}
    for turn in range(warm_ups + rounds):
        for count in tasks if turn % 2 else reversed(tasks):
            frame = range_of(spark, server.master, count)
            if frame.rdd.getNumPartitions() != count:
                raise RuntimeError(f"there are {frame.rdd.getNumPartitions()} tasks, not {count}")
            figures = meter.measure(
                lambda frame=frame: frame.write.format("noop").mode("overwrite").save(),
                lambda: server.cpu_s,
            )
            if turn >= warm_ups:
                for what in units:
                    found[what][names[count]].append(figures[what])
        screen.print(f"round {turn + 1} of {warm_ups + rounds}")
    return [Line(what, units[what], values) for what, values in found.items()]


def name_of(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help=f"messages of {SIZE} B")
    parser.add_argument("--tasks", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-ups", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ServerProcess(folder / "data", {TOPIC: (1, 1)}, folder / "server.log") as server:
            fill(server.master, arguments.rows)
            screen.print(f"{arguments.rows} messages are stored")
            with session(folder) as spark:
                lines = measure(spark, server, [1, *arguments.tasks], arguments.rounds, arguments.warm_ups)
    title = f"one range of {arguments.rows} rows of {SIZE} B"
    sections = [Section(title, [name_of(tasks), name_of(1)], lines) for tasks in arguments.tasks]
    for section in sections:
        section.show(screen)
    sys.stdout.write(json.dumps([section.to_json() for section in sections]) + "\n")


if __name__ == "__main__":
    main()
