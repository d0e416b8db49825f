"""The partitions that a producer sends to, by the master's last answer, and what masters are asked for them.

The loop changes what is here. Any thread may read topics and partitions, of which none is ever removed.
Nothing of ``Destinations`` waits. ``Routing`` asks the masters, and waits while they cannot say. Every
question waits for masters until a deadline. Only the request that is made last may take ``LEAST_ANSWER_MS``
even so: less would be no time for an answer. Callers that ask for the same wait for one task; it is cancelled
when none of them waits any more.
"""

import asyncio
import collections
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig, CustomPartitioner
from tubemq_spark.client.master.producers import LEAST_ANSWER_MS, ProducerSession, PublishRoutes
from tubemq_spark.client.metadata.topics import configured_partitions, refuse_impossible_name
from tubemq_spark.client.producer.links import BrokerLinks
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.partitioner import Partitioner, Place, PublishedTopic
from tubemq_spark.client.producer.pipeline import Question, SharedQuestions
from tubemq_spark.client.producer.runs import Destination, Run
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, Backoff
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.payload import sent_address
from tubemq_spark.protocol.send_frames import SendCredentials, encode_place
from tubemq_spark.receipts import Receipt

Listed = TypeVar("Listed")
_MASTERS: Final = "every master"


class Destinations:
    """The topics and partitions of a producer, by the master's heartbeats; receipts outlive their brokers."""

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
        """The number of the last heartbeat that is taken into account."""

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
        """Choose where a message is sent again; return the reason if it can go nowhere, otherwise a blank."""
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
            topic.partitioner.leave(message.destination)
            message.destinations = (topic.choose(message.key, b""),)
        return ""

    def partitioner_call(self, message: Run) -> Callable[[], Destination] | None:
        """Return a call of the user's partitioner, for a message to send again; None if it has no say there.

        The partition to which the message went loses its turn.
        """
        topic = self.topics[message.destination.partition.topic]
        if topic.custom is None or not topic.routes.partitions or message.named:
            return None
        if self._keep_order and message.is_bound:
            return None
        topic.partitioner.leave(message.destination)
        return lambda: topic.choose_again(message.key, message.value)

    def destination(self, partition: TopicPartition, endpoint: Endpoint) -> Destination:
        """Return the destination of a partition, whose broker may have moved; add it if it is new."""
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

    def _partitioner(self, routes: PublishRoutes) -> Partitioner:
        targets = [self.destination(*item) for item in routes.partitions.items()]
        return Partitioner(targets, random.randrange(len(targets)))  # noqa: S311 (keeps no secret)


