"""CPU of queries against the amount of work; one function per panel."""

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from benchmarks.growing.curve import Curve
from benchmarks.growing.topics import ROW_BYTES, ROWS_TOPIC, Work, partitioned_topic, sized_topic
from benchmarks.kafka.systems import System, started, tubemq
from benchmarks.meter import SPARK_CPU, SparkMeter, peak_mb
from benchmarks.planning import questions
from benchmarks.turns import Figures, Key, in_turns

_SMALL = 4
"""A message's cost is the difference between two reads, of which one has this part of the messages."""
_LARGEST_SCRIPTED = 100
"""Brokers of the scripted cluster."""
_MICRO_BATCHES = 10
"""Of each of several queries on one topic, so that they run beside each other."""
_POLL_S = 0.05
_MEMORY_MB = 300
"""What a task's Python worker must stay below, however many rows it reads."""
PLANNING = ("micro-batch of all: latestOffset and partitions", "offset to JSON", "tasks to pickles")


class Growth:
    """Measures on a filled embedded server."""

    def __init__(self, spark: SparkSession, master: str, work: Work) -> None:
        """Use a running Spark."""
        self._spark = spark
        self._system: System = tubemq(master)
        self._work = work
        self._meter = SparkMeter()

    def memory(self) -> list[Curve]:
        """Return the peak memory of a task's Python worker; must come before all other reads."""
        peaks = []
        for rows in self._work.rows:
            self._to_nowhere(self._last(rows))
            peaks.append([max(peak_mb(pid) for pid in self._meter.python_workers())])
        name = f"read, {ROW_BYTES} B"
        panel = "Peak memory of a task's Python worker"
        return [Curve(panel, name, "rows", "MB", self._work.rows, peaks, bound=_MEMORY_MB)]

    def cpu(self, warm_ups: int, rounds: int) -> list[Curve]:
        """Return the CPU of queries, all measured in turns."""
        found = in_turns(self._ways(), warm_ups=warm_ups, rounds=rounds, title="growth")

        def cost(*key: str) -> list[float]:
            return [figures[SPARK_CPU] for figures in found[key]]

        work, cpu = self._work, "CPU s"
        curves = [
            Curve(
                "CPU of a query against rows",
                kind,
                "rows",
                cpu,
                work.rows,
                [cost("rows", kind, str(rows)) for rows in work.rows],
            )
            for kind in ("batch", "stream")
        ]
        parted = [cost("partitions", str(count)) for count in work.partitions]
        name = f"batch of {work.partitions_rows:,} rows"
        curves.append(Curve("CPU against partitions", name, "partitions", cpu, work.partitions, parted))
        sized = [self._per_message(size, cost) for size in work.sizes]
        curves.append(
            Curve("CPU of a message against its size", "batch", "bytes", "CPU us", work.sizes, sized)
        )
        several = [cost("queries", str(count)) for count in work.queries]
        name = f"streams of {work.query_rows:,} rows each"
        panel = "CPU of all queries on one topic"
        return [*curves, Curve(panel, name, "queries", cpu, work.queries, several)]

    def planning(self, rounds: int) -> Curve:
        """Return the driver's CPU of a micro-batch on a scripted cluster, without Spark."""
        costs = []
        for count in self._work.scripted_partitions:
            figures = questions(count, min(count, _LARGEST_SCRIPTED), 1, rounds)
            costs.append([sum(figures[what] for what in PLANNING) / 1000])
        name = "plan of a micro-batch, scripted"
        return Curve(
            "CPU against partitions", name, "partitions", "CPU s", self._work.scripted_partitions, costs
        )

    def _ways(self) -> dict[Key, Callable[[], Figures]]:
        work, ways = self._work, dict[Key, Callable[[], object]]()
        for rows in work.rows:
            ways["rows", "batch", str(rows)] = functools.partial(self._read, ROWS_TOPIC, max(work.rows), rows)
            ways["rows", "stream", str(rows)] = functools.partial(self._streams, 1, rows)
        for count in work.partitions:
            ways["partitions", str(count)] = functools.partial(self._read_whole, partitioned_topic(count))
        for size in work.sizes:
            total = work.rows_of_size(size)
            for part in (total, total // _SMALL):
                ways["size", str(size), str(part)] = functools.partial(
                    self._read, sized_topic(size), total, part
                )
        for count in work.queries:
            ways["queries", str(count)] = functools.partial(
                self._streams, count, work.query_rows, -(-work.query_rows // _MICRO_BATCHES)
            )
        return {key: functools.partial(self._meter.measure, way) for key, way in ways.items()}

    def _per_message(self, size: int, cost: Callable[..., list[float]]) -> list[float]:
        """Return microseconds per message in each round; at least 0.001, since axes are logarithmic."""
        total = self._work.rows_of_size(size)
        part = total // _SMALL
        both = zip(cost("size", str(size), str(total)), cost("size", str(size), str(part)), strict=True)
        return [max((large - small) / (total - part) * 1e6, 1e-3) for large, small in both]

    def _last(self, rows: int) -> DataFrame:
        return self._system.batch(self._spark, ROWS_TOPIC, first=max(self._work.rows) - rows)

    def _read(self, topic: str, total: int, rows: int) -> None:
        self._to_nowhere(self._system.batch(self._spark, topic, first=total - rows))

    def _read_whole(self, topic: str) -> None:
        reader = self._spark.read.format("tubemq").options(**self._system.options)
        self._to_nowhere(reader.options(subscribe=topic, startingOffsets="earliest").load())

    def _to_nowhere(self, frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _streams(self, count: int, rows: int, limit: int | None = None) -> None:
        """Run queries to the topic's end beside each other, each over the same rows.

        Spark gives a stream's Python process 10 s to start, so one starts when the one before has.
        """
        first = max(self._work.rows) - rows
        with contextlib.ExitStack() as stack:
            queries = []
            for _ in range(count):
                checkpoint = stack.enter_context(tempfile.TemporaryDirectory())
                data = self._system.stream(self._spark, ROWS_TOPIC, first=first, rows_per_batch=limit)
                query = started(data.writeStream.format("noop").trigger(availableNow=True), checkpoint)
                queries.append(query)
                while query.isActive and query.status["message"].startswith("Initializing"):
                    time.sleep(_POLL_S)
            for query in queries:
                query.awaitTermination()
                read = sum(progress.numInputRows for progress in query.recentProgress)
                if read != rows:
                    raise RuntimeError(f"a stream read {read} of {rows} rows")
