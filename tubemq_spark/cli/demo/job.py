"""The demo's Spark job: count words from one topic into another, and read both topics back."""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.query import StreamingQuery

from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.net.deadline import Deadline

FILE_ATTRIBUTE: Final = "file"
LINE_ATTRIBUTE: Final = "line"
WORD_PATTERN: Final = "[A-Za-z]{3,}"
"""A word: ASCII letters only, so that Java's and Python's regular expressions find the same words."""
_STANDARD_ERROR: Final = 2
_POLL_S: Final = 0.1
_PATIENCE_MS: Final = 120_000
_RESULT_SCHEMA: Final = "extension string, word string, count long"

WordKey = tuple[str, str]
"""A file extension and a lower-case word."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    masters: str
    """Addresses as the option ``tubemq.master.servers`` takes them."""
    group: str
    lines_topic: str
    counts_topic: str
    rows_per_batch: int
    checkpoint: Path

    @property
    def options(self) -> dict[str, str]:
        """The options of every reader and writer."""
        return {"tubemq.master.servers": self.masters, "tubemq.group": self.group}


@contextmanager
def spark_session(workspace: Path, log: Path) -> Iterator[SparkSession]:
    """Run Spark on two cores of this machine, with all its files in ``workspace``.

    The log receives what Spark and its Python workers write to standard error.
    """
    # By default Spark starts its Python workers with `python3`, which may be another installation.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(workspace / "spark"),
        "spark.sql.warehouse.dir": (workspace / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Over TCP, every task that runs Python waits 40 ms for a delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        # In a run of a minute, the second stage of the JIT compiler costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    builder = SparkSession.builder.master("local[2]").appName("tubemq-spark demo")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _standard_error_to(log):
        session = builder.getOrCreate()
    # Spark's own handler would call the JVM in the middle of the call that was interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    except BaseException:
        # A call to the JVM may have been interrupted, after which it accepts no other. It ends with us.
        with suppress(Exception):
            session.stop()
        raise
    session.stop()


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """Redirect to a file the standard error of processes that are started in this block.

    When a query is stopped halfway, Spark logs its interrupted tasks and its Python workers their broken
    pipes, which is correct but of no use on a terminal.
    """
    sys.stderr.flush()
    terminal = os.dup(_STANDARD_ERROR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(terminal, _STANDARD_ERROR)
        os.close(terminal)


def start_query(
    session: SparkSession, plan: Plan, starting_offsets: str, *, available_now: bool
) -> StreamingQuery:
    """Start the query that counts the words of lines by the lines' type, from its checkpoint if there is one.

    Each micro-batch writes the counts so far of the words that it contains. It does so through
    ``foreachBatch``, because Spark does not support the output mode update for Python sinks. Counts only
    grow, so a word's result is its highest count, even if messages are repeated after a restart. With
    ``available_now`` it ends when everything that is there now has been counted.
    """
    lines = (
        session.readStream.format("tubemq")
        .schema("value binary, messageType string")
        .options(**plan.options)
        .option("subscribe", plan.lines_topic)
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", plan.rows_per_batch)
        .load()
    )
    # ISO-8859-1 maps every byte to a character, so bytes that are not UTF-8 cannot change words.
    text = F.decode("value", "ISO-8859-1")
    words = lines.select(
        F.col("messageType").alias("extension"),
        F.explode(F.regexp_extract_all(text, F.lit(WORD_PATTERN), F.lit(0))).alias("word"),
    )
    counts = words.groupBy("extension", F.lower("word").alias("word")).count()

    def write(counts: DataFrame, _batch_id: int) -> None:
        messages = counts.select(
            F.to_json(F.struct("extension", "word", "count")).alias("value"),
            F.concat_ws("/", "extension", "word").alias("key"),
            F.col("extension").alias("messageType"),
        )
        writer = messages.write.format("tubemq").options(**plan.options)
        writer.option("topic", plan.counts_topic).mode("append").save()

    query = (
        counts.writeStream.outputMode("update")
        .option("checkpointLocation", str(plan.checkpoint))
        .foreachBatch(write)
    )
    return (query.trigger(availableNow=True) if available_now else query).start()


def follow(
    query: StreamingQuery,
    on_batch: Callable[[int, int], None],
    enough: Callable[[], bool],
    patience_ms: int = _PATIENCE_MS,
) -> None:
    """Watch a query until it ends, or until ``enough`` returns true.

    ``on_batch`` is called with the id and the number of rows of each finished micro-batch.
    """
    reported = -1
    ended = False
    deadline = Deadline.after_ms(patience_ms)
    while not ended and not enough():
        # The annotation says int, but any positive number of seconds is accepted.
        ended = bool(query.awaitTermination(_POLL_S))  # type: ignore[arg-type]
        for progress in query.recentProgress:
            # A trigger that found nothing is reported with the id of the next batch.
            if progress.batchId > reported and progress.numInputRows:
                reported = progress.batchId
                deadline = Deadline.after_ms(patience_ms)
                on_batch(progress.batchId, progress.numInputRows)
        if deadline.expired and not ended:
            raise TubeMQTimeoutError("TUBEMQ_DEMO_STALLED", seconds=patience_ms // 1000)


def read_lines(
    session: SparkSession, plan: Plan, offsets: tuple[str, str]
) -> Iterator[tuple[str | None, str | None, int]]:
    """Return the file, the line number and the CRC-32 of every line between two offsets of the topic."""
    schema = "value binary, attributes map<string,string>"
    table = (
        _read(session, plan, plan.lines_topic, schema, offsets)
        .select(
            F.col("attributes")[FILE_ATTRIBUTE].alias("file"),
            F.col("attributes")[LINE_ATTRIBUTE].alias("line"),
            F.crc32("value").alias("crc"),
        )
        .toArrow()
    )
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def read_counts(session: SparkSession, plan: Plan, offsets: tuple[str, str]) -> dict[WordKey, int]:
    """Return the highest count of every word between two offsets of the topic."""
    frame = _read(session, plan, plan.counts_topic, "value binary", offsets)
    results = frame.select(F.from_json(F.col("value").cast("string"), _RESULT_SCHEMA).alias("result"))
    table = (
        results.select("result.*").groupBy("extension", "word").agg(F.max("count").alias("count")).toArrow()
    )
    columns = (column.to_pylist() for column in table.columns)
    return {(extension, word): count for extension, word, count in zip(*columns, strict=True)}


def _read(session: SparkSession, plan: Plan, topic: str, schema: str, offsets: tuple[str, str]) -> DataFrame:
    """Return a topic between ``startingOffsets`` and ``endingOffsets``."""
    return (
        session.read.format("tubemq")
        .schema(schema)
        .options(**plan.options)
        .option("subscribe", topic)
        .option("startingOffsets", offsets[0])
        .option("endingOffsets", offsets[1])
        .load()
    )


def cause_of(error: Exception) -> str:
    """Return the most telling line of a Spark error: the text of our own error if it has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line[line.index("[TUBEMQ_") :] for line in lines if "[TUBEMQ_" in line]
    return ours[-1] if ours else next(iter(lines), type(error).__name__)
