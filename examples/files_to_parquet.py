"""Files to TubeMQ to Parquet, each line exactly once, although a job is killed on the way.

Three things do it: the writing job keeps manifests (``receiptsPath``), so a micro-batch that is known to be
stored is not sent again; each row has an id, so that those which are sent again are recognised; and Parquet
files of a micro-batch that is repeated count once.
"""

from pathlib import Path

from local import check, folder, spark, tubemq
from pyspark.sql import SparkSession, functions as F

from tubemq_spark.client import TubeMQClient


def main() -> None:
    """Write, be killed at the worst moment, write again, read, and count."""
    with tubemq("lines") as master, spark() as session, folder() as place:
        (place / "incoming").mkdir()
        (place / "incoming" / "first.txt").write_text("".join(f"line {number}\n" for number in range(100)))
        write(session, master, place)
        forget_the_end(place)
        write(session, master, place)
        read(session, master, place)

        with TubeMQClient.connect(master) as client:
            check("messages in the topic", sum(1 for _ in client.read("lines")), 200)
        lines = session.read.parquet(str(place / "lines"))
        check("rows in Parquet", lines.count(), 100)
        check("different rows", lines.distinct().count(), 100)


def write(session: SparkSession, master: str, place: Path) -> None:
    """Send the files that are new."""
    query = (
        session.readStream.text(str(place / "incoming"))
        .writeStream.format("tubemq")
        .options(**{"tubemq.master.servers": master}, topic="lines", receiptsPath=str(place / "receipts"))
        .option("checkpointLocation", str(place / "writing"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_the_end(place: Path) -> None:
    """Leave the files as a kill does when everything was stored, before that was written down."""
    for file in [*(place / "writing" / "commits").iterdir(), *(place / "receipts").iterdir()]:
        file.unlink()


def read(session: SparkSession, master: str, place: Path) -> None:
    """Store what is in the topic as Parquet, without what came twice."""
    stored = (
        session.readStream.format("tubemq")
        .schema("value binary, messageUid string")
        .options(**{"tubemq.master.servers": master}, subscribe="lines", startingOffsets="earliest")
        .load()
    )
    # The watermark is on the time of reading, so no row is late. It says how far apart repeats may be.
    once = (
        stored.withColumn("seenAt", F.current_timestamp())
        .withWatermark("seenAt", "1 day")
        .dropDuplicatesWithinWatermark(["messageUid"])
    )
    query = (
        once.select(F.col("value").cast("string").alias("line"))
        .writeStream.format("parquet")
        .option("path", str(place / "lines"))
        .option("checkpointLocation", str(place / "reading"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
