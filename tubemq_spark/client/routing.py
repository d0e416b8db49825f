"""Where a producer's messages go: topics as the master publishes them, their partitions, their frames."""

import random
import time
from collections.abc import Callable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.outgoing import BrokerLinks, Destination, OutgoingMessage
from tubemq_spark.client.partitioner import Partitioner
from tubemq_spark.client.producer_session import ProducerSession, PublishRoutes
from tubemq_spark.client.send_log import SendLog
from tubemq_spark.client.topics import configured_partitions
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Backoff, Wait
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC, UNDEFINED
from tubemq_spark.protocol.payload import sent_address
from tubemq_spark.protocol.send_connection import SendEncoder
from tubemq_spark.receipts import Receipt

_ASK_AGAIN_MS: Final = 200
_ASK_AGAIN_AT_MOST_MS: Final = 1_000
_LONGEST_TOPIC_NAME: Final = 64
_MASTERS: Final = "every master"


class PublishedTopic:
    """One topic as the master last described it."""

    __slots__ = ("max_message_bytes", "name", "partitioner", "routes")

    def __init__(self, name: str, routes: PublishRoutes, partitioner: Partitioner[Destination]) -> None:
        self.name = name
        self.routes = routes
        self.partitioner = partitioner
        """Chooses among the partitions the master listed last; it lists none while their brokers restart."""
        self.max_message_bytes = routes.max_message_bytes


