"""Join two topics: orders with their payments, which come within ten minutes, to a third topic.

Both sides have times of their own in their values. The watermarks say for how long Spark keeps rows that
have found no partner yet.
"""

import json

from local import check, folder, spark, tubemq
from pyspark.sql import DataFrame, SparkSession, functions as F

from tubemq_spark.client import TubeMQClient

ORDERS = [("a1", "10:00", 30), ("a2", "10:01", 12), ("a3", "10:02", 7)]
PAYMENTS = [("a1", "10:04", 30), ("a3", "10:03", 7)]


def main() -> None:
    """Send both, join them, and show what was paid."""
    with tubemq("orders", "payments", "paid") as master, spark() as session, folder() as place:
        send(master, "orders", ORDERS)
        send(master, "payments", PAYMENTS)
        orders = events(session, master, "orders").withWatermark("time", "10 minutes").alias("o")
        payments = events(session, master, "payments").withWatermark("time", "10 minutes").alias("p")
        in_time = F.expr("p.time between o.time and o.time + interval 10 minutes")
        paid = orders.join(payments, (F.col("o.id") == F.col("p.id")) & in_time)
        query = (
            paid.select(F.col("o.id").alias("key"), F.to_json(F.struct("o.id", "p.euros")).alias("value"))
            .writeStream.format("tubemq")
            .options(**{"tubemq.master.servers": master}, topic="paid")
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        with TubeMQClient.connect(master) as client:
            found = sorted(record.value.decode() for record in client.read("paid"))
        print(*found, sep="\n")
        check("orders paid", len(found), 2)


def events(session: SparkSession, master: str, topic: str) -> DataFrame:
    """Return a stream of a topic's events."""
    return (
        session.readStream.format("tubemq")
        .schema("value binary")
        .options(**{"tubemq.master.servers": master}, subscribe=topic, startingOffsets="earliest")
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
    main()