class Routing:
    """Makes topics known to the masters and to ``Destinations``, for messages that wait to be accepted."""

    def __init__(
        self,
        config: ClientConfig,
        connections: Connections,
        session: ProducerSession,
        destinations: Destinations,
        log: SendLog,
    ) -> None:
        """Ask no master; may be called in any thread."""
        self._config = config
        self._connections = connections
        self._session = session
        self._destinations = destinations
        self._log = log
        self._register_lock = asyncio.Lock()
        self._registered = False
        self._closed = False
        self._questions = SharedQuestions()
        self._asked: collections.Counter[str] = collections.Counter()
        """The topics that are asked for, and how often."""
        self._away: dict[TopicPartition, Deadline] = {}
        """Until when to wait for partitions that exist and were not listed so far."""

    def place_now(self, name: str, partition: tuple[int, int] | None) -> Place | None:
        """Return where messages to a topic, or to one of its partitions, go; None: a master must be asked."""
        topic = self._destinations.topics.get(name)
        if topic is None or not topic.routes.partitions:
            return None
        if partition is None:
            return Place(topic, None)
        named = self._destinations.named(topic, *partition)
        return None if named is None else Place(topic, named)

    async def place(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go; ask a master if that is not known, and wait up to ``delivery_timeout_ms``."""
        return await self._questions.ask(
            Question(name, partition), lambda: self._place(name, partition, self._deadline())
        )

    async def place_once(self, name: str, partition: tuple[int, int] | None) -> Place:
        """Return where they go as ``place`` does, but ask masters only once: a refusal may be over soon."""
        try:
            return await self._place(name, partition, Deadline.after_ms(0))
        except ProduceError:
            self._destinations.refresh()
            raise

    async def publishable(self, name: str) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; do not wait for any."""
        deadline = self._deadline()
        await self._register(deadline)
        refuse_impossible_name(name)
        with self._asking_for(name):
            await self._patiently(lambda until: self._session.publish([name], until), deadline)
            partitions = self._session.routes(name).partitions
            if not partitions:
                await self._configured(name, deadline)
        return tuple(sorted(partitions))

    async def close(self) -> None:
        """Leave the master."""
        self._closed = True
        await self._questions.close(_closed())
        await self._session.close()

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._config.delivery_timeout_ms)

    async def _place(self, name: str, partition: tuple[int, int] | None, deadline: Deadline) -> Place:
        await self._register(deadline)
        topic = await self._topic(name, deadline)
        if partition is None:
            return Place(topic, None)
        return Place(topic, await self._partition(topic, TopicPartition(name, *partition), deadline))

    async def _register(self, deadline: Deadline) -> None:
        async with self._register_lock:
            if not self._registered:
                await self._patiently(self._session.open, deadline)
                self._registered = True
                self._destinations.follow()
            if self._closed:
                await self._session.close()
                raise _closed()

    async def _topic(self, name: str, deadline: Deadline) -> PublishedTopic:
        """Return a topic that can be published to; ask the master when that is not known."""
        topic = self._destinations.topics.get(name)
        if topic is not None and topic.routes.partitions:
            return topic
        with self._asking_for(name):
            refuse_impossible_name(name)
            await self._patiently(lambda until: self._session.publish([name], until), deadline)
            routes = self._listed(name)
            if routes is None:  # it is new, or its brokers restart
                await self._configured(name, deadline)
                cause = "the master lists no partition of it"
                routes = await self._await(lambda: self._listed(name), f"topic {name}", cause, deadline)
            if routes is None:
                waited_ms = self._config.delivery_timeout_ms
                raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=name, waited_ms=waited_ms)
            topic = self._destinations.update(name, routes)
        self._log.back(f"topic {name}")
        return topic

    @contextlib.contextmanager
    def _asking_for(self, name: str) -> Iterator[None]:
        """Leave a topic out of later heartbeats when nothing is published to it and no task asks for it."""
        self._asked[name] += 1
        try:
            yield
        finally:
            self._asked[name] -= 1
            if not self._asked[name]:
                del self._asked[name]
                if name not in self._destinations.topics:
                    self._session.withdraw(name)

    def _listed(self, name: str) -> PublishRoutes | None:
        routes = self._session.routes(name)
        return routes if routes.partitions else None

    async def _partition(
        self, topic: PublishedTopic, partition: TopicPartition, deadline: Deadline
    ) -> Destination:
        """Return a partition that the caller named; ask the master when it has not listed it so far.

        Messages to one that is no longer listed are accepted, and wait for its broker in the send window. The
        time for asking begins only once for a partition, until it is listed.
        """
        known = self._destinations.named(topic, partition.broker_id, partition.partition_id)
        if known is not None:
            return known
        configured = await self._configured(topic.name, deadline)
        if configured is not None and partition not in configured:
            raise ProduceError(
                "TUBEMQ_PARTITION_UNKNOWN",
                topic=topic.name,
                partition=partition.local_id,
                existing=topic.partitioner.listed(),
            )
        endpoint = await self._await(
            lambda: self._session.routes(topic.name).partitions.get(partition),
            f"partition {partition}",
            "the master does not list it",
            self._away.setdefault(partition, deadline),
        )
        if endpoint is None:
            waited_ms = self._config.delivery_timeout_ms
            error = ProduceError(
                "TUBEMQ_PARTITION_AWAY", topic=topic.name, partition=partition.local_id, waited_ms=waited_ms
            )
            error.retriable = True
            raise error
        self._away.pop(partition, None)
        self._destinations.follow()
        return self._destinations.destination(partition, endpoint)

    async def _await(
        self, look: Callable[[], Listed | None], what: str, cause: str, deadline: Deadline
    ) -> Listed | None:
        """Ask for routes until ``look`` finds ``what`` in them, and return that; None at the deadline."""
        backoff = Backoff(PUBLISHABLE_TOPIC)
        while (listed := look()) is None:
            self._log.away(what, cause, waiting=0)
            pause_s = backoff.next_s(deadline)
            if pause_s is None:
                return None
            await asyncio.sleep(pause_s)
            await self._patiently(self._session.refresh, deadline)
        self._log.back(what)
        return listed

    async def _configured(self, name: str, deadline: Deadline) -> frozenset[TopicPartition] | None:
        """Return which partitions a topic has; see ``configured_partitions``."""
        return await configured_partitions(self._config, self._connections, name, _for_an_answer(deadline))

    async def _patiently(
        self, ask: Callable[[Deadline], Coroutine[Any, Any, object]], deadline: Deadline
    ) -> None:
        """Ask the masters, again after a transient error, until the deadline."""
        backoff = Backoff(PUBLISHABLE_TOPIC)
        while True:
            try:
                await ask(_for_an_answer(deadline))
                break
            except TubeMQError as error:
                pause_s = backoff.next_s(deadline) if error.retriable else None
                if pause_s is None:
                    raise
                self._log.away(_MASTERS, str(error), waiting=0)
            await asyncio.sleep(pause_s)
        self._log.back(_MASTERS)


def _closed() -> ProduceError:
    return ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=0)


def _for_an_answer(deadline: Deadline) -> Deadline:
    """Return the deadline of a request that is made now."""
    return deadline.later(Deadline.after_ms(LEAST_ANSWER_MS))
