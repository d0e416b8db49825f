"""A service without Spark: take orders from a topic, answer each in another topic, and lose none.

A batch of orders is confirmed when all of its answers are stored. If the service is killed in between, the
orders come again, to it or to another member of the group, and are answered twice. So an answer names its
order, by which a reader of answers can tell.
"""

import json
import sys

from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

PRICES = {"book": 12, "pen": 2}


def main(master: str) -> None:
    """Serve until all orders are answered, and show the answers."""
    order(master, ("anna", "book"), ("ben", "pen"), ("anna", "lamp"))
    serve(master, orders=3)
    with TubeMQClient.connect(master) as client:
        answers = sorted(record.value.decode() for record in client.read("answers"))
    print(*answers, sep="\n")
    print("orders answered:", len(answers))


def serve(master: str, orders: int) -> None:
    """Answer so many orders; a service in earnest would go on until it is told to stop."""
    settings = ConsumerConfig(consume_position=ConsumePosition.FIRST)
    with (
        TubeMQClient.connect(master, group="shop") as client,
        client.producer() as producer,
        client.group_consumer("orders", settings=settings) as consumer,
    ):
        while orders > 0:
            batch = consumer.fetch()
            if batch is None:  # nothing came for a while
                continue
            for record in batch:
                producer.send("answers", answer(record.value), key=record.value)
            producer.flush()
            consumer.confirm(batch)
            orders -= len(batch)


def answer(order: bytes) -> bytes:
    """Return the answer to an order."""
    wanted = json.loads(order)
    price = PRICES.get(wanted["item"])
    return json.dumps({**wanted, "price": price} if price else {**wanted, "refused": "no such item"}).encode()


def order(master: str, *orders: tuple[str, str]) -> None:
    """Place the orders of some customers."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for customer, item in orders:
            producer.send("orders", json.dumps({"customer": customer, "item": item}).encode())


if __name__ == "__main__":
    if len(sys.argv) > 1:  # the address of a master, whose cluster has the topics
        main(sys.argv[1])
    else:
        topics = dict.fromkeys(["orders", "answers"], (2, 1))  # two stores of one partition each
        with EmbeddedTubeMQ(topics=topics) as server:
            main(server.master)
