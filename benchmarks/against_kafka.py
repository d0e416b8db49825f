"""Spark's own Kafka source beside ours, in turns: rows/s, rows per CPU-second, idle cost, latency.

    make bench-kafka                                       # with the compiled twin
    make bench-kafka ARGS="--rows 2000000 --rounds 7"
    TUBEMQ_SPARK_PURE=1 make bench-kafka                   # with the Python twin

Needs Maven. Both servers (Java TubeMQ, Kafka) run all the time; one task reads one partition, and nothing
else runs meanwhile. A CPU-second counts Spark's whole process tree: driver, JVM and Python workers. Each
figure is the median of all rounds, each ratio (ours to Kafka's) the median of the rounds' ratios, with the
least and the greatest one. JSON is the last line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from rich.console import Console
from rich.table import Table

from benchmarks.kafka.jars import connector_jars, server_jars
from benchmarks.kafka.server import kafka_server
from benchmarks.spark import session
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from tubemq_spark.client import TubeMQClient
from tubemq_spark.protocol import speedups

SIZES: Final = {"100 B": 100, "1 KiB": 1024}
MICRO_BATCHES: Final = 20
IDLE_SECONDS: Final = 15.0
MESSAGES_PER_SECOND: Final = 20
LATENCY_SECONDS: Final = 20.0
ATTRIBUTE_VALUES: Final = 4
IN_MEMORY: Final = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 200}
screen = Console(stderr=True)


@dataclass(frozen=True)
class System:
    """One of the two, and how Spark reads from it."""

    name: str
    format: str
    options: dict[str, str]
    with_attributes: dict[str, str]
    """The options that bring headers, or attributes."""


def topic_of(label: str, *, attributes: bool = False) -> str:
    """Return the name of the topic with messages of one size."""
    return f"bench_{SIZES[label]}{'_attributes' if attributes else ''}"


class Meter:
    """Measures what Spark's process tree costs."""

    def __init__(self) -> None:
        self._driver = psutil.Process()
        (self._jvm,) = (
            child for child in self._driver.children() if "SparkSubmit" in " ".join(child.cmdline())
        )

    def cpu_seconds(self) -> float:
        """Return the CPU time so far, that of ended Python workers included."""
        own = self._driver.cpu_times()
        total = own.user + own.system
        for process in (self._jvm, *self._jvm.children(recursive=True)):
            try:
                spent = process.cpu_times()
            except psutil.Error:
                continue
            total += spent.user + spent.system + spent.children_user + spent.children_system
        return total

    def of(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds and the CPU-seconds that some work takes."""
        cpu, began = self.cpu_seconds(), time.perf_counter()
        work()
        return time.perf_counter() - began, self.cpu_seconds() - cpu


def fill(spark: SparkSession, tubemq: System, kafka: System, label: str, rows: int) -> None:
    """Write the same messages into both: with four distinct attributes, and without any but the time."""
    size = SIZES[label]
    values = spark.range(0, rows, numPartitions=1).selectExpr(
        f"cast(rpad(lpad(cast(id as string), 12, '0'), {size}, 'x') as binary) as value",
        f"concat('v', cast(id * {ATTRIBUTE_VALUES} div {rows} as string)) as kind",
    )
    for attributes in (False, True):
        topic = topic_of(label, attributes=attributes)
        ours = values.selectExpr("value", *["map('kind', kind) as attributes"] * attributes)
        ours.write.format("tubemq").options(**tubemq.options, topic=topic).mode("append").save()
        header = "array(struct('kind' as key, cast(kind as binary) as value)) as headers"
        theirs = values.selectExpr("value", *[header] * attributes)
        theirs.write.format("kafka").options(
            **kafka.options, topic=topic, includeHeaders=str(attributes).lower()
        ).mode("append").save()


def reads(spark: SparkSession, system: System, label: str, rows: int) -> dict[str, Callable[[], None]]:
    """Return what is measured of one system, by name."""

    def frame(*, attributes: bool = False) -> DataFrame:
        extra = system.with_attributes if attributes else {}
        topic = topic_of(label, attributes=attributes)
        return (
            spark.read.format(system.format)
            .options(**system.options, **extra, subscribe=topic, startingOffsets="earliest")
            .load()
        )

    def to_nowhere(data: DataFrame) -> None:
        data.write.format("noop").mode("overwrite").save()

    def value_only() -> None:
        if system.format == "tubemq":
            source = spark.read.format("tubemq").options(**system.options, startingOffsets="earliest")
            to_nowhere(source.option("subscribe", topic_of(label)).schema("value binary").load())
        else:
            to_nowhere(frame().select("value"))

    def stream() -> None:
        limit = -(-rows // MICRO_BATCHES)
        source = spark.readStream.format(system.format).options(**system.options)
        data = source.options(
            subscribe=topic_of(label), startingOffsets="earliest", maxOffsetsPerTrigger=str(limit)
        ).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            query = started(data.writeStream.format("noop").trigger(availableNow=True), checkpoint)
            query.awaitTermination()

    return {
        "batch": lambda: to_nowhere(frame()),
        "batch, attributes": lambda: to_nowhere(frame(attributes=True)),
        "batch, value only": value_only,
        "stream": stream,
    }


def started(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    """Start a query with a checkpoint."""
    return writer.option("checkpointLocation", checkpoint).start()


def idle_share(spark: SparkSession, meter: Meter, system: System) -> float:
    """Return the share of a core that an idle query costs at a trigger of zero seconds."""
    data = spark.readStream.format(system.format).options(**system.options, subscribe="bench_live").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = started(data.writeStream.format("noop"), checkpoint)
        time.sleep(IDLE_SECONDS / 2)
        _, cpu = meter.of(lambda: time.sleep(IDLE_SECONDS))
        query.stop()
    return cpu / IDLE_SECONDS


def latencies(spark: SparkSession, system: System, send: Callable[[bytes], None]) -> list[float]:
    """Return the milliseconds from the producer to ``foreachBatch`` of each message."""
    seen: list[float] = []

    def note(batch: DataFrame, _number: int) -> None:
        rows = batch.select("value").collect()
        now = time.time_ns()
        seen.extend((now - int(bytes(row.value))) / 1e6 for row in rows)

    data = spark.readStream.format(system.format).options(**system.options, subscribe="bench_live").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = started(data.writeStream.foreachBatch(note), checkpoint)
        time.sleep(LATENCY_SECONDS / 4)
        for _ in range(int(LATENCY_SECONDS * MESSAGES_PER_SECOND)):
            send(b"%d" % time.time_ns())
            time.sleep(1 / MESSAGES_PER_SECOND)
        time.sleep(2)
        query.stop()
    # The first ones come while the query warms up.
    return sorted(seen[len(seen) // 4 :])


@contextmanager
def kafka_sender(address: str) -> Iterator[Callable[[bytes], None]]:
    """Yield what sends a message at once by Kafka's console producer."""
    command = ["java", "-cp", f"{server_jars()}/*", "kafka.tools.ConsoleProducer"]
    settings = ["--bootstrap-server", address, "--topic", "bench_live", "--timeout", "0"]
    producer = subprocess.Popen(
        [*command, *settings, "--producer-property", "linger.ms=0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert producer.stdin is not None
    pipe, lock = producer.stdin, threading.Lock()

    def send(value: bytes) -> None:
        with lock:
            pipe.write(value + b"\n")
            pipe.flush()

    try:
        yield send
    finally:
        pipe.close()
        producer.wait()


@contextmanager
def tubemq_sender(master: str) -> Iterator[Callable[[bytes], None]]:
    """Yield what sends a message at once."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:

        def send(value: bytes) -> None:
            producer.send("bench_live", value)
            producer.flush()

        yield send


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of sorted values lies."""
    return values[min(len(values) - 1, int(len(values) * share))]


def measure(spark: SparkSession, systems: Sequence[System], rows: dict[str, int], rounds: int) -> list[dict]:
    """Return a line for each figure: what, unit, ours, Kafka's, and the rounds' ratios."""
    meter, lines = Meter(), []
    for label in SIZES:
        ways = {system.name: reads(spark, system, label, rows[label]) for system in systems}
        for way in next(iter(ways.values())):
            found: dict[str, list[tuple[float, float]]] = {system.name: [] for system in systems}
            for number in range(rounds + 1):
                for system in systems:
                    spent = meter.of(ways[system.name][way])
                    # The first one warms up.
                    if number:
                        found[system.name].append(spent)
            for place, unit in enumerate(("rows/s", "rows/CPU-s")):
                rates = {name: [rows[label] / spent[place] for spent in all_] for name, all_ in found.items()}
                lines.append(line(f"{way}, {label}", unit, rates))
            screen.print(lines[-1])
    return lines


def line(what: str, unit: str, rates: dict[str, list[float]]) -> dict:
    """Return the medians of both, and of the ratios."""
    ours, kafka = rates["tubemq"], rates["kafka"]
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, kafka, strict=True))
    return {
        "what": what,
        "unit": unit,
        "tubemq": statistics.median(ours),
        "kafka": statistics.median(kafka),
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "greatest": ratios[-1],
    }


def measure_live(
    spark: SparkSession, systems: Sequence[System], senders: dict[str, Callable[[bytes], None]], rounds: int
) -> list[dict]:
    """Return the lines of idle cost and latency; there a smaller ratio is better."""
    meter = Meter()
    idle: dict[str, list[float]] = {system.name: [] for system in systems}
    half: dict[str, list[float]] = {system.name: [] for system in systems}
    most: dict[str, list[float]] = {system.name: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            idle[system.name].append(idle_share(spark, meter, system))
            found = latencies(spark, system, senders[system.name])
            half[system.name].append(percentile(found, 0.5))
            most[system.name].append(percentile(found, 0.99))
    return [
        line("idle", "share of a core", idle),
        line("latency p50", "ms", half),
        line("latency p99", "ms", most),
    ]


def show(lines: Sequence[dict]) -> None:
    """Draw the table."""
    table = Table("what", "unit", "ours", "Kafka's", "ratio", "least", "greatest")
    for found in lines:
        numbers = [f"{found[key]:,.2f}" for key in ("tubemq", "kafka", "ratio", "least", "greatest")]
        table.add_row(found["what"], found["unit"], *numbers)
    screen.print(table)


def main() -> None:
    """Start both servers, fill them, measure in turns, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 B; a quarter of it at 1 KiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-live", action="store_true", help="leave out idle cost and latency")
    arguments = parser.parse_args()
    rows = {"100 B": arguments.rows, "1 KiB": arguments.rows // 4}
    topics = [topic_of(label, attributes=some) for label in SIZES for some in (False, True)]
    specs = {name: TopicSpec(1, 1, properties=IN_MEMORY) for name in (*topics, "bench_live")}
    screen.print(f"our twin: {'Python' if speedups.compiled is None else 'compiled'}")
    with tempfile.TemporaryDirectory() as name, RealTubeMQ(specs) as java:
        folder = Path(name)
        # One core for the task; the JVM's own threads and the servers have the rest.
        jars = ",".join(str(path) for path in connector_jars().glob("*.jar"))
        with (
            kafka_server(folder / "kafka") as address,
            session(folder, "local[1]", spark__jars=jars) as spark,
        ):
            tubemq = System(
                "tubemq", "tubemq", {"tubemq.master.servers": java.master}, {"includeAttributes": "true"}
            )
            kafka = System("kafka", "kafka", {"kafka.bootstrap.servers": address}, {"includeHeaders": "true"})
            for label, count in rows.items():
                screen.print(f"filling both with {count} messages of {label}")
                fill(spark, tubemq, kafka, label, count)
            lines = measure(spark, (tubemq, kafka), rows, arguments.rounds)
            if not arguments.no_live:
                with kafka_sender(address) as to_kafka, tubemq_sender(java.master) as to_tubemq:
                    to_kafka(b"%d" % time.time_ns())
                    senders = {"tubemq": to_tubemq, "kafka": to_kafka}
                    lines += measure_live(spark, (tubemq, kafka), senders, arguments.rounds)
    show(lines)
    sys.stdout.write(json.dumps(lines) + "\n")


if __name__ == "__main__":
    main()
