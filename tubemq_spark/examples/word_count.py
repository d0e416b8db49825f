"""Count words in a stream that is stopped and started again: it resumes, and counts nothing twice."""

import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession, functions as F

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Count, restart, count, and show the counts."""
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        send(master, "the log is read", "the log is kept")
        count(spark, master, folder)
        send(master, "the end")
        count(spark, master, folder)
        words = spark.read.json(f"{folder}/counts").orderBy("word").collect()
        for row in words:
            print(row["word"], row["count"])
        print("words:", sum(row["count"] for row in words))


def count(spark: SparkSession, master: str, folder: str) -> None:
    """Count what is in the topic now. Without the trigger the query would go on."""

    def keep(counts: DataFrame, _: int) -> None:
        counts.coalesce(1).write.mode("overwrite").json(f"{folder}/counts")

    lines = (
        spark.readStream.format("tubemq")
        .schema("value binary")  # the columns that are needed
        .option("tubemq.master.servers", master)
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
        .load()
    )
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", f"{folder}/checkpoint")
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
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"lines": (2, 1)}) as server:  # two stores of one partition each
            main(server.master)
