"""What producers are made of, for callers in threads and for coroutines.

A message is *checked*, which asks no server; then *placed*: its topic, and its partition if named, are
looked up, which may have to ask a master; then *accepted* by the send loop as soon as there is room. Only
asking and the want of room make a caller wait, and how it waits is its own affair: ``place`` and
``SendLoop.put`` wait in the calling thread; ``place_now``, and ``put`` if it is told so, never wait.
"""

import functools
import logging
import threading
import time
import weakref
from typing import NamedTuple, Unpack

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.gathered import MessageFields, OutgoingMessage, checked_message
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.loop import SendLoop
from tubemq_spark.client.producer.outcomes import Tell, UnaskedFailures
from tubemq_spark.client.producer.outgoing import refused_message
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.publishing import Publishing
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.client.producer.stamps import MinuteClock
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
from tubemq_spark.receipts import Receipt, summarise

logger = logging.getLogger(__name__)


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
        """Reach no server; the arguments are those of ``Producer``."""
        # Nothing that the loop holds may hold this object: it is closed when its user forgets it.
        self.loop = SendLoop(config)
        self._clock = MinuteClock(config.message_time_zone) if config.stamp_message_time else None
        wait = Sleep(self.loop.wait)
        self.session = ProducerSession(config, pool, wait)
        self.log = SendLog(name or f"producer {self.session.client_id}")
        self.links = links = BrokerLinks(config.rpc_timeout_ms, detailed=True)
        self.destinations = Destinations(
            self.session, links, config.partitioner, keep_order=config.keep_order
        )
        self.publishing = Publishing(config, pool, self.session, self.destinations, self.log, wait)
        pipelines = Pipelines(config.connect_timeout_ms, make=pipeline_maker(config.tls))
        window = SendWindow(config, self.destinations, links, pipelines, self.log)
        leave = functools.partial(_leave, self.session, self.destinations, self.links, self.log)
        self.loop.own(self.log.sender, window, pipelines, leave)
        self.unasked = UnaskedFailures()
        """The failed messages that ``flush`` raises."""
        self._registering = threading.Lock()
        self._registered = False
        self._finalizer = weakref.finalize(self, self.loop.drop)
        self._finalizer.atexit = False
        self.kind = "producer"
        process_registry().enter(self)

    @property
    def client_id(self) -> str:
        """The name under which servers know the producer."""
        return self.session.client_id

    def check(self, topic: str, value: bytes, **fields: Unpack[MessageFields]) -> OutgoingMessage:
        """Return a message if it can be sent, as far as that can be said without its topic.

        Raises:
            ProduceError: the producer has ended.
            OptionError: an argument has a wrong type, the value is empty, or an attribute cannot be written.
        """
        self.loop.refuse_if_ended()
        if self._clock is not None:
            fields.setdefault("message_time", self._clock.text())
        try:
            return checked_message(topic, value, **fields)
        except OptionError as error:
            raise refused_message(error, self._describe(value)) from error

    def place_now(self, message: OutgoingMessage) -> Place | None:
        """Return where a message goes; None if a master must be asked for that."""
        topic = self.destinations.topics.get(message.topic)
        if topic is None or not topic.routes.partitions:
            return None
        if message.partition is None:
            return Place(topic, None)
        named = self.destinations.named(topic, *message.partition)
        return None if named is None else Place(topic, named)

    def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return where messages to a topic, or to one of its partitions, go; ask a master, and wait for that.

        That takes up to ``delivery_timeout_ms``.

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

    def _placed(self, name: str, partition: tuple[int, int] | None, deadline: Deadline) -> Place:
        self._register(deadline)
        topic = self.publishing.topic(name, deadline)
        if partition is None:
            return Place(topic, None)
        return Place(topic, self.publishing.partition(topic, *partition, deadline))

    def complete(self, message: OutgoingMessage, place: Place, tell: Tell) -> None:
        """Add what the send loop needs to know of a message.

        Raises:
            ProduceError: the message is too long for its topic, or the user's partitioner returned something
                else than a partition.
        """
        topic, message.destination = place
        if message.size > topic.max_message_bytes and (excess := topic.excess(message.prefix, message.size)):
            raise topic.too_long(excess, self._describe(message.value))
        if message.partition is None and topic.custom is not None:
            message.destination = topic.choose(message.key, message.value)
        message.published, message.tell, message.accepted_at = topic, tell, time.monotonic()

    def cause_of_wait(self, message: OutgoingMessage) -> str:
        """Return why there is no room for a message."""
        full = self.loop.full_brokers(message)
        whose = f", the share of {', '.join(f'broker {id_}' for id_ in sorted(full))} is full" if full else ""
        return f"{self.loop.unacknowledged} messages are under way{whose}"

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
        if count := len(self.unasked):
            logger.warning(
                "%s closed with %d failed messages of which its user has not asked", self.log.sender, count
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

    def _describe(self, value: object) -> str:
        shown = f" ({excerpt(value)})" if isinstance(value, bytes) else ""
        return f"a message of {self.log.sender}{shown}"


def would_wait(topic: str, cause: str) -> ProduceError:
    """Return why a message is refused whose sender does not wait."""
    return ProduceError("TUBEMQ_SEND_WOULD_WAIT", topic=topic, cause=cause)


def _leave(
    session: ProducerSession, destinations: Destinations, links: BrokerLinks, log: SendLog, room_wait_s: float
) -> None:
    """Leave the master, and tell the log what was done."""
    session.close()
    if receipts := destinations.receipts():
        statistics = ProducerStatistics(links.statistics(), room_wait_s, log.elapsed_s)
        log.summary(f"{summarise(receipts)}; {statistics}")
