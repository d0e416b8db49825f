"""Copy the last 1,000 messages of each partition of a topic to another topic, without Spark."""

import sys

from tubemq_spark import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ


def main(master: str) -> None:
    """Copy them with their types and times."""
    with TubeMQClient.connect(master) as client:
        send(client)
        with client.producer() as producer:  # its end waits until all are stored
            for record in client.read("orders", last=1_000):
                attributes = (record.attributes or {}).items()
                producer.send(
                    "trial",
                    record.value,
                    # TubeMQ's own have a $, and are given as type and time.
                    attributes={name: text for name, text in attributes if "$" not in name},
                    message_type=record.message_type,
                    message_time=record.message_time,
                )
        for topic in ("orders", "trial"):
            print(topic, sum((end - begin) // 28 for begin, end in client.offsets(topic).values()))
        print("sold in:", {(record.attributes or {}).get("shop") for record in client.read("trial")})


def send(client: TubeMQClient) -> None:
    """Write to the first topic, as another program would."""
    with client.producer() as producer:
        for number in range(3_000):
            producer.send("orders", f"order {number}", attributes={"shop": "web"}, message_type="book")


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topics
        main(sys.argv[1])
    else:
        with EmbeddedTubeMQ(topics={"orders": (2, 1), "trial": (1, 1)}) as server:
            main(server.master)
