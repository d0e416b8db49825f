"""The two systems that are compared, how Spark reads from them, and their equal messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

SIZES: Final[Mapping[str, int]] = {"100 B": 100, "1 KiB": 1024}
ATTRIBUTE_VALUES: Final = 4
"""How many distinct attributes, or headers, there are."""
SMALL: Final = 4
"""The smaller of two sizes is this part of the larger one."""
ONE_TOPIC: Final = "bench_one"
"""Holds one message."""
LIVE_TOPIC: Final = "bench_live"
"""Gets messages while queries read it."""
STEADY_TOPIC: Final = "bench_steady"
"""Gets messages at a steady pace while a query reads it."""

OURS: Final = "ours"
KAFKA: Final = "Kafka's"
"""Filled by a producer with its default of 16 KiB for a batch."""
LARGE: Final = "Kafka's, 256 KiB"
"""Filled by a producer that is set for throughput; such batches cost their reader half as much."""
ANY: Final = "any Python source"
"""A Python data source that does nothing: what Spark takes for any of them."""


@dataclass(frozen=True)
class System:
    """A source of rows, and how Spark reads from it."""

    name: str
    format: str
    options: Mapping[str, str]
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The options that bring attributes, or headers."""
    partition: str = ""
    """Its first partition, as offsets in JSON name it."""
    offset_step: int = 1
    """How much an offset grows with a message."""
    projects: bool = True
    """Whether the user's schema chooses the columns."""
    suffix: str = ""
    """What the names of its large topics end in."""
    writing: Mapping[str, str] = field(default_factory=dict)
    """More options for writing."""

    def batch(
        self,
        spark: SparkSession,
        topic: str,
        *,
        first: int = 0,
        attributes: bool = False,
        value_only: bool = False,
    ) -> DataFrame:
        """Return a frame of a topic's rows from the one with number ``first`` on."""
        reader = spark.read.format(self.format).options(**self._from(topic, first, attributes=attributes))
        if value_only and self.projects:
            return reader.schema("value binary").load()
        return reader.load().select("value") if value_only else reader.load()

    def stream(
        self, spark: SparkSession, topic: str, *, first: int | None = 0, rows_per_batch: int | None = None
    ) -> DataFrame:
        """Return a stream from the row with number ``first`` on; with None, of rows that are new."""
        reader = spark.readStream.format(self.format)
        if first is None:
            return reader.options(**self.options, subscribe=topic).load()
        limit = {} if rows_per_batch is None else {"maxOffsetsPerTrigger": str(rows_per_batch)}
        return reader.options(**self._from(topic, first), **limit).load()

    def write(self, frame: DataFrame, topic: str, **options: str) -> None:
        """Write a frame to a topic."""
        writer = frame.write.format(self.format).options(
            **self.options, **self.writing, topic=topic, **options
        )
        writer.mode("append").save()

    def _from(self, topic: str, first: int, *, attributes: bool = False) -> dict[str, str]:
        starting = json.dumps({topic: {self.partition: first * self.offset_step}})
        extra = self.attributes if attributes else {}
        return {**self.options, **extra, "subscribe": topic, "startingOffsets": starting}


def tubemq(master: str) -> System:
    """Return ours."""
    return System(
        name=OURS,
        format="tubemq",
        options={"tubemq.master.servers": master},
        attributes={"includeAttributes": "true"},
        partition="1:0",
        offset_step=28,
    )


def kafka(address: str) -> System:
    """Return Kafka with Spark's own connector."""
    return System(
        name=KAFKA,
        format="kafka",
        options={"kafka.bootstrap.servers": address},
        attributes={"includeHeaders": "true"},
        partition="0",
        projects=False,
    )


def kafka_large(address: str) -> System:
    """Return Kafka with messages in large batches."""
    writing = {"kafka.batch.size": str(256 << 10), "kafka.linger.ms": "200"}
    return replace(kafka(address), name=LARGE, suffix="_large", writing=writing)


def topic_of(label: str, *, attributes: bool = False) -> str:
    """Return the name of the topic with messages of one size; a system may add its suffix."""
    return f"bench_{SIZES[label]}{'_attributes' if attributes else ''}"


def fill(spark: SparkSession, ours: System, theirs: Sequence[System], label: str, rows: int) -> None:
    """Write the same messages to all, with a few distinct attributes and without any but the time's."""
    size = SIZES[label]
    values = spark.range(0, rows, numPartitions=1).selectExpr(
        f"cast(rpad(lpad(cast(id as string), 12, '0'), {size}, 'x') as binary) as value",
        f"concat('v', cast(id * {ATTRIBUTE_VALUES} div {rows} as string)) as kind",
    )
    for attributes in (False, True):
        topic = topic_of(label, attributes=attributes)
        ours.write(values.selectExpr("value", *["map('kind', kind) as attributes"] * attributes), topic)
        header = "array(struct('kind' as key, cast(kind as binary) as value)) as headers"
        columns = values.selectExpr("value", *[header] * attributes)
        for system in theirs:
            system.write(columns, topic + system.suffix, includeHeaders=str(attributes).lower())
        for system in (ours, *theirs):
            _require_rows(system, spark, topic + system.suffix, rows)


def fill_one(spark: SparkSession, ours: System, theirs: System) -> None:
    """Write one message to each of the topics that hold no more at first."""
    for topic in (ONE_TOPIC, LIVE_TOPIC, STEADY_TOPIC):
        for system in (ours, theirs):
            system.write(spark.range(1).selectExpr("cast('0' as binary) as value"), topic)
            _require_rows(system, spark, topic, 1)


def started(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    """Start a query with a checkpoint."""
    return writer.option("checkpointLocation", checkpoint).start()


def _require_rows(system: System, spark: SparkSession, topic: str, rows: int) -> None:
    count = system.batch(spark, topic).count()
    if count != rows:
        raise RuntimeError(f"{system.name} {topic} holds {count} messages, and {rows} were written")
