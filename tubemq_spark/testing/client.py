"""Sending messages to topics and reading topics, for tests of jobs."""

from typing import Self, TypedDict, Unpack

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.cluster.direct import DirectCluster
from tubemq_spark.model import Endpoint, Message, OffsetRange
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.offsets.loss import fail_on_loss


class MessageFields(TypedDict, total=False):
    """The optional fields of a message; see ``Producer.send``."""

    attributes: dict[str, str]
    message_type: str
    message_time: str
    key: bytes
    partition: tuple[int, int]


class TopicClient:
    """Sends and reads whole topics; a context manager, for use by one thread."""

    def __init__(self, master: str, group: str) -> None:
        """Create a client; it does not connect yet.

        Raises:
            OptionError: the address or the group is not valid.
        """
        self._pool = ChannelPool()
        self._cluster = DirectCluster(ClientConfig((Endpoint.parse(master),), group).validate(), self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def send(self, topic: str, *values: bytes | str, **fields: Unpack[MessageFields]) -> None:
        """Send messages, in order if the topic has one partition; text is encoded as UTF-8.

        Raises:
            ProduceError: a message could not be stored.
            TubeMQConnectionError: the master does not answer.
        """
        with self._cluster.sender() as producer:
            for value in values:
                producer.send(topic, value.encode() if isinstance(value, str) else value, **fields)

    def messages(self, topic: str) -> list[Message]:
        """Return the messages of a topic, partition by partition, each in order.

        Raises:
            RpcError: there is no such topic.
            DataLossError: messages are missing or damaged.
        """
        layout = self._cluster.layout([topic])
        bounds = self._cluster.bounds(layout).complete()
        found: list[Message] = []
        for partition in sorted(layout.partitions):
            held = bounds[partition.store_id]
            request = layout.request(OffsetRange(partition, held.earliest, held.latest))
            for batch in self._cluster.read_range(request, fail_on_loss):
                found += [batch.columns.message(row) for row in range(len(batch.columns))]
        return found

    def values(self, topic: str) -> list[bytes]:
        """Return the values of a topic's messages; order and errors are those of ``messages``."""
        return [message.value for message in self.messages(topic)]