class ProducerRouting:
    """Follows the master's routing and chooses a destination for each message.

    ``open``, ``topic`` and ``choose`` are for a message that is not accepted yet and wait, for at most
    ``delivery_timeout_ms``; the others never wait.
    """

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        session: ProducerSession,
        links: BrokerLinks,
        log: SendLog,
        wait: Wait = time.sleep,
    ) -> None:
        """Ask nobody yet; ``wait`` passes the seconds until a missing topic is asked for again."""
        self._config = config
        self._pool = pool
        self._session = session
        self._links = links
        self._log = log
        self._wait = wait
        self._timeout_ms = config.rpc_timeout_ms
        self._topics: dict[str, PublishedTopic] = {}
        self._destinations: dict[TopicPartition, Destination] = {}
        self._tokens = (UNDEFINED, "")
        self._address = sent_address(session.host)
        self.heartbeats = 0
        """How many heartbeats a master had answered when their news were last taken over."""

    def open(self) -> None:
        """Register the producer at the master.

        Raises:
            RpcError: the master refuses.
            TubeMQConnectionError: no master answered in time.
        """
        self._patiently(self._session.open)

    def topic(self, name: str) -> PublishedTopic:
        """Return a topic that can be published to; ask the master when that is not known.

        Raises:
            ProduceError: it does not exist, or the master listed no partition of it in time.
            TubeMQConnectionError: no master answered in time.
        """
        known = self._topics.get(name)
        if known is None or not known.routes.partitions:
            known = self._take(name, self._publish(name))
        return known

    def follow(self) -> None:
        """Take over what heartbeats have changed; cheap when they have not."""
        self.heartbeats = self._session.heartbeats
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
            ProduceError: the partition named does not exist, or was not listed by the master in time.
        """
        if named is not None:
            return topic.partitioner.by_id(*named) or self._await_partition(topic, *named)
        if key is not None:
            return topic.partitioner.by_key(key)
        links = self._links
        if links.passed_over:
            return topic.partitioner.by_turn(links.passed_over, links.failing)
        return topic.partitioner.by_turn()

    def redirect(self, message: OutgoingMessage) -> str:
        """Choose again for a message that is to be sent again; see ``send_window.Routing``."""
        partition = message.destination.partition
        topic = self._topics[partition.topic]
        if not topic.routes.partitions:
            return f"the master lists no partition of topic '{topic.name}' that can be published to"
        if message.named:
            same = topic.partitioner.by_id(partition.broker_id, partition.partition_id)
            if same is None:
                return f"the master does not list {partition} now, only {topic.partitioner.listed()}"
            message.destination = same
        else:
            message.destination = self.choose(topic, message.key, None)
        return ""

    def refresh(self) -> None:
        """Let the master be asked for all topics, in the background."""
        self._session.refresh_soon()

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
        """Ask the master for a topic until it can be published to."""
        if not name or len(name) > _LONGEST_TOPIC_NAME or name == OFFSET_HISTORY_TOPIC:
            # A master refuses every later heartbeat that names such a topic.
            raise ProduceError("TUBEMQ_TOPIC_NAME", topic=name)
        try:
            self._patiently(lambda: self._session.publish([name]))
            return self._session.routes(name) if self._listed(name) else self._await_topic(name)
        except TubeMQError:
            if name not in self._topics:
                self._session.withdraw(name)
            raise

    def _await_topic(self, name: str) -> PublishRoutes:
        """Wait for a topic that is new, or whose brokers restart."""
        configured_partitions(self._config, self._pool, name)
        cause = "the master lists no partition of it"
        if not self._await(lambda: self._listed(name), f"topic {name}", cause):
            waited_ms = self._config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=name, waited_ms=waited_ms)
        return self._session.routes(name)

    def _listed(self, name: str) -> bool:
        return bool(self._session.routes(name).partitions)

    def _await_partition(self, topic: PublishedTopic, broker_id: int, partition_id: int) -> Destination:
        """Wait for a partition whose broker restarts; refuse one that its topic does not have."""
        wanted = TopicPartition(topic.name, broker_id, partition_id)
        exists = wanted in self._destinations
        if not exists:
            configured = configured_partitions(self._config, self._pool, topic.name)
            exists = configured is None or wanted in configured
        if not exists or not self._await(
            lambda: wanted in self._session.routes(topic.name).partitions,
            f"partition {wanted}",
            "the master does not list it",
        ):
            raise ProduceError(
                "TUBEMQ_PARTITION_UNKNOWN",
                topic=topic.name,
                partition=wanted.local_id,
                existing=topic.partitioner.listed(),
            )
        self.follow()
        return self._destination(wanted, topic.routes.partitions[wanted])

    def _await(self, is_there: Callable[[], bool], what: str, cause: str) -> bool:
        """Ask for the routes until something is there; return False when the time is over."""
        deadline = Deadline.after_ms(self._config.delivery_timeout_ms)
        backoff = Backoff(_ASK_AGAIN_MS, _ASK_AGAIN_AT_MOST_MS, wait=self._wait)
        while not is_there():
            self._log.away(what, cause, waiting=0)
            if not backoff.wait(deadline):
                return False
            self._patiently(self._session.refresh, deadline)
        self._log.back(what)
        return True

    def _patiently(self, ask: Callable[[], object], deadline: Deadline | None = None) -> None:
        """Ask the masters, again and again as long as what goes wrong may pass."""
        deadline = deadline or Deadline.after_ms(self._config.delivery_timeout_ms)
        backoff = Backoff(_ASK_AGAIN_MS, _ASK_AGAIN_AT_MOST_MS, wait=self._wait)
        while True:
            try:
                ask()
            except TubeMQError as error:
                if not error.retriable or not backoff.wait(deadline):
                    raise
                self._log.away(_MASTERS, str(error), waiting=0)
            else:
                self._log.back(_MASTERS)
                return

    def _take(self, name: str, routes: PublishRoutes) -> PublishedTopic:
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = PublishedTopic(name, routes, self._partitioner(routes))
        elif routes.partitions and routes.partitions != known.routes.partitions:
            known.partitioner = self._partitioner(routes)
        known.routes = routes
        known.max_message_bytes = routes.max_message_bytes
        return known

    def _partitioner(self, routes: PublishRoutes) -> Partitioner[Destination]:
        targets = [self._destination(*item) for item in routes.partitions.items()]
        return Partitioner(targets, random.randrange(len(targets)))  # noqa: S311 (keeps no secret)

    def _destination(self, partition: TopicPartition, endpoint: Endpoint) -> Destination:
        """Return what stands for a partition; it keeps its receipt when its broker moves."""
        found = self._destinations.get(partition)
        if found is None:
            link = self._links.to(partition.broker_id, endpoint)
            found = self._destinations[partition] = Destination(partition, link)
        elif found.link.endpoint != endpoint:
            found.link = self._links.to(partition.broker_id, endpoint)
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
