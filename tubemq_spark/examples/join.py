"""Join two topics: orders with their payments, which come within ten minutes, to a third topic.

Both sides have times of their own in their values. The watermarks say for how long Spark keeps rows that
have not found a partner.
"""

import json
import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession, functions as F

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

ORDERS = [("a1", "10:00", 30), ("a2", "10:01", 12), ("a3", "10:02", 7)]
PAYMENTS = [("a1", "10:04", 30), ("a3", "10:03", 7)]

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Send both, join them, and show what was paid."""
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    send(master, "orders", ORDERS)
    send(master, "payments", PAYMENTS)
    orders = events(spark, master, "orders").withWatermark("time", "10 minutes").alias("o")
    payments = events(spark, master, "payments").withWatermark("time", "10 minutes").alias("p")
    in_time = F.expr("p.time between o.time and o.time + interval 10 minutes")
    paid = orders.join(payments, (F.col("o.id") == F.col("p.id")) & in_time)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            paid.select(F.col("o.id").alias("key"), F.to_json(F.struct("o.id", "p.euros")).alias("value"))
            .writeStream.format("tubemq")
            .option("tubemq.master.servers", master)
            .option("topic", "paid")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    with TubeMQClient.connect(master) as client:
        found = sorted(record.value.decode() for record in client.read("paid"))
    print(*found, sep="\n")
    print("orders paid:", len(found))


def events(spark: SparkSession, master: str, topic: str) -> DataFrame:
    """Return a stream of a topic's events."""
    return (
        spark.readStream.format("tubemq")
        .schema("value binary")  # the columns that are needed
        .option("tubemq.master.servers", master)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), "id string, time timestamp, euros int").alias("event")
        )
        .select("event.*")
    )


def send(master: str, topic: str, events: list[tuple[str, str, int]]) -> None:
    """Write events to a topic."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for number, minute, euros in events:
            event = {"id": number, "time": f"2026-01-05T{minute}:00Z", "euros": euros}
            producer.send(topic, json.dumps(event).encode(), key=number.encode())


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topics
        main(sys.argv[1])
    else:
        topics = dict.fromkeys(["orders", "payments", "paid"], (2, 1))  # two stores of one partition each
        with EmbeddedTubeMQ(topics=topics) as server:
            main(server.master)
