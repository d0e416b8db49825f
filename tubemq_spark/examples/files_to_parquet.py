"""Files to TubeMQ to Parquet, each line exactly once, although a job is killed on the way.

Three things do it: the writing job keeps manifests (``receiptsPath``), so a micro-batch that is known to be
stored is not sent again; each row has an id, so that those which are sent again are recognised; and Parquet
files of a micro-batch that is repeated count once.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession, functions as F

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Write, be killed at the worst moment, write again, read, and count."""
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "incoming").mkdir()
        (folder / "incoming" / "first.txt").write_text("".join(f"line {number}\n" for number in range(100)))
        write(spark, master, folder)
        forget_the_end(folder)
        write(spark, master, folder)
        read(spark, master, folder)

        with TubeMQClient.connect(master) as client:
            print(
                "messages in the topic, which has the lines of the killed job twice:",
                sum(1 for _ in client.read("lines")),
            )
        lines = spark.read.parquet(str(folder / "lines"))
        print("rows in Parquet:", lines.count())
        print("different rows:", lines.distinct().count())


def write(spark: SparkSession, master: str, folder: Path) -> None:
    """Send the files that are new."""
    query = (
        spark.readStream.text(str(folder / "incoming"))
        .writeStream.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("topic", "lines")
        .option("receiptsPath", str(folder / "receipts"))
        .option("checkpointLocation", str(folder / "writing"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_the_end(folder: Path) -> None:
    """Leave the files as a kill does when everything was stored, before that was written down."""
    for file in [*(folder / "writing" / "commits").iterdir(), *(folder / "receipts").iterdir()]:
        file.unlink()


def read(spark: SparkSession, master: str, folder: Path) -> None:
    """Store what is in the topic as Parquet, without what came twice."""
    stored = (
        spark.readStream.format("tubemq")
        .schema("value binary, messageUid string")  # the columns that are needed
        .option("tubemq.master.servers", master)
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
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
        .option("path", str(folder / "lines"))
        .option("checkpointLocation", str(folder / "reading"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"lines": (2, 1)}) as server:  # two stores of one partition each
            main(server.master)
