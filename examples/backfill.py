"""Read one hour of a topic again, and write its corrected rows to another topic.

A batch read with a range disturbs no stream: it moves no position. Producers say of which minute a
message is. The range has exactly the messages of these minutes, in whatever order they were written, because
of timestampSearch=exact; without it, it is found by a few looks, as far as message times rise.
"""

import datetime

from local import check, spark, tubemq
from pyspark.sql import functions as F

from tubemq_spark.client import TubeMQClient

DAY = datetime.datetime(2026, 1, 5, tzinfo=datetime.UTC)


def main() -> None:
    """Fill three hours, and correct the second one."""
    with tubemq("prices", "corrected") as master, spark() as session:
        send_a_morning(master)
        connection = {"tubemq.master.servers": master}
        hour = session.read.format("tubemq").options(
            **connection,
            subscribe="prices",
            startingTimestamp=milliseconds(9),
            endingTimestamp=milliseconds(10),
            timestampSearch="exact",
        )
        prices = hour.load().select("timestamp", F.col("value").cast("string").cast("int").alias("cents"))
        corrected = prices.select("timestamp", (F.col("cents") * 100).cast("string").alias("value"))
        corrected.write.format("tubemq").options(**connection, topic="corrected").mode("append").save()

        with TubeMQClient.connect(master) as client:
            found = sorted(
                (record.message_time, record.value.decode()) for record in client.read("corrected")
            )
        print("from", *found[0], "to", *found[-1])
        check("rows", len(found), 60)


def milliseconds(hour: int) -> str:
    """Return an hour of the day as options take it."""
    return str(int((DAY + datetime.timedelta(hours=hour)).timestamp() * 1000))


def send_a_morning(master: str) -> None:
    """Write a price each minute from eight to eleven."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for number in range(180):
            minute = DAY + datetime.timedelta(hours=8, minutes=number)
            producer.send("prices", str(number).encode(), message_time=f"{minute:%Y%m%d%H%M}")


if __name__ == "__main__":
    main()
