"""Where messages go: the topics and partitions that a producer knows, and what asks masters for others."""

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.probe import Probe
from tubemq_spark.client.producer.publishing import Publishing
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.tls_pipeline import pipeline_maker
from tubemq_spark.receipts import Receipt, summarise


class Place(NamedTuple):
    """Where a message goes."""

    topic: PublishedTopic
    destination: Destination | None
    """The partition that the caller named; None: it is chosen."""


class Placing:
    """The parts of a producer, without what moves its messages.

    Any thread may look up places. The window and its connections belong to the thread that moves messages.
    """

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        name: str,
        wait: Wait,
        refuse_if_ended: Callable[[], None],
        *,
        detailed: bool,
    ) -> None:
        """Reach no server.

        Args:
            config: how to reach TubeMQ; bounds of the window, time-outs.
            pool: channels to the masters.
            name: how the producer calls itself in errors and in the log; by default its client id.
            wait: how a thread waits that asks masters.
            refuse_if_ended: raises when the producer has ended.
            detailed: whether stored messages are told of with details.
        """
        self.session = ProducerSession(config, pool.connections)
        self.log = SendLog(name or f"producer {self.session.client_id}")
        self.links = BrokerLinks(
            config.rpc_timeout_ms,
            detailed=detailed,
            new_probe=functools.partial(Probe, config, self.session.client_id),
        )
        self.destinations = Destinations(
            self.session, self.links, config.partitioner, keep_order=config.keep_order
        )
        self.publishing = Publishing(config, pool, self.session, self.destinations, self.log, wait)
        self.pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        self.window = SendWindow(config, self.destinations, self.links, self.pipelines, self.log)
        self._refuse_if_ended = refuse_if_ended
        self._registering = threading.Lock()
        self._registered = False

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""
        return self.session.client_id

    def place_now(self, name: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages to a topic, or to one of its partitions, go; None: a master must be asked."""
        topic = self.destinations.topics.get(name)
        if topic is None or not topic.routes.partitions:
            return None
        if partition is None:
            return Place(topic, None)
        named = self.destinations.named(topic, *partition)
        return None if named is None else Place(topic, named)

    def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return the same; ask a master, and wait for that, up to ``delivery_timeout_ms``.

        Raises:
            ProduceError: the topic or the partition does not exist, or could not be published to in time; or
                the producer has ended since.
            TubeMQConnectionError: no master answered in time.
        """
        return self._placed(name, partition, self.publishing.deadline())

    def place_once(self, name: str, partition: tuple[int, int] | None) -> Place:
        """As ``place``, but ask masters only once; what they refuse may be otherwise soon."""
        try:
            return self._placed(name, partition, Deadline.after_ms(0))
        except ProduceError:
            self.destinations.refresh()
            raise

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now, and wait for the answer.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self._refuse_if_ended()
        deadline = self.publishing.deadline()
        self._register(deadline)
        return self.publishing.publishable(topic, deadline)

    def deadline(self) -> Deadline:
        """Return how long a message that comes now may wait before it is accepted."""
        return self.publishing.deadline()

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far."""
        return self.destinations.receipts()

    def statistics(self, room_wait_s: float) -> ProducerStatistics:
        """Return what was sent and answered so far; its senders waited so long for room."""
        return ProducerStatistics(self.links.statistics(), room_wait_s, self.log.elapsed_s)

    def leave(self, room_wait_s: float) -> None:
        """Leave the master, and tell the log what was done."""
        loop.run(self.session.close())
        if receipts := self.receipts():
            self.log.summary(f"{summarise(receipts)}; {self.statistics(room_wait_s)}")

    def _placed(self, name: str, partition: tuple[int, int] | None, deadline: Deadline) -> Place:
        self._register(deadline)
        topic = self.publishing.topic(name, deadline)
        if partition is None:
            return Place(topic, None)
        return Place(topic, self.publishing.partition(topic, *partition, deadline))

    def _register(self, deadline: Deadline) -> None:
        with self._registering:
            if not self._registered:
                self.publishing.open(deadline)
                self._registered = True
            try:
                self._refuse_if_ended()
            except ProduceError:
                loop.run(self.session.close())
                raise
