"""From the beginning to the first row: of a frame, a batch action and a stream, warm and in a new Spark."""

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.systems import ANY, KAFKA, ONE_TOPIC, OURS, System, started
from benchmarks.meter import SECONDS, SPARK_CPU, SparkMeter
from benchmarks.spark import ROOT
from benchmarks.turns import Figures, Key, Line, Section

LOAD: Final = "load()"
ACTION: Final = "a batch action to its row"
START: Final = "start() of a stream to its first row"
COLD_BATCH: Final = "first query in a new Spark: load() and a batch action"
COLD_STREAM: Final = "first query in a new Spark: load() and start() to the first row"
_FIRST_ROW_S: Final = 120.0


def load(spark: SparkSession, meter: SparkMeter, system: System) -> Figures:
    """Measure making a frame."""
    return meter.measure(lambda: system.batch(spark, ONE_TOPIC))


def action(spark: SparkSession, meter: SparkMeter, system: System) -> Figures:
    """Measure an action on a frame that was never used."""
    frame = system.batch(spark, ONE_TOPIC)
    return _collected(meter, lambda: frame)


def start(spark: SparkSession, meter: SparkMeter, system: System) -> Figures:
    """Measure a stream from its start until ``foreachBatch`` has its first row."""
    frame = system.stream(spark, ONE_TOPIC)
    return _first_row(meter, lambda: frame)


def load_and_action(spark: SparkSession, meter: SparkMeter, system: System) -> Figures:
    """Measure making a frame and an action on it."""
    return _collected(meter, lambda: system.batch(spark, ONE_TOPIC))


def load_and_start(spark: SparkSession, meter: SparkMeter, system: System) -> Figures:
    """Measure making a stream and starting it, until ``foreachBatch`` has its first row."""
    return _first_row(meter, lambda: system.stream(spark, ONE_TOPIC))


def _collected(meter: SparkMeter, frame: Callable[[], DataFrame]) -> Figures:
    return meter.measure(lambda: _require_row(len(frame().collect())))


def _first_row(meter: SparkMeter, frame: Callable[[], DataFrame]) -> Figures:
    rows, came = 0, threading.Event()

    def note(batch: DataFrame, _number: int) -> None:
        nonlocal rows
        rows = len(batch.collect())
        came.set()

    with tempfile.TemporaryDirectory() as checkpoint, contextlib.ExitStack() as stack:

        def until_first_row() -> None:
            query = started(frame().writeStream.foreachBatch(note), checkpoint)
            stack.callback(query.stop)
            came.wait(_FIRST_ROW_S)

        figures = meter.measure(until_first_row)
    _require_row(rows)
    return figures


def cold(system: System, jars: str, way: str) -> Figures:
    """Measure in a Spark of its own, where no Python data source was used before."""
    order = {"system": asdict(system), "jars": jars, "way": way}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka.cold_start"],
        cwd=ROOT,
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a new Spark failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def start_ways(spark: SparkSession, systems: Sequence[System]) -> dict[Key, Callable[[], Figures]]:
    """Return the measurements by name and system."""
    meter = SparkMeter()
    found: dict[Key, Callable[[], Figures]] = {}
    for name, way in ((LOAD, load), (ACTION, action), (START, start)):
        for system in systems:
            found[name, system.name] = functools.partial(way, spark, meter, system)
    return found


def cold_ways(systems: Sequence[System], jars: str) -> dict[Key, Callable[[], Figures]]:
    """Return the measurements in a Spark of its own, by name and system."""
    return {
        (way, system.name): functools.partial(cold, system, jars, way)
        for way in (COLD_BATCH, COLD_STREAM)
        for system in systems
    }


def start_section(found: Mapping[Key, Sequence[Figures]]) -> Section:
    """Return the table; a smaller ratio is better."""
    lines = []
    for what in dict.fromkeys(what for what, _ in found):
        for figure, unit in ((SECONDS, "ms"), (SPARK_CPU, "CPU ms")):
            values = {
                name: [one[figure] * 1000 for one in all_] for (of, name), all_ in found.items() if of == what
            }
            lines.append(Line(what, unit, values))
    return Section("from the beginning to the first row", (OURS, KAFKA, ANY), lines)


def _require_row(rows: int) -> None:
    if rows != 1:
        raise RuntimeError(f"the first query returned {rows} rows instead of one")
