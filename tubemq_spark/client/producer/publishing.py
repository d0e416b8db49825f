"""Asks the masters where a producer may publish, and waits while they cannot say."""

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.producers import LEAST_ANSWER_MS, ProducerSession, PublishRoutes
from tubemq_spark.client.metadata.topics import configured_partitions, refuse_impossible_name
from tubemq_spark.client.producer.destinations import Destinations
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.partitioner import PublishedTopic
from tubemq_spark.client.producer.runs import Destination
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import PUBLISHABLE_TOPIC, SLEEP, Backoff, Wait, with_retries

Wanted = TypeVar("Wanted")

_MASTERS: Final = "every master"


class Publishing:
    """Makes topics known to the masters and to ``Destinations``, for messages that are not accepted yet.

    Every method waits for masters until a deadline. Only the request that is made last may take
    ``LEAST_ANSWER_MS`` even so: less would be no time for an answer.

    Threads may share it; ``_lock`` guards ``_away``, and ``_asking`` and what is decided by it, so that no
    thread withdraws a topic that another one is about to make known.
    """

    def __init__(
        self,
        config: ClientConfig,
        pool: ChannelPool,
        session: ProducerSession,
        destinations: Destinations,
        log: SendLog,
        wait: Wait = SLEEP,
    ) -> None:
        """Ask no master; ``wait`` passes the seconds until a missing topic is asked for again."""
        self._config = config
        self._connections = pool.connections
        self._session = session
        self._destinations = destinations
        self._log = log
        self._wait = wait
        self._lock = threading.Lock()
        self._asking: list[str] = []
        """The topics that threads are asking for, once for each thread."""
        self._away: dict[TopicPartition, Deadline] = {}
        """Until when to wait for partitions that exist and were not listed so far."""

    def deadline(self) -> Deadline:
        """Return how long a message that comes now may wait before it is accepted."""
        return Deadline.after_ms(self._config.delivery_timeout_ms)

    def open(self, deadline: Deadline) -> None:
        """Register the producer at the master.

        Raises:
            RpcError: the master refuses.
            TubeMQConnectionError: no master answered in time.
        """
        self._patiently(self._session.open, deadline)

    def topic(self, name: str, deadline: Deadline) -> PublishedTopic:
        """Return a topic that can be published to; ask the master when that is not known.

        Raises:
            ProduceError: it does not exist, or the master listed no partition of it in time.
            TubeMQConnectionError: no master answered in time.
        """
        topic = self._destinations.topics.get(name)
        if topic is not None and topic.routes.partitions:
            return topic
        with self._asking_for(name):
            topic = self._destinations.update(name, self._publish(name, deadline))
        self._log.back(f"topic {name}")
        return topic

    def partition(
        self, topic: PublishedTopic, broker_id: int, partition_id: int, deadline: Deadline | None
    ) -> Destination:
        """Return a partition that the caller named; ask the master when it has not listed it so far.

        Messages to one that is no longer listed are accepted, and wait for its broker in the send window.
        Without a deadline, the time for asking begins now; but for one partition it begins only once, until
        the partition is listed.

        Raises:
            ProduceError: it does not exist, or was not listed by the master in time.
        """
        known = self._destinations.named(topic, broker_id, partition_id)
        if known is not None:
            return known
        partition = TopicPartition(topic.name, broker_id, partition_id)
        return self._await_partition(topic, partition, deadline or self.deadline())

    def publishable(self, name: str, deadline: Deadline) -> tuple[TopicPartition, ...]:
        """Ask the master to which partitions a topic can be published now; do not wait for any.

        Raises:
            ProduceError: the topic does not exist, or its name cannot be one.
            TubeMQConnectionError: no master answered in time.
        """
        refuse_impossible_name(name)
        with self._asking_for(name):
            self._patiently(lambda until: self._session.publish([name], until), deadline)
            partitions = self._session.routes(name).partitions
            if not partitions:
                self._configured(name, deadline)
        return tuple(sorted(partitions))

    @contextlib.contextmanager
    def _asking_for(self, name: str) -> Iterator[None]:
        """Leave a topic out of later heartbeats when nothing is published to it and no thread asks for it."""
        with self._lock:
            self._asking.append(name)
        try:
            yield
        finally:
            with self._lock:
                self._asking.remove(name)
                if name not in self._asking and name not in self._destinations.topics:
                    self._session.withdraw(name)

    def _publish(self, name: str, deadline: Deadline) -> PublishRoutes:
        """Ask the master for a topic until it can be published to."""
        refuse_impossible_name(name)
        self._patiently(lambda until: self._session.publish([name], until), deadline)
        return self._listed(name) or self._await_topic(name, deadline)

    def _await_topic(self, name: str, deadline: Deadline) -> PublishRoutes:
        """Wait for a topic that is new, or whose brokers restart."""
        self._configured(name, deadline)
        cause = "the master lists no partition of it"
        routes = self._await(lambda: self._listed(name), f"topic {name}", cause, deadline)
        if routes is None:
            waited_ms = self._config.delivery_timeout_ms
            raise ProduceError("TUBEMQ_TOPIC_UNPUBLISHABLE", topic=name, waited_ms=waited_ms)
        return routes

    def _listed(self, name: str) -> PublishRoutes | None:
        routes = self._session.routes(name)
        return routes if routes.partitions else None

    def _await_partition(
        self, topic: PublishedTopic, partition: TopicPartition, deadline: Deadline
    ) -> Destination:
        """Wait for a partition whose broker restarts; refuse one that its topic does not have."""
        configured = self._configured(topic.name, deadline)
        if configured is not None and partition not in configured:
            raise ProduceError(
                "TUBEMQ_PARTITION_UNKNOWN",
                topic=topic.name,
                partition=partition.local_id,
                existing=topic.partitioner.listed(),
            )
        with self._lock:
            deadline = self._away.setdefault(partition, deadline)
        endpoint = self._await(
            lambda: self._session.routes(topic.name).partitions.get(partition),
            f"partition {partition}",
            "the master does not list it",
            deadline,
        )
        if endpoint is None:
            waited_ms = self._config.delivery_timeout_ms
            error = ProduceError(
                "TUBEMQ_PARTITION_AWAY", topic=topic.name, partition=partition.local_id, waited_ms=waited_ms
            )
            error.retriable = True
            raise error
        with self._lock:
            self._away.pop(partition, None)
        self._destinations.follow()
        return self._destinations.of(partition, endpoint)

    def _await(
        self, look: Callable[[], Wanted | None], what: str, cause: str, deadline: Deadline
    ) -> Wanted | None:
        """Ask for the routes until something is there, and return it; None when the time is over."""
        backoff = Backoff(PUBLISHABLE_TOPIC, wait=self._wait)
        while (found := look()) is None:
            self._log.away(what, cause, waiting=0)
            if not backoff.wait(deadline):
                return None
            self._patiently(self._session.refresh, deadline)
        self._log.back(what)
        return found

    def _configured(self, name: str, deadline: Deadline) -> frozenset[TopicPartition] | None:
        """Return which partitions a topic has; see ``configured_partitions``."""
        until = _for_an_answer(deadline)
        return loop.run(configured_partitions(self._config, self._connections, name, until), self._wait)

    def _patiently(self, ask: Callable[[Deadline], Coroutine[Any, Any, object]], deadline: Deadline) -> None:
        """Ask the masters, again and again as long as what goes wrong may pass."""
        with_retries(
            lambda: loop.run(ask(_for_an_answer(deadline)), self._wait),
            Backoff(PUBLISHABLE_TOPIC, wait=self._wait),
            deadline,
            on_retry=self._note_failure,
        )
        self._log.back(_MASTERS)

    def _note_failure(self, error: TubeMQError, _attempt: int) -> None:
        self._log.away(_MASTERS, str(error), waiting=0)


def _for_an_answer(deadline: Deadline) -> Deadline:
    """Return until when a request that is made now may take."""
    return deadline.later(Deadline.after_ms(LEAST_ANSWER_MS))
