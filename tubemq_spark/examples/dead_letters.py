"""Rows that cannot be written go to a topic of their own with the reason, and the others are written."""

import os
import sys

from pyspark.sql import SparkSession

from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the PATH's python3


def main(master: str) -> None:
    """Write five rows, two of which cannot be, and show both topics."""
    spark = SparkSession.builder.getOrCreate()
    rows = spark.createDataFrame(
        [
            ("a1", "1 book", "orders"),
            ("a2", None, "orders"),  # TubeMQ has no messages without a body
            ("a3", "2 pens", "orders"),
            ("a4", "1 lamp", "ordres"),  # there is no such topic
            ("a5", "3 books", "orders"),
        ],
        "key string, value string, topic string",
    )
    (
        rows.write.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("onError", "deadLetter")
        .option("deadLetterTopic", "orders_dead")
        .mode("append")
        .save()
    )
    with TubeMQClient.connect(master) as client:
        written = sorted(record.value.decode() for record in client.read("orders"))
        dead = [record.attributes or {} for record in client.read("orders_dead")]
    print("written:", *written, sep="\n  ")
    print("dead letters:")
    for attributes in sorted(dead, key=lambda each: each["deadLetterKey"]):
        print(f"  {attributes['deadLetterCondition']} for {attributes['deadLetterTopic']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topics
        main(sys.argv[1])
    else:
        topics = dict.fromkeys(["orders", "orders_dead"], (2, 1))  # two stores of one partition each
        with EmbeddedTubeMQ(topics=topics) as server:
            main(server.master)
