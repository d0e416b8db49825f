"""Tail a topic: show each message as it comes, and nothing that was there before.

No Spark. An assigned consumer of a group of its own sees all partitions, and disturbs no other consumer.
"""

import sys
import threading

from tubemq_spark.client import AssignedConsumer, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ


def main(master: str) -> None:
    """Tail until three messages came."""
    with TubeMQClient.connect(master, group="tail") as client:
        send(master, "an old one")
        settings = ConsumerConfig(consume_position=ConsumePosition.LATEST)
        with client.assigned_consumer("clicks", settings=settings) as consumer:
            for partition in consumer.partitions():
                consumer.connect(partition)
            writer = threading.Thread(target=send, args=(master, "home", "prices", "cart"))
            writer.start()
            show(consumer, 3)
            writer.join()


def show(consumer: AssignedConsumer, count: int) -> None:
    """Print the next messages; without a count this would be a loop without end."""
    while count > 0:
        batch = consumer.fetch()
        if batch is None:  # nothing came for a while
            continue
        for record in batch:
            print(f"{record.partition} {record.value.decode()}")
        count -= len(batch)
        consumer.confirm(batch)


def send(master: str, *pages: str) -> None:
    """Write to the topic, as another program would."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for page in pages:
            producer.send("clicks", page.encode())


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"clicks": (2, 1)}) as server:  # two stores of one partition each
            main(server.master)
