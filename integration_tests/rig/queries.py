"""The Spark queries that tests have in common."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from integration_tests.rig.servers import Server
from tubemq_spark.errors import CONDITIONS

Spark = Any
Frame = Any
Query = Any

_SENTENCE: Final = re.compile(r"\[(TUBEMQ_[A-Z_.]+)\] (.+)")
_SPARKS_OWN_END: Final = re.compile(r"(\s*SQLSTATE: \w+)*\s*(=== Streaming Query ===.*)?$", re.DOTALL)
"""What Spark writes below every error of a Python data source: a code, and what the query was."""


def read(spark: Spark, server: Server, topic: str, **options: str) -> Frame:
    """Return a batch read of a topic."""
    return spark.read.format("tubemq").options(**server.options(subscribe=topic, **options)).load()


def numbers(frame: Frame) -> list[int]:
    """Return the values of a frame, which are numbers as text."""
    return [int(row.value) for row in frame.select("value").collect()]


def read_stream(spark: Spark, server: Server, topic: str, **options: str) -> Frame:
    """Return a stream of a topic from its earliest message on, unless the options say otherwise."""
    merged = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("tubemq").options(**server.options(**merged)).load()


def write(frame: Frame, server: Server, **options: str) -> None:
    """Write a frame to TubeMQ."""
    frame.write.format("tubemq").options(**server.options(**options)).mode("append").save()


class Collected:
    """A sink that keeps what each micro-batch brought, in the order they came; replays come again."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        """The number of a micro-batch, and its rows' values as numbers."""

    def __call__(self, frame: Frame, batch: int) -> None:
        """Take a micro-batch, as ``foreachBatch`` hands it over."""
        self.batches.append((batch, numbers(frame)))

    @property
    def rows(self) -> list[int]:
        """All rows of all micro-batches."""
        return [row for _, rows in self.batches for row in rows]


def start(frame: Frame, sink: Any, checkpoint: Path, **trigger: Any) -> Query:
    """Start a query that hands its micro-batches to a function."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start()


def run(frame: Frame, sink: Any, checkpoint: Path) -> Query:
    """Run a query to the end of what is there now."""
    query = start(frame, sink, checkpoint, availableNow=True)
    query.awaitTermination()
    return query


def collected(frame: Frame, checkpoint: Path) -> Collected:
    """Run a query to the end of what is there now, into a sink of its own."""
    sink = Collected()
    run(frame, sink, checkpoint)
    return sink


def progress(query: Query, topic: str, which: str) -> dict[str, int]:
    """Return one of the three offsets of a topic in the query's last progress."""
    (source,) = query.lastProgress["sources"]
    offsets: dict[str, int] = json.loads(source[which])["topics"][topic]
    return offsets


def losses(spark: Spark, ledger: Path | str) -> list[tuple[str, int, int, int | None, str, int | None]]:
    """Return the gaps in a ledger: partition, offsets, rows, reason and number of the micro-batch."""
    view = spark.read.format("tubemq").option("view", "losses").option("lossLedger", str(ledger)).load()
    gaps = [(f"{row.topic}/{row.brokerId}:{row.partition}", *row[3:7], row.batchId) for row in view.collect()]
    return sorted(gaps, key=str)


def to_topic(frame: Frame, checkpoint: Path | str, options: Mapping[str, str]) -> Query:
    """Run a query to the end of what is there now, into TubeMQ."""
    writer = frame.writeStream.format("tubemq").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def to_files(frame: Frame, folder: Path, checkpoint: Path, options: Mapping[str, str] | None = None) -> Query:
    """Run a query to the end of what is there now, into Parquet files."""
    query = (
        frame.writeStream.format("parquet")
        .options(**(options or {}))
        .option("path", str(folder))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def refusal(action: Callable[[], object]) -> tuple[str, str]:
    """Do what must fail; return the condition and the sentence in the last line that Spark shows of it."""
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark has several, and the text is what counts
        action()
    last = _SPARKS_OWN_END.sub("", str(failed.value)).splitlines()[-1]
    match = _SENTENCE.search(last)
    assert match, str(failed.value)
    assert match[1] in CONDITIONS
    return match[1], match[2]
