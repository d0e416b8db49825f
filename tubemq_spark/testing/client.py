"""Sending messages to topics and reading topics, for tests of jobs."""

from typing import Self, TypedDict, Unpack

from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.tubemq import TubeMQClient


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
        """Take the address and the group; the first call connects.

        Raises:
            OptionError: the address or the group is not valid.
        """
        self._client = TubeMQClient.connect(master, group=group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, topic: str, *values: bytes | str, **fields: Unpack[MessageFields]) -> None:
        """Send messages, in order if the topic has one partition; text is encoded as UTF-8.

        Raises:
            ProduceError: a message could not be stored.
            TubeMQConnectionError: the master does not answer.
        """
        with self._client.producer() as producer:
            for value in values:
                producer.send(topic, value.encode() if isinstance(value, str) else value, **fields)

    def messages(self, topic: str) -> list[Record]:
        """Return the messages of a topic, partition by partition, each in order.

        Raises:
            RpcError: there is no such topic.
            DataLossError: messages are missing or damaged.
        """
        return list(self._client.read(topic))

    def values(self, topic: str) -> list[bytes]:
        """Return the values of a topic's messages; order and errors are those of ``messages``."""
        return [message.value for message in self.messages(topic)]
