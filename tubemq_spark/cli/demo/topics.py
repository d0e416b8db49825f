"""The demo's use of TubeMQ without Spark: where the topics end, and publishing."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tubemq_spark.cli.demo.check import Truth
from tubemq_spark.cli.demo.input import InputFile
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import OptionError, RpcError
from tubemq_spark.model import StoreId, TopicPartition, rows_between
from tubemq_spark.offsets.notation import write_offsets
from tubemq_spark.protocol.errcodes import ErrCode

FILE_ATTRIBUTE: Final = "file"
LINE_ATTRIBUTE: Final = "line"

_NO_SUCH_TOPIC: Final = ErrCode.TOPIC_NOT_DEPLOYED


@dataclasses.dataclass(frozen=True, slots=True)
class TopicEnds:
    """Where the partitions of topics end at one moment."""

    ends: Mapping[TopicPartition, int]

    def of(self, topic: str) -> "TopicEnds":
        """Return the ends of one of the topics."""
        return TopicEnds({partition: end for partition, end in self.ends.items() if partition.topic == topic})

    def as_option(self) -> str:
        """Return them in the form of ``startingOffsets`` and ``endingOffsets``."""
        return json.dumps(write_offsets(self.ends))

    def rows_since(self, earlier: "TopicEnds") -> int:
        """Return how many messages were added since, by store: partitions of a store share offsets."""
        before, after = earlier.by_store(), self.by_store()
        return sum(rows_between(before.get(store, 0), end) for store, end in after.items())

    def by_store(self) -> dict[StoreId, int]:
        """Return the end of every store."""
        return {partition.store_id: end for partition, end in self.ends.items()}


def topic_ends(cluster: Cluster, topics: Sequence[str]) -> TopicEnds:
    """Ask TubeMQ where topics end.

    Raises:
        OptionError: one of them does not exist; the text says how to create it.
        RpcError: TubeMQ refuses to answer.
        TubeMQConnectionError: it cannot be reached.
    """
    ends: dict[TopicPartition, int] = {}
    for topic in topics:
        try:
            layout = cluster.layout([topic])
        except RpcError as error:
            if error.code == _NO_SUCH_TOPIC:
                raise OptionError("TUBEMQ_DEMO_NO_TOPIC", topic=topic) from error
            raise
        if not layout.partitions:
            raise OptionError("TUBEMQ_DEMO_NO_TOPIC", topic=topic)
        bounds = cluster.bounds(layout).complete()
        ends |= {partition: bounds[partition.store_id].latest for partition in layout.partitions}
    return TopicEnds(ends)


def publish(
    producer: Producer, topic: str, files: Sequence[InputFile], truth: Truth, advance: Callable[[int], None]
) -> None:
    """Send every line of the files as a message and record it in ``truth``.

    Args:
        producer: the producer, which is flushed but not closed.
        topic: the topic to publish to.
        files: the files to publish.
        truth: records every line.
        advance: called with the number of lines sent, every few thousand.

    Raises:
        ProduceError: a message could not be stored.
    """
    for file in files:
        for lines in file.chunks():
            first = truth.add(file.name, file.extension, lines)
            for number, line in enumerate(lines, first):
                attributes = {FILE_ATTRIBUTE: file.name, LINE_ATTRIBUTE: str(number)}
                producer.send(topic, line, attributes=attributes, message_type=file.extension)
            advance(len(lines))
    producer.flush()
