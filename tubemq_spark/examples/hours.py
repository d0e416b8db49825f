"""Count the messages of each hour of the last day, without Spark."""

import collections
import datetime
import sys

from tubemq_spark import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

HOUR = datetime.timedelta(hours=1)
NOW = datetime.datetime.now(datetime.UTC)


def main(master: str) -> None:
    """Count them, and show how long ago each hour was."""
    with TubeMQClient.connect(master) as client:
        send(client)
        hours = collections.Counter[int]()
        for record in client.read("clicks", start=NOW - 24 * HOUR):
            if record.timestamp is not None:
                hours[(NOW - record.timestamp) // HOUR] += 1
        for ago, count in sorted(hours.items(), reverse=True):
            print(f"{ago} hours ago: {count}")


def send(client: TubeMQClient) -> None:
    """Write to the topic, as another program would have done in the last two days."""
    with client.producer() as producer:
        for ago in (40, 20, 20, 2):
            producer.send("clicks", "home", message_time=NOW - ago * HOUR)
        producer.send("clicks", "home")  # its time is now


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"clicks": (2, 1)}) as server:  # two stores of one partition each
            main(server.master)
