"""What the producers that have a thread of their own are made of, whoever calls them: threads or coroutines.

A message is *checked*, which asks nobody; then *placed*: its topic, and its partition if the caller named it,
are looked up, which may have to ask a master; then *accepted* by the send loop as soon as there is room. Only
asking and the want of room make a caller wait, and how it waits is its own affair: ``place`` and
``SendLoop.put`` wait in the calling thread, ``place_now`` and ``SendLoop.offer`` never wait.
"""

import functools
import threading
import time
import weakref
from collections.abc import Mapping
from typing import NamedTuple

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.gathered import message_header
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.loop import Accepted, SendLoop
from tubemq_spark.client.producer.outcomes import Tell
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.publishing import Publishing
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.client.producer.statistics import ProducerStatistics
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import TopicPartition, excerpt
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Sleep
from tubemq_spark.net.tls_pipeline import pipeline_maker
from tubemq_spark.protocol.send_batch import MessageHeader
from tubemq_spark.receipts import Receipt, summarise


class Checked(NamedTuple):
    """A message that may be sent, as far as that can be said without its topic."""

    topic: str
    value: bytes
    prefix: bytes
    header: MessageHeader
    key: bytes | None
    partition: tuple[int, int] | None


class Place(NamedTuple):
    """Where a message goes."""

    topic: PublishedTopic
    destination: Destination | None
    """The partition that the caller named; None: it is chosen."""


class Sending:
    """The parts of one producer, and the way of a message into its send loop.

    Any thread may call it.
    """

    closes_at_exit = False
    """The loop does that."""

    def __init__(self, config: ClientConfig, pool: ChannelPool, name: str = "") -> None:
        """Reach no server yet; the arguments are those of ``ThreadedProducer``."""
        # Nothing that the loop holds may hold this object: it is closed when its user forgets it.
        self.loop = SendLoop(config)
        wait = Sleep(self.loop.wait)
        self.session = ProducerSession(config, pool, wait)
        self.log = SendLog(name or f"producer {self.session.client_id}")
        self.links = links = BrokerLinks(config.rpc_timeout_ms, detailed=True)
        self.destinations = Destinations(self.session, links, config.partitioner)
        self.publishing = Publishing(config, pool, self.session, self.destinations, self.log, wait)
        pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        window = SendWindow(config, self.destinations, links, pipelines, self.log)
        leave = functools.partial(_leave, self.session, self.destinations, self.links, self.log)
        self.loop.own(self.log.sender, window, pipelines, leave)
        self._registering = threading.Lock()
        self._registered = False
        self._finalizer = weakref.finalize(self, self.loop.drop)
        self._finalizer.atexit = False
        self.kind = "threaded producer"
        process_registry().enter(self)

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""
        return self.session.client_id

    def check(
        self,
        topic: str,
        value: bytes,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
    ) -> Checked:
        """Return a message if it can be sent at all.

        Raises:
            ProduceError: the producer has ended.
            OptionError: the value is not bytes or is empty, or an attribute cannot be written.
        """
        self.loop.refuse_if_ended()
        if not isinstance(value, bytes):
            raise OptionError(
                "TUBEMQ_BAD_MESSAGE",
                what=f"its value is of type {type(value).__name__}, not bytes ({self.log.sender})",
            )
        try:
            header, prefix = message_header(value, attributes, message_type, message_time)
        except OptionError as error:
            what = f"{error.parameters['what']} ({self._describe(value)})"
            raise OptionError("TUBEMQ_BAD_MESSAGE", what=what) from error
        return Checked(topic, value, prefix, header, key, partition)

    def place_now(self, message: Checked) -> Place | None:
        """Return where a message goes; None if a master must be asked for that."""
        topic = self.destinations.topics.get(message.topic)
        if topic is None or not topic.routes.partitions:
            return None
        if message.partition is None:
            return Place(topic, None)
        listed = topic.partitioner.by_id(*message.partition)
        return None if listed is None else Place(topic, listed)

    def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return where messages to a topic, or to one of its partitions, go; ask a master, and wait for that.

        That takes up to ``delivery_timeout_ms``.

        Raises:
            ProduceError: the topic or the partition does not exist, or could not be published to in time; or
                the producer has ended meanwhile.
            TubeMQConnectionError: no master answered in time.
        """
        deadline = self.publishing.deadline()
        self._register(deadline)
        topic = self.publishing.topic(name, deadline)
        if partition is None:
            return Place(topic, None)
        return Place(topic, self.publishing.partition(topic, *partition, deadline))

    def accepted(self, message: Checked, place: Place, tell: Tell | None) -> Accepted:
        """Return what the send loop takes.

        Raises:
            ProduceError: the message is too long for its topic, or the user's partitioner returned something
                else than a partition.
        """
        topic, destination = place
        self._refuse_too_long(topic, message)
        _, value, prefix, header, key, partition = message
        if partition is None and topic.custom is not None:
            destination = topic.choose(key, value)
        return Accepted(topic, value, prefix, header, key, partition, destination, tell, time.monotonic())

    def publishable(self, topic: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now, and wait for the answer.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one; or the producer has ended.
            TubeMQConnectionError: no master answered in time.
        """
        self.loop.refuse_if_ended()
        deadline = self.publishing.deadline()
        self._register(deadline)
        return self.publishing.publishable(topic, deadline)

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far."""
        return self.destinations.receipts()

    def statistics(self) -> ProducerStatistics:
        """Return what was sent and answered so far, and how long that took."""
        return ProducerStatistics(self.links.statistics(), self.loop.room_wait_s, self.log.elapsed_s)

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that the producer belongs to."""
        return self.loop.inherited

    def close(self) -> None:
        """End the thread and leave the master, and wait for that."""
        self._finalizer.detach()
        process_registry().leave(self)
        self.loop.close()

    def _refuse_too_long(self, topic: PublishedTopic, message: Checked) -> None:
        size = len(message.prefix) + len(message.value)
        if size > topic.max_message_bytes and (excess := topic.excess(message.prefix, size)):
            size, limit = excess
            raise ProduceError(
                "TUBEMQ_MESSAGE_TOO_LONG",
                topic=topic.name,
                size=size,
                limit=limit,
                message=self._describe(message.value),
            )

    def _register(self, deadline: Deadline) -> None:
        with self._registering:
            if not self._registered:
                self.publishing.open(deadline)
                self._registered = True
                try:
                    self.loop.refuse_if_ended()
                except ProduceError:
                    self.session.close()
                    raise

    def _describe(self, value: bytes) -> str:
        return f"a message of {self.log.sender} ({excerpt(value)})"


def _leave(
    session: ProducerSession, destinations: Destinations, links: BrokerLinks, log: SendLog, room_wait_s: float
) -> None:
    """Leave the master, and tell the log what was done."""
    session.close()
    if receipts := destinations.receipts():
        statistics = ProducerStatistics(links.statistics(), room_wait_s, log.elapsed_s)
        log.summary(f"{summarise(receipts)}; {statistics}")
