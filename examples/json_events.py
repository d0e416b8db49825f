"""JSON events as from Kafka: visits per page and five minutes, by the events' own time, without late ones.

But for the format and the name of the servers, the job is one for Spark's Kafka source. A window is written
when the watermark has passed its end: when an event has come that is ten minutes newer.
"""

import json
from pathlib import Path

from local import check, folder, spark, tubemq
from pyspark.sql import SparkSession, functions as F

from tubemq_spark.client import TubeMQClient


def main() -> None:
    """Count in two runs: the second one brings a late event and moves the watermark."""
    with tubemq("visits") as master, spark() as session, folder() as place:
        send(master, ("10:01", "home"), ("10:03", "home"), ("10:04", "prices"), ("10:30", "home"))
        count(session, master, place)
        send(master, ("10:02", "home"), ("10:50", "end"))
        count(session, master, place)
        windows = session.read.parquet(str(place / "visits")).orderBy("from", "page").collect()
        for row in windows:
            print(row["from"], row["page"], row["count"])
        check("visits in time", sum(row["count"] for row in windows), 4)


def count(session: SparkSession, master: str, place: Path) -> None:
    """Count what is in the topic now, and store the windows that are over."""
    visits = (
        session.readStream.format("tubemq")
        .schema("value binary")
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
        .option("path", str(place / "visits"))
        .option("checkpointLocation", str(place / "checkpoint"))
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
    main()
