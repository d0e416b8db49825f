"""The demo's Spark job: count words from one topic into another, and read both topics back."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.query import StreamingQuery

from tubemq_spark.cli.demo.check import WORD_PATTERN, WordKey
from tubemq_spark.cli.demo.topics import FILE_ATTRIBUTE, LINE_ATTRIBUTE
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.net.deadline import Deadline

_STANDARD_ERROR: Final = 2
_POLL_S: Final = 0.1
_PATIENCE_MS: Final = 120_000
_RESULT_SCHEMA: Final = "extension string, word string, count long"


@contextmanager
def spark_session(workspace: Path, log: Path) -> Iterator[SparkSession]:
    """Run Spark on two cores of this machine, with all its files in ``workspace``.

    Args:
        workspace: an existing directory.
        log: receives what Spark and its Python workers write to standard error.

    Raises:
        PySparkException: Java is missing or does not start.
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


class WordCountJob:
    """A query that counts the words of a topic's lines by the lines' type; it can be started repeatedly.

    Each micro-batch writes the counts so far of the words that it contains. It does so through
    ``foreachBatch``, because Spark does not support the output mode update for Python sinks. Counts only
    grow, so a word's result is its highest count, even if messages are repeated after a restart.
    """

    def __init__(
        self,
        session: SparkSession,
        connection: Mapping[str, str],
        *,
        lines_topic: str,
        counts_topic: str,
        starting_offsets: str,
        rows_per_batch: int,
        checkpoint: Path,
    ) -> None:
        self._session = session
        self._connection = dict(connection)
        self._lines_topic = lines_topic
        self._counts_topic = counts_topic
        self._starting_offsets = starting_offsets
        self._rows_per_batch = rows_per_batch
        self._checkpoint = checkpoint

    def start(self, *, available_now: bool) -> StreamingQuery:
        """Start the query, from its checkpoint if there is one.

        Args:
            available_now: end when everything that is there now has been counted.
        """
        lines = (
            self._session.readStream.format("tubemq")
            .schema("value binary, messageType string")
            .options(**self._connection)
            .option("subscribe", self._lines_topic)
            .option("startingOffsets", self._starting_offsets)
            .option("maxOffsetsPerTrigger", self._rows_per_batch)
            .load()
        )
        writer = (
            _count_words(lines)
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._write)
        )
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _write(self, counts: DataFrame, _batch_id: int) -> None:
        messages = _as_messages(counts).write.format("tubemq").options(**self._connection)
        messages.option("topic", self._counts_topic).mode("append").save()


def follow(
    query: StreamingQuery,
    on_batch: Callable[[int, int], None],
    enough: Callable[[], bool],
    patience_ms: int = _PATIENCE_MS,
) -> None:
    """Watch a query until it ends, or until ``enough`` returns true.

    Args:
        query: a running query.
        on_batch: called with the id and the number of rows of each finished micro-batch.
        enough: called after each poll of the query.
        patience_ms: how long a micro-batch may take.

    Raises:
        PySparkException: the query failed.
        TubeMQTimeoutError: no micro-batch finished for too long.
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
    session: SparkSession, connection: Mapping[str, str], topic: str, offsets: tuple[str, str]
) -> Iterator[tuple[str | None, str | None, int]]:
    """Return the file, the line number and the CRC-32 of every message in a range of a topic.

    Args:
        session: the session that reads.
        connection: the options that identify the TubeMQ cluster.
        topic: the topic to read.
        offsets: the values of ``startingOffsets`` and ``endingOffsets``.
    """
    frame = _read(session, connection, topic, "value binary, attributes map<string,string>", offsets)
    table = frame.select(
        F.col("attributes")[FILE_ATTRIBUTE].alias("file"),
        F.col("attributes")[LINE_ATTRIBUTE].alias("line"),
        F.crc32("value").alias("crc"),
    ).toArrow()
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def read_counts(
    session: SparkSession, connection: Mapping[str, str], topic: str, offsets: tuple[str, str]
) -> dict[WordKey, int]:
    """Return the highest count of every word in a range of a topic; arguments as for ``read_lines``."""
    frame = _read(session, connection, topic, "value binary", offsets)
    results = frame.select(F.from_json(F.col("value").cast("string"), _RESULT_SCHEMA).alias("result"))
    table = (
        results.select("result.*").groupBy("extension", "word").agg(F.max("count").alias("count")).toArrow()
    )
    columns = (column.to_pylist() for column in table.columns)
    return {(extension, word): count for extension, word, count in zip(*columns, strict=True)}


def cause_of(error: Exception) -> str:
    """Return the most telling line of a Spark error: the text of our own error if it has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line[line.index("[TUBEMQ_") :] for line in lines if "[TUBEMQ_" in line]
    return ours[-1] if ours else next(iter(lines), type(error).__name__)


def _read(
    session: SparkSession, connection: Mapping[str, str], topic: str, schema: str, offsets: tuple[str, str]
) -> DataFrame:
    return (
        session.read.format("tubemq")
        .schema(schema)
        .options(**connection)
        .option("subscribe", topic)
        .option("startingOffsets", offsets[0])
        .option("endingOffsets", offsets[1])
        .load()
    )


def _count_words(lines: DataFrame) -> DataFrame:
    # ISO-8859-1 maps every byte to a character, so bytes that are not UTF-8 cannot change words.
    text = F.decode("value", "ISO-8859-1")
    words = lines.select(
        F.col("messageType").alias("extension"),
        F.explode(F.regexp_extract_all(text, F.lit(WORD_PATTERN), F.lit(0))).alias("word"),
    )
    return words.groupBy("extension", F.lower("word").alias("word")).count()


def _as_messages(counts: DataFrame) -> DataFrame:
    return counts.select(
        F.to_json(F.struct("extension", "word", "count")).alias("value"),
        F.concat_ws("/", "extension", "word").alias("key"),
        F.col("extension").alias("messageType"),
    )
