"""JSON events as from Kafka: visits per page and five minutes, by the events' own time, without late ones.

But for the format and the name of the servers, the job is one for Spark's Kafka source. A window is written
when the watermark has passed its end: when an event has come that is ten minutes newer.
"""

import json
import os
import sys
import tempfile

from pyspark.sql import SparkSession, functions as F

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Count in two runs: the second one brings a late event and moves the watermark."""
    spark = (
        SparkSession.builder.config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        send(master, ("10:01", "home"), ("10:03", "home"), ("10:04", "prices"), ("10:30", "home"))
        count(spark, master, folder)
        send(master, ("10:02", "home"), ("10:50", "end"))
        count(spark, master, folder)
        windows = spark.read.parquet(f"{folder}/visits").orderBy("from", "page").collect()
        for row in windows:
            print(row["from"], row["page"], row["count"])
        print("visits in time:", sum(row["count"] for row in windows))


def count(spark: SparkSession, master: str, folder: str) -> None:
    """Count what is in the topic now, and store the windows that are over."""
    visits = (
        spark.readStream.format("tubemq")
        .schema("value binary")  # the columns that are needed
        .option("tubemq.master.servers", master)
        .option("subscribe", "visits")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .load()
        .select(F.from_json(F.col("value").cast("string"), "time timestamp, page string").alias("visit"))
        .select("visit.*")
    )
    counts = (
        visits.withWatermark("time", "10 minutes")
        .groupBy(F.window("time", "5 minutes"), "page")
        .count()
        .select(F.date_format("window.start", "HH:mm").alias("from"), "page", "count")
    )
    query = (
        counts.writeStream.format("parquet")
        .option("path", f"{folder}/visits")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def send(master: str, *visits: tuple[str, str]) -> None:
    """Write events to the topic."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for minute, page in visits:
            producer.send("visits", json.dumps({"time": f"2026-01-05T{minute}:00Z", "page": page}).encode())


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"visits": (2, 1)}) as server:  # two stores of one partition each
            main(server.master)
