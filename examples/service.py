"""A service without Spark: take orders from a topic, answer each in another topic, and lose none.

A batch of orders is confirmed when all of its answers are stored. If the service is killed in between, the
orders come again, to it or to another member of the group, and are answered twice. So an answer names its
order, by which a reader of answers can tell.
"""

import json

from local import check, tubemq

from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient

PRICES = {"book": 12, "pen": 2}


def main() -> None:
    """Serve until all orders are answered, and show the answers."""
    with tubemq("orders", "answers") as master:
        order(master, ("anna", "book"), ("ben", "pen"), ("anna", "lamp"))
        serve(master, orders=3)
        with TubeMQClient.connect(master) as client:
            answers = sorted(record.value.decode() for record in client.read("answers"))
        print(*answers, sep="\n")
        check("orders answered", len(answers), 3)


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
    """Return what to answer."""
    wanted = json.loads(order)
    price = PRICES.get(wanted["item"])
    return json.dumps({**wanted, "price": price} if price else {**wanted, "refused": "no such item"}).encode()


def order(master: str, *orders: tuple[str, str]) -> None:
    """Place the orders of some customers."""
    with TubeMQClient.connect(master) as client, client.producer() as producer:
        for customer, item in orders:
            producer.send("orders", json.dumps({"customer": customer, "item": item}).encode())


if __name__ == "__main__":
    main()
