"""Where a producer's messages go: topics as the master publishes them, their partitions, their frames."""

import random
import time
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import ProducerSession, PublishRoutes
from tubemq_spark.client.outgoing import BrokerLinks, Destination, OutgoingMessage, Receipt
from tubemq_spark.client.partitioner import Partitioner
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC, UNDEFINED
from tubemq_spark.protocol.payload import sent_address
from tubemq_spark.protocol.send import SendEncoder

_ASK_AGAIN_MS: Final = 200
_ASK_AGAIN_AT_MOST_MS: Final = 1_000
_LONGEST_TOPIC_NAME: Final = 64


class PublishedTopic:
    """One topic as the master last described it."""

    __slots__ = ("max_message_bytes", "name", "partitioner", "routes", "routing")

    def __init__(self, name: str, routes: PublishRoutes, partitioner: Partitioner[Destination]) -> None:
        self.name = name
        self.routes = routes
        self.partitioner = partitioner
        self.max_message_bytes = routes.max_message_bytes
        self.routing = 0
        """Counts the times the master was asked because a broker refused a message."""


class ProducerRouting:
    """Follows the master's routing and chooses a destination for each message."""

    def __init__(
        self, config: ClientConfig, session: ProducerSession, links: BrokerLinks, wait: Wait = time.sleep
    ) -> None:
        """Ask nobody yet; ``wait`` passes the seconds until a missing topic is asked for again."""
        self._session = session
        self._links = links
        self._wait = wait
        self._topics: dict[str, PublishedTopic] = {}
        self._destinations: dict[TopicPartition, Destination] = {}
        self._timeout_ms = config.rpc_timeout_ms
        self._tokens = (UNDEFINED, "")
        self._address = sent_address(session.host)

    def topic(self, name: str) -> PublishedTopic:
        """Return a topic that can be published to; ask the master when that is not known.

        Raises:
            ProduceError: the master lists no partition of it, and did not begin to in ``rpc_timeout_ms``.
            TubeMQConnectionError: no master answered.
        """
        known = self._topics.get(name)
        if known is None or not known.routes.partitions:
            known = self._take(name, self._publish(name))
        return known

    def follow(self) -> None:
        """Take over what heartbeats have changed; cheap when they have not."""
        for topic in self._topics.values():
            routes = self._session.routes(topic.name)
            if routes is not topic.routes:
                self._take(topic.name, routes)
        if self._session.broker_tokens != self._tokens:
            self._tokens = self._session.broker_tokens
            for destination in self._destinations.values():
                destination.encoder = None

    def choose(self, topic: PublishedTopic, key: bytes | None, named: tuple[int, int] | None) -> Destination:
        """Return where a message goes: the partition named, that of its key, or the next one.

        Raises:
            ProduceError: the partition named does not exist.
        """
        if named is not None:
            return topic.partitioner.by_id(*named)
        if key is not None:
            return topic.partitioner.by_key(key)
        return topic.partitioner.by_turn(self._links.avoided)

    def redirect(self, message: OutgoingMessage) -> None:
        """Choose again for a message that is to be sent again; see ``send_window.Routing``."""
        partition = message.destination.partition
        named = (partition.broker_id, partition.partition_id) if message.named else None
        topic = self.topic(partition.topic)
        message.destination = self.choose(topic, message.key, named)
        message.routing = topic.routing

    def refresh(self, message: OutgoingMessage) -> None:
        """Ask the master again, once for all messages refused under one routing."""
        topic = self._topics[message.destination.partition.topic]
        if message.routing == topic.routing:
            self._session.refresh()
            self.follow()
            topic.routing += 1

    def encode(self, serial_no: int, message: OutgoingMessage) -> bytes:
        """Return the frame that sends a message to its destination."""
        destination = message.destination
        encoder = destination.encoder or self._new_encoder(destination)
        return encoder.frame(
            serial_no, message.payload, message.message_type, message.message_time, self._timeout_ms
        )

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged, in the partitions' order."""
        used = [destination for destination in self._destinations.values() if destination.count]
        return sorted((one.receipt() for one in used), key=lambda receipt: receipt.partition)

    def _publish(self, name: str) -> PublishRoutes:
        """Ask the master for a topic until it can be published to: a new topic takes its time."""
        if not name or len(name) > _LONGEST_TOPIC_NAME or name == OFFSET_HISTORY_TOPIC:
            # A master refuses every later heartbeat that names such a topic.
            raise ProduceError("TUBEMQ_TOPIC_NAME", topic=name)
        deadline = Deadline.after_ms(self._timeout_ms)
        backoff = Backoff(_ASK_AGAIN_MS, _ASK_AGAIN_AT_MOST_MS, wait=self._wait)
        self._session.publish([name])
        while not (routes := self._session.routes(name)).partitions:
            if not backoff.wait(deadline):
                raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=name, waited_ms=self._timeout_ms)
            self._session.refresh()
        return routes

    def _take(self, name: str, routes: PublishRoutes) -> PublishedTopic:
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = PublishedTopic(name, routes, self._partitioner(name, routes))
        elif routes.partitions and routes.partitions != known.routes.partitions:
            known.partitioner = self._partitioner(name, routes)
        known.routes = routes
        known.max_message_bytes = routes.max_message_bytes
        return known

    def _partitioner(self, name: str, routes: PublishRoutes) -> Partitioner[Destination]:
        targets = [self._destination(*item) for item in routes.partitions.items()]
        return Partitioner(name, targets, random.randrange(len(targets)))  # noqa: S311 (keeps no secret)

    def _destination(self, partition: TopicPartition, endpoint: Endpoint) -> Destination:
        """Return what stands for a partition; it keeps its receipt when its broker moves."""
        found = self._destinations.get(partition)
        if found is None:
            found = self._destinations[partition] = Destination(partition, self._links.to(endpoint))
        elif found.link.endpoint != endpoint:
            found.link = self._links.to(endpoint)
        return found

    def _new_encoder(self, destination: Destination) -> SendEncoder:
        partition = destination.partition
        destination.encoder = SendEncoder(
            self._session.client_id,
            partition.topic,
            partition.partition_id,
            self._address,
            *self._tokens,
        )
        return destination.encoder
