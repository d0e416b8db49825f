"""Write docs/client/coming-from-kafka-clients.md from the table of other names; a unit test compares them."""

from collections.abc import Iterable
from pathlib import Path

from tubemq_spark.client.names.arguments import ARGUMENTS, SETTINGS
from tubemq_spark.client.names.attributes import ATTRIBUTES
from tubemq_spark.client.names.others import OtherName

PAGE = Path(__file__).resolve().parents[1] / "docs" / "client" / "coming-from-kafka-clients.md"

INTRODUCTION = """\
# Coming from confluent-kafka, kafka-python or aiokafka

<!-- Written by `make docs` from tubemq_spark/client/names. -->

```python
from tubemq_spark import TubeMQClient

with TubeMQClient.connect("127.0.0.1:8715", group="my_job") as client:
    with client.producer() as producer:
        producer.send("letters", "Dear reader", key="anna")
    with client.group_consumer("letters", consume_position="first") as consumer:
        while (batch := consumer.fetch(timeout_ms=60_000)) is not None:
            print([record.text() for record in batch])
            consumer.confirm(batch)
```

The loop ends when nothing has come for a minute. One client has the connections and the group; producers
and consumers are made from it. For Spark's Kafka source there is
[a page of its own](../spark/coming-from-kafka.md).

**What is alike.** `send` returns a future, and takes a callback. Equal keys go to the same partition. A
group shares the partitions of its topics among its members, and servers keep its positions. What was not
confirmed comes again. `seek`, `pause`, `resume`, `committed` and `lag` are there.
`AsyncTubeMQClient` has the same for asyncio.

**What is different.**

- A batch is of one partition, and [is confirmed as a whole](group-consumer.md). There is no commit of an
  offset by its number: `seek` moves a consumer, and its group's position with it.
- A member has one batch of a partition at a time. Confirm it within `confirm_timeout_ms`, a minute unless
  set; after that it counts as not consumed. Any number of threads may share a consumer.
- A consumer's topics are fixed when it is created, and all members of a group have the same ones. There are
  no patterns.
- A new group begins [behind the last message](which-consumer.md#where-a-consumer-begins), unless
  `consume_position` says otherwise. A new member gets its first partitions with the master's next
  balancing, up to a minute later.
- Offsets count bytes of an index, 28 per message. A partition is `topic/brokerId:partitionId`.
- Keys choose partitions, and are not stored. A message has `attributes` in place of headers, a mapping of
  texts.
- A message has the time that its producer gave it, [to the minute](producer.md#message-times).
- Values are bytes, at least one, or text, which is written as UTF-8. TubeMQ does not compress messages.
- There are no transactions and no idempotent producers: a message that was sent again may be stored twice,
  and `may_be_repeated` of its result says so.

Using a name of those clients is an error that says what to use here:

```text
AttributeError: 'Producer' object has no attribute 'produce'. Use send(topic, value).
TypeError: Producer.send() got an unexpected keyword argument 'headers'. Use attributes, a mapping of texts.
```
"""

METHODS = """
## Methods and attributes

What holds for a class holds for its form for asyncio, whose name begins with `Async`.

| elsewhere | of | here |
|---|---|---|
"""

KEYWORDS = """
## Settings and arguments

*A setting* is an argument of `TubeMQClient.connect`, of a client's `producer`, `group_consumer` and
`assigned_consumer`, of `ClientConfig` or of `ConsumerConfig`.

| elsewhere | of | here |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return f"{INTRODUCTION}{METHODS}{_table(ATTRIBUTES)}{KEYWORDS}{_table(ARGUMENTS)}"


def _table(rows: Iterable[OtherName]) -> str:
    return "".join(f"| {_code(row.names)} | {_places(row)} | {row.answer} |\n" for row in rows)


def _places(row: OtherName) -> str:
    return "a setting" if row.places == SETTINGS else _code(row.places)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
