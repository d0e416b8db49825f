"""A query on a steady flow of messages: what a micro-batch costs.

All queries have the same trigger, every second, so that they have equally many micro-batches with equally
many rows. Spark begins them at full seconds; what is counted begins and ends shortly before one. The second
line of the table shows whether all kept pace, with a second's rows per micro-batch: on a machine that is busy
with other work they may not.
"""

import contextlib
import functools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kafka.flow import steady_flow
from benchmarks.kafka.systems import ANY, KAFKA, OURS, STEADY_TOPIC, System, started
from benchmarks.meter import SPARK_CPU, SparkMeter
from benchmarks.turns import Figures, Key, Line, Section

MESSAGES_PER_SECOND: Final = 2_000
TRIGGER_S: Final = 1.0
_BEFORE_S: Final = 0.02
_START_S: Final = 60.0
_SETTLE_S: Final = 3.0
"""So long the query reads before it is measured."""

_CPU: Final = "CPU ms per micro-batch"
_ROWS: Final = "rows per micro-batch"


def steady_ways(
    spark: SparkSession, systems: Sequence[System], seconds: float
) -> dict[Key, Callable[[], Figures]]:
    """Return the measurement of each system."""
    meter = SparkMeter()
    return {(system.name,): functools.partial(_measure, spark, meter, system, seconds) for system in systems}


def _measure(spark: SparkSession, meter: SparkMeter, system: System, seconds: float) -> Figures:
    flow = (
        contextlib.nullcontext()
        if system.name == ANY
        else steady_flow(system, STEADY_TOPIC, MESSAGES_PER_SECOND)
    )
    with flow, tempfile.TemporaryDirectory() as checkpoint:
        data = system.stream(spark, STEADY_TOPIC, first=None)
        writer = data.writeStream.format("noop").trigger(processingTime=f"{TRIGGER_S:g} seconds")
        query = started(writer, checkpoint)
        try:
            _await_rows(query)
            _until_before_trigger(_SETTLE_S)
            first = query.lastProgress
            figures = meter.measure(lambda: _until_before_trigger(seconds))
            last = query.lastProgress
            assert first is not None
            assert last is not None
            rows = sum(one.numInputRows for one in query.recentProgress if one.batchId > first.batchId)
        finally:
            query.stop()
    batches = last.batchId - first.batchId
    return {_CPU: figures[SPARK_CPU] * 1000 / batches, _ROWS: rows / batches}


def _await_rows(query: StreamingQuery) -> None:
    deadline = time.monotonic() + _START_S
    while not any(progress.numInputRows for progress in query.recentProgress):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a query has read nothing in {_START_S:g} s")
        time.sleep(TRIGGER_S)


def _until_before_trigger(seconds: float = 0) -> None:
    """Wait that long, and then until shortly before the next trigger."""
    end = time.time() + seconds
    trigger = TRIGGER_S * math.ceil(end / TRIGGER_S)
    time.sleep(max(0.0, trigger - _BEFORE_S - time.time()))


def steady_section(found: Mapping[Key, Sequence[Figures]]) -> Section:
    """Return the table; a smaller ratio is better."""
    lines = [
        Line(what, "", {name: [one[what] for one in all_] for (name,), all_ in found.items()})
        for what in (_CPU, _ROWS)
    ]
    title = f"a micro-batch every {TRIGGER_S:g} s of {MESSAGES_PER_SECOND:,} messages/s"
    return Section(title, (OURS, KAFKA, ANY), lines)
