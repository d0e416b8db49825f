"""Count words in a stream that is stopped and started again: it resumes, and counts nothing twice."""

from pathlib import Path

from local import check, folder, spark, tubemq
from pyspark.sql import DataFrame, SparkSession, functions as F

from tubemq_spark.client import TubeMQClient


def main() -> None:
    """Count, restart, count, and show the counts."""
    with tubemq("lines") as master, spark() as session, folder() as place:
        send(master, "the log is read", "the log is kept")
        count(session, master, place)
        send(master, "the end")
        count(session, master, place)
        words = session.read.json(str(place / "counts")).orderBy("word").collect()
        for row in words:
            print(row["word"], row["count"])
        check("words", sum(row["count"] for row in words), 10)


def count(session: SparkSession, master: str, place: Path) -> None:
    """Count what is in the topic now. Without the trigger the query would go on."""

    def keep(counts: DataFrame, _: int) -> None:
        counts.coalesce(1).write.mode("overwrite").json(str(place / "counts"))

    lines = (
        session.readStream.format("tubemq")
        .schema("value binary")
        .options(**{"tubemq.master.servers": master}, subscribe="lines", startingOffsets="earliest")
        .load()
    )
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def send(master: str, *lines: str) -> None:
    """Write lines to the topic."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for line in lines:
            producer.send("lines", line.encode())


if __name__ == "__main__":
    main()
