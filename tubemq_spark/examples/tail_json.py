"""Tail a topic as JSON: show a field of each message as it comes, without Spark."""

import sys

from tubemq_spark import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ


def main(master: str) -> None:
    """Show three messages; without ``limit`` this is a loop without end."""
    with TubeMQClient.connect(master, group="dashboard") as client:
        send(client)
        with client.group_consumer("events", consume_position="first") as consumer:
            for record in consumer.messages(limit=3):
                event = record.json()
                print(record.partition, event["user"], event["action"])


def send(client: TubeMQClient) -> None:
    """Write to the topic, as another program would."""
    with client.producer() as producer:
        for user, action in (("anna", "login"), ("ben", "login"), ("anna", "order")):
            producer.send("events", f'{{"user": "{user}", "action": "{action}"}}', key=user)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topic
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"events": (1, 1)}) as server:
            main(server.master)
