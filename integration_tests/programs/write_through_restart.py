"""A batch write and a stream write at the same time, for a test that restarts their broker meanwhile.

usage: write_through_restart.py MASTER BATCH_TOPIC STREAM_TOPIC FOLDER ROWS

At the end it reads both topics and prints as JSON, for each, how many rows there are, how many different
ones, and the lowest and the highest.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

VALUE_BYTES = 100
FILES = 8
FILES_PER_TRIGGER = 2


def session(folder: Path) -> SparkSession:
    """Start Spark with a thread for each of the two jobs' tasks."""
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def numbers(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    """Return numbers as texts of one length."""
    return spark.range(0, rows, numPartitions=tasks).selectExpr(
        f"lpad(cast(id as string), {VALUE_BYTES}, '0') as value"
    )


def start_stream(spark: SparkSession, master: str, topic: str, folder: Path) -> StreamingQuery:
    """Write the files to a topic, a few in a micro-batch."""
    return (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", FILES_PER_TRIGGER)
        .parquet(str(folder / "numbers"))
        .writeStream.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("topic", topic)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def what_is_there(spark: SparkSession, master: str, topic: str) -> list[int]:
    """Return a topic's rows, different rows, lowest and highest."""
    stored = (
        spark.read.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("tubemq.group", "it_restart")
        .option("subscribe", topic)
        .schema("value binary")
        .load()
        .selectExpr("cast(cast(value as string) as long) as number")
    )
    return list(
        stored.selectExpr("count(number)", "count(distinct number)", "min(number)", "max(number)").head()
    )


def main(master: str, batch_topic: str, stream_topic: str, folder: Path, rows: int) -> None:
    """Write both topics, then read them."""
    spark = session(folder)
    numbers(spark, rows, FILES).write.parquet(str(folder / "numbers"))
    query = start_stream(spark, master, stream_topic, folder)
    batch = numbers(spark, rows, 2).write.format("tubemq").option("tubemq.master.servers", master)
    batch.option("topic", batch_topic).mode("append").save()
    query.awaitTermination()
    print(json.dumps({topic: what_is_there(spark, master, topic) for topic in (batch_topic, stream_topic)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))
