"""Read one hour of a topic again, and write its corrected rows to another topic.

A batch read with a range disturbs no stream: it moves no position. Producers say of which minute a
message is. With timestampSearch=exact the range has exactly the messages of these minutes, in any order;
without it, a few looks find the range, as far as message times rise.
"""

import datetime
import os
import sys

from pyspark.sql import SparkSession, functions as F

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

DAY = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Fill three hours, and correct the second one."""
    spark = SparkSession.builder.getOrCreate()
    send_a_morning(master)
    hour = (
        spark.read.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("subscribe", "prices")
        .option("startingTimestamp", milliseconds(9))
        .option("endingTimestamp", milliseconds(10))
        .option("timestampSearch", "exact")
        .load()
    )
    prices = hour.select("timestamp", F.col("value").cast("string").cast("int").alias("cents"))
    corrected = prices.select("timestamp", (F.col("cents") * 100).cast("string").alias("value"))
    (
        corrected.write.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("topic", "corrected")
        .mode("append")
        .save()
    )
    with TubeMQClient.connect(master) as client:
        found = sorted((record.message_time, record.value.decode()) for record in client.read("corrected"))
    print("from", *found[0], "to", *found[-1])
    print("rows:", len(found))


def milliseconds(hour: int) -> int:
    """Return an hour of the day as options take it."""
    return int((DAY + datetime.timedelta(hours=hour)).timestamp() * 1000)


def send_a_morning(master: str) -> None:
    """Write a price each minute from eight to eleven."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for number in range(180):
            minute = DAY + datetime.timedelta(hours=8, minutes=number)
            producer.send("prices", str(number).encode(), message_time=f"{minute:%Y%m%d%H%M}")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topics
        main(sys.argv[1])
    else:
        topics = dict.fromkeys(["prices", "corrected"], (2, 1))  # two stores of one partition each
        with EmbeddedTubeMQ(topics=topics) as server:
            main(server.master)
