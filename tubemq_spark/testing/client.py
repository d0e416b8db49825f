"""Sending messages to topics and reading topics, for tests of jobs."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self, Unpack

from tubemq_spark.client.config import DEFAULT_DELIVERY_TIMEOUT_MS
from tubemq_spark.client.producer.messages import MessageFields
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.tubemq import TubeMQClient
from tubemq_spark.errors import TubeMQError

if TYPE_CHECKING:
    from tubemq_spark.embedded.faults import Faults


class TopicClient:
    """Sends and reads whole topics; a context manager, for use by one thread.

    For example:

        def test_clicks(tubemq_client, tubemq_topic):
            tubemq_client.send(tubemq_topic, "home", "cart")
            assert tubemq_client.values(tubemq_topic) == [b"home", b"cart"]
            assert tubemq_client.messages(tubemq_topic)[0].text() == "home"
    """

    def __init__(
        self,
        master: str,
        group: str,
        faults: "Faults | None" = None,
        delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS,
    ) -> None:
        """Take the address and the group; the first call connects. Errors name the rules of ``faults``.

        Raises:
            OptionError: the address or the group is not valid.
        """
        self._client = TubeMQClient.connect(master, group=group, delivery_timeout_ms=delivery_timeout_ms)
        self._faults = faults

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
        with self._faults_noted(), self._client.producer() as producer:
            for value in values:
                producer.send(topic, value.encode() if isinstance(value, str) else value, **fields)

    def messages(self, topic: str) -> list[Record]:
        """Return the messages of a topic, partition by partition, each in order.

        Raises:
            RpcError: there is no such topic.
            DataLossError: messages are missing or damaged.
        """
        with self._faults_noted():
            return list(self._client.read(topic))

    def values(self, topic: str) -> list[bytes]:
        """Return the values of a topic's messages; order and errors are those of ``messages``."""
        return [message.value for message in self.messages(topic)]

    @contextlib.contextmanager
    def _faults_noted(self) -> Iterator[None]:
        """Add to an error which faults a test has asked for."""
        try:
            yield
        except TubeMQError as error:
            for rule in self._faults.in_force() if self._faults is not None else ():
                error.add_note(f"A fault is in force: {rule}")
            raise
