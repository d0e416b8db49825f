"""Every partition a producer sends to, as the master told it last; nothing here waits.

The loop changes what is here. Any thread may read topics and partitions, of which none is ever removed.
"""

import random
from collections.abc import Callable

from tubemq_spark.client.master.producers import ProducerSession, PublishRoutes
from tubemq_spark.client.partitioners import BuiltInPartitioner, CustomPartitioner
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.partitioner import Partitioner, PublishedTopic
from tubemq_spark.client.producer.runs import Destination, Run
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.payload import sent_address
from tubemq_spark.protocol.send_frames import SendCredentials, encode_place
from tubemq_spark.receipts import Receipt


class Destinations:
    """Follows the master's heartbeats; keeps a partition's receipt when its broker is gone."""

    def __init__(
        self,
        session: ProducerSession,
        links: BrokerLinks,
        chosen_by: BuiltInPartitioner | CustomPartitioner = BuiltInPartitioner.ROUND_ROBIN,
        *,
        keep_order: bool = False,
    ) -> None:
        """Create it without topics; with ``keep_order``, messages with a key stay in their partition."""
        self._chosen_by = chosen_by
        self._keep_order = keep_order
        self._session = session
        self._links = links
        self.topics: dict[str, PublishedTopic] = {}
        self._by_partition: dict[TopicPartition, Destination] = {}
        self._tokens = (UNDEFINED, "")
        self._address = sent_address(session.host)
        self.credentials = SendCredentials(self._address)
        """What all messages carry, with the master's latest tokens."""
        self.heartbeats = 0
        """The number of the last heartbeat whose news were taken over."""

    def named(self, topic: PublishedTopic, broker_id: int, partition_id: int) -> Destination | None:
        """Return a partition that the caller named, if the master lists it, or has listed it before."""
        listed = topic.partitioner.by_id(broker_id, partition_id)
        return listed or self._by_partition.get(TopicPartition(topic.name, broker_id, partition_id))

    @property
    def next_heartbeat(self) -> int:
        """The number of the next heartbeat that begins: its news are newer than what is known now."""
        return self._session.heartbeats_begun + 1

    def follow(self) -> None:
        """Take over what heartbeats have changed; cheap when they have not."""
        self.heartbeats = self._session.heartbeats
        for topic in self.topics.values():
            routes = self._session.routes(topic.name)
            if routes is not topic.routes:
                self.update(topic.name, routes)
        if self._session.broker_tokens != self._tokens:
            self._tokens = self._session.broker_tokens
            self.credentials = SendCredentials(self._address, *self._tokens)

    def refresh(self) -> None:
        """Ask the master for all topics, in the background."""
        self._session.refresh_soon()

    def update(self, name: str, routes: PublishRoutes) -> PublishedTopic:
        """Take over a topic's routes; the partitions known before stay known while none is listed."""
        topic = self.topics.get(name)
        if topic is None:
            topic = PublishedTopic(name, routes, self._partitioner(routes), self._links, self._chosen_by)
            self.topics[name] = topic
        elif routes.partitions and routes.partitions != topic.routes.partitions:
            for destination in topic.partitioner.targets:
                destination.listed = destination.partition in routes.partitions
            topic.partitioner = self._partitioner(routes)
        topic.routes = routes
        topic.max_message_bytes = routes.max_message_bytes
        return topic

    def redirect(self, message: Run) -> str:
        """Choose where a message goes that is to be sent again; return why nowhere, if so."""
        partition = message.destination.partition
        topic = self.topics[partition.topic]
        if not topic.routes.partitions:
            return f"the master lists no partition of topic '{topic.name}' that can be published to"
        if message.named or (self._keep_order and message.is_bound):
            same = topic.partitioner.by_id(partition.broker_id, partition.partition_id)
            if same is None:
                return f"the master does not list {partition} now, only {topic.partitioner.listed()}"
            message.destinations = (same,)
        else:
            topic.partitioner.end_turn(message.destination)
            message.destinations = (topic.choose(message.key, b""),)
        return ""

    def choice_by_user(self, message: Run) -> Callable[[], Destination] | None:
        """Return what asks the user's partitioner where a message goes next; None if it does not choose."""
        topic = self.topics[message.destination.partition.topic]
        if topic.custom is None or not topic.routes.partitions or message.named:
            return None
        if self._keep_order and message.is_bound:
            return None
        topic.partitioner.end_turn(message.destination)
        return lambda: topic.choose_again(message.key, message.value)

    def of(self, partition: TopicPartition, endpoint: Endpoint) -> Destination:
        """Return what stands for a partition, whose broker may have moved."""
        destination = self._by_partition.get(partition)
        if destination is None:
            link = self._links.to(partition.broker_id, endpoint)
            place = encode_place(self._session.client_id, partition.topic, partition.partition_id)
            destination = self._by_partition[partition] = Destination(partition, link, place)
        elif destination.link.endpoint != endpoint:
            destination.link = self._links.to(partition.broker_id, endpoint)
        destination.listed = True
        return destination

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged, in the partitions' order."""
        used = [destination for destination in list(self._by_partition.values()) if destination.count]
        return sorted((destination.receipt() for destination in used), key=lambda receipt: receipt.partition)

    def forget_receipts(self) -> None:
        """Reset the receipts of all partitions; everything was acknowledged."""
        for destination in self._by_partition.values():
            destination.forget()

    def _partitioner(self, routes: PublishRoutes) -> Partitioner[Destination]:
        targets = [self.of(*item) for item in routes.partitions.items()]
        return Partitioner(targets, random.randrange(len(targets)))  # noqa: S311 (keeps no secret)
