"""Rows a second of batch read, stream read, batch sink and stream sink, at 100 B and 1 KiB a message.

    make bench-throughput                            # on the embedded server
    make bench-throughput ARGS="--server real"       # on the Java TubeMQ (needs Maven)
    make bench-throughput ARGS="--server embedded real --rows 1000000"

Every figure is the best of ``--repeat`` runs on a warm Spark session with two cores; JSON is the last line.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.spark import session
from integration_tests.rig.servers import Server, embedded_server, real_server
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.model import Endpoint

SIZES = {"100 B": 100, "1 KiB": 1024}
screen = Console(stderr=True)


def timed(work: Callable[[], None]) -> float:
    """Return how many seconds some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rows_of(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Return a frame of values of one size, made in the JVM."""
    number = "lpad(cast(id as string), 12, '0')"
    return spark.range(0, rows, numPartitions=2).selectExpr(f"rpad({number}, {size}, 'x') as value")


def fill(server: Server, topic: str, rows: int, size: int) -> None:
    """Send messages with the client's producer."""
    config = ClientConfig((Endpoint.parse(server.master),), "bench")
    with TubeMQClient(config) as client, client.producer() as producer:
        for number in range(rows):
            producer.send(topic, b"%012d" % number + b"x" * (size - 12))


def measure(
    server: Server, spark: SparkSession, folder: Path, rows: int, size: int, repeat: int
) -> dict[str, float]:
    """Return rows a second of every way."""
    topic = server.fresh_topic("3x1")
    fill(server, topic, rows, size)
    source = server.options(subscribe=topic, startingOffsets="earliest")

    def batch_read(columns: str | None = None) -> None:
        reader = spark.read.format("tubemq").options(**source)
        (reader if columns is None else reader.schema(columns)).load().write.format("noop").mode(
            "overwrite"
        ).save()

    def stream_read() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
            query = (
                spark.readStream.format("tubemq")
                .options(**source)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    files = folder / f"rows-{size}"
    rows_of(spark, rows, size).write.mode("overwrite").parquet(str(files))

    def batch_sink() -> None:
        target = server.options(topic=server.fresh_topic("3x1"))
        spark.read.parquet(str(files)).write.format("tubemq").options(**target).mode("append").save()

    def stream_sink() -> None:
        target = server.options(topic=server.fresh_topic("3x1"))
        with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
            query = (
                spark.readStream.schema("value string")
                .parquet(str(files))
                .writeStream.format("tubemq")
                .options(**target)
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    ways: dict[str, Callable[[], None]] = {
        "batch read": batch_read,
        "batch read, value only": lambda: batch_read("value binary"),
        "stream read": stream_read,
        "batch sink": batch_sink,
        "stream sink": stream_sink,
    }
    return {name: rows / min(timed(way) for _ in range(repeat)) for name, way in ways.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", nargs="+", choices=["embedded", "real"], default=["embedded"])
    parser.add_argument(
        "--rows", type=int, default=300_000, help="messages of 100 B; a quarter of it at 1 KiB"
    )
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with session(folder) as spark:
            for kind in arguments.server:
                starting = real_server() if kind == "real" else embedded_server(folder / "embedded")
                with starting as server:
                    for label, size in SIZES.items():
                        rows = arguments.rows if size == 100 else arguments.rows // 4
                        screen.print(f"{kind}: {rows} messages of {label}")
                        results.setdefault(kind, {})[label] = measure(
                            server, spark, folder, rows, size, arguments.repeat
                        )
    show(results)
    sys.stdout.write(json.dumps(results) + "\n")


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draw the table."""
    table = Table("server", "message", "way", "rows/s", "MB/s")
    for kind, by_size in results.items():
        for label, ways in by_size.items():
            for way, rate in ways.items():
                table.add_row(kind, label, way, f"{rate:,.0f}", f"{rate * SIZES[label] / 1e6:,.1f}")
    screen.print(table)


if __name__ == "__main__":
    main()
