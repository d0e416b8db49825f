"""The brokers of a cluster as their master knows them: how each is set up, and whether it was heard of.

A real broker sends heartbeats. Here the server that runs the brokers says what became of one (``Presence``),
and the master concludes from it what it would conclude from heartbeats (DefBrokerRunManager).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator

from tubemq_spark.embedded.clock import monotonic_ms, wall_ms
from tubemq_spark.embedded.config.broker_config import BrokerConfig, ManageStatus
from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.infostrings import BrokerInfo, format_broker_info


class Presence:
    """Whether the master lists a broker: until it was silent for too long, and not as soon as it is back.

    Safe to use from any thread: each change is one assignment, and only the broker's owner makes them.
    """

    def __init__(self, timeout_ms: int, startup_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Be listed: a broker that was there before the master began is published at once."""
        self._timeout_ms = timeout_ms
        self._startup_ms = startup_ms
        self._now_ms = now_ms
        self._unlisted_at_ms: int | None = None
        self._listed_from_ms = now_ms()

    @property
    def timed_out(self) -> bool:
        """Whether the master has given the broker up."""
        unlisted_at_ms = self._unlisted_at_ms
        return unlisted_at_ms is not None and self._now_ms() >= unlisted_at_ms

    @property
    def listed(self) -> bool:
        """Whether clients are told of the broker's topics."""
        return not self.timed_out and self._now_ms() >= self._listed_from_ms

    def silent(self) -> None:
        """The broker says nothing any more, since now."""
        if self._unlisted_at_ms is None:
            self._unlisted_at_ms = self._now_ms() + self._timeout_ms

    def left(self) -> None:
        """The broker said that it goes."""
        self._unlisted_at_ms = self._now_ms()

    def joined(self) -> None:
        """The broker is new in a cluster that runs."""
        self._listed_from_ms = self._now_ms() + self._startup_ms

    def back(self) -> None:
        """The broker speaks again; one that was given up meanwhile has to be published anew."""
        if self.timed_out:
            self.joined()
        self._unlisted_at_ms = None


@dataclasses.dataclass(frozen=True, slots=True)
class KnownBroker:
    """A broker of the cluster, whether it runs or not."""

    id: int
    endpoint: Endpoint
    """Where clients reach it."""
    web_port: int
    catalog: Catalog
    """The topics that are deployed on it."""
    config: BrokerConfig
    presence: Presence

    def __str__(self) -> str:
        """Return ``id:host:port``, as masters tell clients."""
        return format_broker_info(BrokerInfo(self.id, self.endpoint), default_port=None)

    @property
    def registered(self) -> bool:
        """Whether the master lets the broker take part, and knows it to be there."""
        record = self.config.record
        return record is not None and record.status is not ManageStatus.DRAFT and not self.presence.timed_out

    @property
    def accept_publish(self) -> bool:
        """Whether producers are told of the broker."""
        return self.presence.listed and self.config.accept_publish

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may take the broker's partitions."""
        return self.presence.listed and self.config.accept_subscribe

    def publishes(self, spec: TopicSpec) -> bool:
        """Whether producers are told of a topic on this broker."""
        return self.accept_publish and spec.publishable

    def subscribes(self, spec: TopicSpec) -> bool:
        """Whether consumers may take a topic's partitions on this broker."""
        return self.accept_subscribe and spec.subscribable


class Brokers:
    """All brokers, in the order of their ids; looking at them takes no lock. None is ever taken out."""

    def __init__(self, brokers: Iterable[KnownBroker]) -> None:
        """Begin with some brokers, at least one."""
        self._by_id = {broker.id: broker for broker in brokers}
        self._list_id = wall_ms()
        self._adding = threading.Lock()

    def __iter__(self) -> Iterator[KnownBroker]:
        return iter(self._by_id.values())

    @property
    def list_id(self) -> int:
        """Stands for the list of brokers: clients that know another number get the list."""
        return self._list_id

    def get(self, broker_id: int) -> KnownBroker | None:
        """Return a broker by its id."""
        return self._by_id.get(broker_id)

    def add(self, broker: KnownBroker) -> None:
        """Take a broker in; its id is above all others."""
        with self._adding:
            self._by_id = {**self._by_id, broker.id: broker}
            self._list_id = max(self._list_id + 1, wall_ms())

    def infos(self) -> list[str]:
        """Return ``id:host:port`` of each broker, whether it can be reached or not."""
        return [str(broker) for broker in self]

    def deployments(self, topic: str) -> list[tuple[KnownBroker, TopicSpec]]:
        """Return the brokers that a topic is deployed on, and what it is like there."""
        found = ((broker, broker.catalog.get(topic)) for broker in self)
        return [(broker, spec) for broker, spec in found if spec is not None]

    def topics(self) -> list[str]:
        """Return the names of all topics but the system's, in their order."""
        return sorted({topic for broker in self for topic in broker.catalog.all()})

    def most_subscribed(self, topics: Iterable[str]) -> int:
        """Return on how many brokers that of some topics can be read which is on most."""
        return max((self._subscribed(topic) for topic in topics), default=0)

    def _subscribed(self, topic: str) -> int:
        return sum(broker.subscribes(spec) for broker, spec in self.deployments(topic))
