"""Move a consumer group to yesterday, so that it reads all messages since then again; without Spark."""

import datetime
import sys

from tubemq_spark import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


def main(master: str) -> None:
    """Read all, move the group back, and read what is left."""
    with TubeMQClient.connect(master, group="billing") as client:
        send(client)
        with client.group_consumer("orders", consume_position="first") as consumer:
            consumer.wait_until_ready(60_000)
            print("read:", sorted(record.text() for record in consumer.messages(limit=3)))
            # The only member has all partitions. Stop the others first.
            consumer.seek_to_time(NOW - DAY)
            print("again:", sorted(record.text() for record in consumer.messages(limit=2)))


def send(client: TubeMQClient) -> None:
    """Write to the topic, as another program would have done in the last days."""
    with client.producer() as producer:
        for days, order in ((3, "a1"), (0.9, "a2"), (0, "a3")):
            producer.send("orders", order, message_time=NOW - days * DAY)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"orders": (1, 1)}) as server:
            main(server.master)
