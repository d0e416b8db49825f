"""Reading all rows of a topic: in a batch and as a stream, by both systems.

Each default read is measured at two sizes. The difference, divided by the difference in rows, is what a row
costs without what a query costs once, and, of a stream with as many micro-batches at both sizes, without
what a micro-batch costs.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.systems import KAFKA, LARGE, OURS, SIZES, SMALL, System, started, topic_of
from benchmarks.meter import SECONDS, SERVER_CPU, SPARK_CPU, SparkMeter
from benchmarks.turns import Figures, Key, Line, Section

MICRO_BATCHES: Final = 20
BATCH: Final = "batch"
ATTRIBUTES: Final = "batch, attributes"
VALUE_ONLY: Final = "batch, value only"
STREAM: Final = "stream"
_SMALLER: Final = "of fewer rows"
PER_ROW: Final = (BATCH, f"{BATCH}, {_SMALLER}")
"""The batch reads that tell what a row costs."""

ServerCpu = Mapping[str, Callable[[], float]]
"""By a system's name: the CPU time of its broker so far."""


def batch_ways(
    spark: SparkSession, systems: Sequence[System], rows: Mapping[str, int], servers: ServerCpu
) -> dict[Key, Callable[[], Figures]]:
    """Return the batch reads, by message size, way and system."""
    measure = SparkMeter().measure
    found: dict[Key, Callable[[], Figures]] = {}
    for label, count in rows.items():
        for system in systems:
            server, topic = servers[system.name], topic_of(label) + system.suffix
            ways = {BATCH: functools.partial(system.batch, spark, topic)}
            last_row = functools.partial(system.batch, spark, topic, first=count - 1)
            if system.name == LARGE:
                ways[VALUE_ONLY] = functools.partial(system.batch, spark, topic, value_only=True)
            else:
                with_attributes = topic_of(label, attributes=True) + system.suffix
                ways |= {
                    ATTRIBUTES: functools.partial(system.batch, spark, with_attributes, attributes=True),
                    VALUE_ONLY: functools.partial(system.batch, spark, topic, value_only=True),
                    f"{BATCH}, {_SMALLER}": functools.partial(
                        system.batch, spark, topic, first=count - count // SMALL
                    ),
                }
            for name, frame in ways.items():
                read = functools.partial(_to_nowhere, frame)
                found[label, name, system.name] = functools.partial(_warmed, last_row, measure, read, server)
    return found


def _warmed(
    last_row: Callable[[], DataFrame],
    measure: Callable[[Callable[[], None], Callable[[], float]], Figures],
    read: Callable[[], None],
    server: Callable[[], float],
) -> Figures:
    """Read one row first: Spark ends Python workers after a minute without work.

    Without that, it would depend on the number of ways whether a figure has the start of a worker in it.
    """
    _to_nowhere(last_row)
    return measure(read, server)


def stream_ways(
    spark: SparkSession, systems: Sequence[System], rows: Mapping[str, int], servers: ServerCpu
) -> dict[Key, Callable[[], Figures]]:
    """Return the stream reads, by message size, way and system, with equally many micro-batches."""
    measure = SparkMeter().measure
    found: dict[Key, Callable[[], Figures]] = {}
    for label, count in rows.items():
        for name, part in ((STREAM, count), (f"{STREAM}, {_SMALLER}", count // SMALL)):
            for system in systems:
                read = functools.partial(_stream, spark, system, topic_of(label), count - part, part)
                found[label, name, system.name] = functools.partial(measure, read, servers[system.name])
    return found


def _to_nowhere(frame: Callable[[], DataFrame]) -> None:
    frame().write.format("noop").mode("overwrite").save()


def _stream(spark: SparkSession, system: System, topic: str, first: int, rows: int) -> None:
    data = system.stream(spark, topic, first=first, rows_per_batch=-(-rows // MICRO_BATCHES))
    with tempfile.TemporaryDirectory() as checkpoint:
        query = started(data.writeStream.format("noop").trigger(availableNow=True), checkpoint)
        query.awaitTermination()
        read = sum(progress.numInputRows for progress in query.recentProgress)
    if read != rows:
        raise RuntimeError(f"a stream of {system.name} read {read} of {rows} rows")


def reading_sections(found: Mapping[Key, Sequence[Figures]], rows: Mapping[str, int]) -> list[Section]:
    """Return the tables of what was read."""
    lines = []
    for label, count in rows.items():
        for way in (BATCH, ATTRIBUTES, VALUE_ONLY, STREAM):
            if (label, way, OURS) in found:
                lines += _lines(found, label, way, count)
            if (label, way, LARGE) in found:
                lines += _lines(found, label, way, count, LARGE)
    beside = [_stream_beside_batch(found, label, name, rows) for label in rows for name in (OURS, KAFKA)]
    sections = [Section("reading", (OURS, KAFKA), lines)]
    known = [line for line in beside if line]
    if known:
        sections.append(Section("a row without the fixed cost of its query", (STREAM, BATCH), known))
    return sections


def _lines(
    found: Mapping[Key, Sequence[Figures]], label: str, way: str, rows: int, theirs: str = KAFKA
) -> list[Line]:
    what = f"{way}, {label}" + ", 256 KiB" * (theirs == LARGE)

    def of(unit: Callable[[Figures], float]) -> dict[str, list[float]]:
        return {
            column: [unit(figures) for figures in found[label, way, system]]
            for column, system in ((OURS, OURS), (KAFKA, theirs))
        }

    return [
        Line(what, "rows/CPU-s", of(lambda figures: rows / figures[SPARK_CPU])),
        Line(what, "rows/s", of(lambda figures: rows / figures[SECONDS])),
        Line(what, "broker's CPU us/row", of(lambda figures: figures[SERVER_CPU] / rows * 1e6)),
    ]


def _stream_beside_batch(
    found: Mapping[Key, Sequence[Figures]], label: str, system: str, rows: Mapping[str, int]
) -> Line | None:
    more = rows[label] - rows[label] // SMALL
    values = {}
    for way in (STREAM, BATCH):
        large, small = ((label, name, system) for name in (way, f"{way}, {_SMALLER}"))
        if large not in found:
            return None
        values[way] = [
            (all_[SPARK_CPU] - some[SPARK_CPU]) / more * 1e6
            for all_, some in zip(found[large], found[small], strict=True)
        ]
    return Line(f"{label}, {system}", "CPU us/row", values)


def rows_of_sizes(rows: int) -> dict[str, int]:
    """Return how many messages of each size there are: a quarter as many of 1 KiB as of 100 B."""
    return {label: rows if size == SIZES["100 B"] else rows // 4 for label, size in SIZES.items()}
