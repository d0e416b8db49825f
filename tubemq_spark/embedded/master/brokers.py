"""The brokers of a cluster as the master knows them: their configuration, and whether they are alive.

Real brokers send heartbeats. Here the server that runs the brokers reports what happens to each
(``Presence``), and the master concludes what it would conclude from heartbeats (DefBrokerRunManager).
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator

from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec
from tubemq_spark.embedded.config.controls import BrokerConfig, ManageStatus
from tubemq_spark.embedded.scheduler import monotonic_ms, wall_ms
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.packed_strings import BrokerInfo, format_broker_info


class Presence:
    """Whether the master lists a broker: until it is silent for too long, and some time after it is back.

    Safe to use from any thread: each change is one assignment, made only by the broker's owner.
    """

    def __init__(self, timeout_ms: int, startup_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        """Start as listed: a broker that exists before the master starts is published at once."""
        self._timeout_ms = timeout_ms
        self._startup_ms = startup_ms
        self._now_ms = now_ms
        self._unlisted_at_ms: int | None = None
        self._listed_from_ms = now_ms()

    @property
    def timed_out(self) -> bool:
        """Whether the master has given up on the broker."""
        unlisted_at_ms = self._unlisted_at_ms
        return unlisted_at_ms is not None and self._now_ms() >= unlisted_at_ms

    @property
    def listed(self) -> bool:
        """Whether clients are told about the broker's topics."""
        return not self.timed_out and self._now_ms() >= self._listed_from_ms

    def mark_silent(self) -> None:
        """Note that the broker has just fallen silent."""
        if self._unlisted_at_ms is None:
            self._unlisted_at_ms = self._now_ms() + self._timeout_ms

    def mark_left(self) -> None:
        """Note that the broker has signed off."""
        self._unlisted_at_ms = self._now_ms()

    def mark_joined(self) -> None:
        """Note that the broker is new in a running cluster."""
        self._listed_from_ms = self._now_ms() + self._startup_ms

    def mark_back(self) -> None:
        """Note that the broker is back; if it had timed out, it has to be published again."""
        if self.timed_out:
            self.mark_joined()
        self._unlisted_at_ms = None


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A broker of the cluster, whether it runs or not."""

    id: int
    endpoint: Endpoint
    """Where clients reach it."""
    web_port: int
    catalog: Catalog
    """The topics deployed on it."""
    config: BrokerConfig
    presence: Presence

    def __str__(self) -> str:
        """Return ``id:host:port``, as the master tells clients."""
        return format_broker_info(BrokerInfo(self.id, self.endpoint), default_port=None)

    @property
    def registered(self) -> bool:
        """Whether the broker is configured to take part, and is alive as far as the master knows."""
        return self.config.record.status is not ManageStatus.DRAFT and not self.presence.timed_out

    @property
    def accept_publish(self) -> bool:
        """Whether producers are told about the broker."""
        return self.presence.listed and self.config.record.status.accept_publish

    @property
    def accept_subscribe(self) -> bool:
        """Whether consumers may read the broker's partitions."""
        return self.presence.listed and self.config.record.status.accept_subscribe

    def publishes(self, spec: TopicSpec) -> bool:
        """Whether producers are told about a topic on this broker."""
        return self.accept_publish and spec.publishable

    def subscribes(self, spec: TopicSpec) -> bool:
        """Whether consumers may read a topic's partitions on this broker."""
        return self.accept_subscribe and spec.subscribable


class Brokers:
    """All brokers, in the order of their ids; reading takes no lock. None is ever removed."""

    def __init__(self, brokers: Iterable[BrokerEntry]) -> None:
        """Start with some brokers, at least one."""
        self._by_id = {broker.id: broker for broker in brokers}
        self._list_id = wall_ms()
        self._adding = threading.Lock()

    def __iter__(self) -> Iterator[BrokerEntry]:
        return iter(self._by_id.values())

    @property
    def list_id(self) -> int:
        """The id of the list of brokers: clients that know a different one get the list."""
        return self._list_id

    def get(self, broker_id: int) -> BrokerEntry | None:
        """Return a broker by its id."""
        return self._by_id.get(broker_id)

    def add(self, broker: BrokerEntry) -> None:
        """Add a broker, whose id is above all others."""
        with self._adding:
            self._by_id = {**self._by_id, broker.id: broker}
            self._list_id = max(self._list_id + 1, wall_ms())

    def infos(self) -> list[str]:
        """Return ``id:host:port`` of each broker, reachable or not."""
        return [str(broker) for broker in self]

    def deployments(self, topic: str) -> list[tuple[BrokerEntry, TopicSpec]]:
        """Return the brokers that a topic is deployed on, and its specification there."""
        specs = ((broker, broker.catalog.get(topic)) for broker in self)
        return [(broker, spec) for broker, spec in specs if spec is not None]

    def topics(self) -> list[str]:
        """Return the names of all topics except system topics, sorted."""
        return sorted({topic for broker in self for topic in broker.catalog.all()})

    def most_subscribed(self, topics: Iterable[str]) -> int:
        """Return the highest number of brokers on which one of some topics can be read."""
        return max((self._subscribed(topic) for topic in topics), default=0)

    def _subscribed(self, topic: str) -> int:
        return sum(broker.subscribes(spec) for broker, spec in self.deployments(topic))
