"""Rows that cannot be written go to a topic of their own with the reason, and the others are written."""

from local import check, spark, tubemq

from tubemq_spark.client import TubeMQClient


def main() -> None:
    """Write five rows, two of which cannot be, and show both topics."""
    with tubemq("orders", "orders_dead") as master, spark() as session:
        rows = session.createDataFrame(
            [
                ("a1", "1 book", "orders"),
                ("a2", None, "orders"),  # TubeMQ has no messages without a body
                ("a3", "2 pens", "orders"),
                ("a4", "1 lamp", "ordres"),  # there is no such topic
                ("a5", "3 books", "orders"),
            ],
            "key string, value string, topic string",
        )
        rows.write.format("tubemq").options(
            **{"tubemq.master.servers": master}, onError="deadLetter", deadLetterTopic="orders_dead"
        ).mode("append").save()

        with TubeMQClient.connect(master) as client:
            written = sorted(record.value.decode() for record in client.read("orders"))
            dead = [record.attributes or {} for record in client.read("orders_dead")]
        print("written:", *written, sep="\n  ")
        print("dead letters:")
        for attributes in sorted(dead, key=lambda each: each["deadLetterKey"]):
            print(f"  {attributes['deadLetterCondition']} for {attributes['deadLetterTopic']}")
        check("rows written", len(written), 3)
        check("dead letters", len(dead), 2)


if __name__ == "__main__":
    main()
