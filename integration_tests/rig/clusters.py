"""Clusters of embedded and of Java brokers, on which the same faults can be inflicted.

How long these things last is shorter on the embedded server in the short form, and so are its own times and
those of its clients. The long form, and the Java TubeMQ, have the usual ones.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ServerSettings
from integration_tests.rig.runs import form
from testkit.forwarder import Forwarder, Link, MasterRelay
from tubemq_spark.client import BrokerAdmin, Record
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.testing.client import TopicClient

_TOPICS: Final = tuple(f"faulty_{number:02d}" for number in range(30))
_QUIET_S: Final = 0.3
_PATIENCE_S: Final = 60.0
_STORES: Final = 2


@dataclasses.dataclass(frozen=True)
class Times:
    """How long things last, in seconds, and the settings that go with it."""

    away: float
    frozen: float
    without_routes: float
    client: Mapping[str, int]
    for_good: Mapping[str, int]
    """Changes of those where the time of a row is to end."""
    embedded: EmbeddedSettings


LONG = Times(
    away=40.0,
    frozen=20.0,
    without_routes=40.0,
    client={},
    for_good={"delivery_timeout_ms": 30_000},
    embedded=EmbeddedSettings(broker_startup_ms=30_000),
)
SHORT = Times(
    away=1.0,
    frozen=1.5,
    without_routes=1.0,
    client={"rpc_timeout_ms": 500, "connect_timeout_ms": 500, "heartbeat_period_ms": 200},
    for_good={"delivery_timeout_ms": 2_500},
    embedded=EmbeddedSettings(broker_timeout_ms=300, broker_startup_ms=500),
)


class FaultyCluster(Protocol):
    """A cluster whose brokers keep what they have acknowledged, also when they are killed."""

    times: Times

    @property
    def master(self) -> str:
        """The master's address."""

    @property
    def brokers(self) -> Mapping[int, str]:
        """The brokers' addresses."""

    def fresh_topic(self) -> str:
        """Return the name of an empty topic, which all brokers have."""

    def kill(self, broker_id: int) -> None:
        """End a broker's process at once."""

    def start(self, broker_id: int) -> None:
        """Start a broker that was killed, and leave it to the master when it lists it."""

    def freeze(self, broker_id: int) -> None:
        """Hang a broker: its connections stay open, and nothing is read or answered."""

    def thaw(self, broker_id: int) -> None:
        """Resume a frozen broker where it was."""

    def restart_master(self) -> None:
        """Restart what the master knows of clients, as when another leads; return when it lists all."""

    def settle(self) -> None:
        """Start every broker, and wait until the master lists it."""

    def stored(self, topic: str) -> int:
        """Return how many messages of a topic the running brokers have."""


def partitions(cluster: FaultyCluster) -> list[tuple[int, int]]:
    """Return the partitions of a fresh topic, as rows name them."""
    return [(broker, 10_000 * store) for store in range(_STORES) for broker in cluster.brokers]


def records(cluster: FaultyCluster, *topics: str) -> Iterator[Record]:
    """Yield all records of topics, when every broker runs and none of them stores any more."""
    cluster.settle()
    for topic in topics:
        counts: list[int] = []

        def is_quiet(topic: str = topic, counts: list[int] = counts) -> bool:
            counts.append(cluster.stored(topic))
            return counts[-2:] == counts[-1:] * 2

        wait_until(is_quiet, timeout_s=_PATIENCE_S, what=f"{topic} to stay as it is", poll_s=_QUIET_S)
        with TopicClient(cluster.master, "it_faults") as client:
            yield from client.messages(topic)


@contextlib.contextmanager
def behind_proxies(
    cluster: FaultyCluster, link_of_each: Callable[[], Link | None] = lambda: None
) -> Iterator[tuple[MasterRelay, dict[int, Forwarder]]]:
    """Give a master's address by which producers reach the brokers through proxies, and the proxies."""
    with contextlib.ExitStack() as closing:
        ways = {
            broker: closing.enter_context(Forwarder(address, link_of_each()))
            for broker, address in cluster.brokers.items()
        }
        addresses = {broker: way.address for broker, way in ways.items()}
        relay = closing.enter_context(MasterRelay(cluster.master, addresses))
        yield relay, ways


class EmbeddedCluster:
    """Brokers in this process."""

    def __init__(self, server: EmbeddedTubeMQ, times: Times) -> None:
        self.server = server
        self.times = times
        self._fresh = iter(_TOPICS)

    @property
    def master(self) -> str:
        return self.server.master

    @property
    def brokers(self) -> Mapping[int, str]:
        return self.server.brokers

    def fresh_topic(self) -> str:
        return next(self._fresh)

    def kill(self, broker_id: int) -> None:
        self.server.faults.stop_broker(broker_id)

    def start(self, broker_id: int) -> None:
        self.server.faults.start_broker(broker_id)

    def freeze(self, broker_id: int) -> None:
        self.server.faults.freeze_broker(broker_id)

    def thaw(self, broker_id: int) -> None:
        self.server.faults.start_broker(broker_id)

    def restart_master(self) -> None:
        self.server.faults.forget_clients()

    def settle(self) -> None:
        self.server.faults.clear()

    def stored(self, topic: str) -> int:
        return sum(BrokerAdmin(web).message_count(topic) for web in self.server.broker_webs.values())


class JavaCluster:
    """Brokers of the Java TubeMQ, which acknowledge what they have written to their files."""

    times = LONG

    def __init__(self, cluster: RealTubeMQ) -> None:
        self._cluster = cluster
        self._fresh = iter(_TOPICS)

    @property
    def master(self) -> str:
        return self._cluster.master

    @property
    def brokers(self) -> Mapping[int, str]:
        return {number: broker.address for number, broker in self._cluster.brokers.items()}

    def fresh_topic(self) -> str:
        return next(self._fresh)

    def kill(self, broker_id: int) -> None:
        self._cluster.kill_broker(broker_id)

    def start(self, broker_id: int) -> None:
        self._cluster.brokers[broker_id].server.start()

    def freeze(self, broker_id: int) -> None:
        self._cluster.pause_broker(broker_id)

    def thaw(self, broker_id: int) -> None:
        self._cluster.resume_broker(broker_id)

    def restart_master(self) -> None:
        self._cluster.restart_master()

    def settle(self) -> None:
        for broker_id, broker in self._cluster.brokers.items():
            broker.server.resume()
            if not broker.server.is_running:
                self.start(broker_id)
        self._cluster.publish()

    def stored(self, topic: str) -> int:
        return self._cluster.message_count(topic)


@contextlib.contextmanager
def embedded_cluster(settings: EmbeddedSettings | None = None, brokers: int = 3) -> Iterator[EmbeddedCluster]:
    """Start an embedded TubeMQ, for one test; the settings are those of its times unless given."""
    times = form(short=SHORT, long=LONG)
    topics = dict.fromkeys(_TOPICS[:2], (_STORES, 1))
    with EmbeddedTubeMQ(topics=topics, brokers=brokers, settings=settings or times.embedded) as server:
        yield EmbeddedCluster(server, times)


@contextlib.contextmanager
def full_embedded_cluster() -> Iterator[EmbeddedCluster]:
    """Start an embedded TubeMQ whose brokers refuse messages until they have written those that they hold."""
    with embedded_cluster(EmbeddedSettings(max_unflushed_bytes=64 << 10, flush_check_ms=100)) as cluster:
        yield cluster


@contextlib.contextmanager
def full_java_cluster() -> Iterator[JavaCluster]:
    """Start two Java brokers with as little memory for a topic as they allow, which audit what they store."""
    little = {"memCacheMsgSizeInMB": 2, "memCacheMsgCntInK": 1}
    topics = dict.fromkeys(_TOPICS[:4], TopicSpec(_STORES, properties=little))
    with RealTubeMQ(topics, brokers=2, settings=ServerSettings(audit=True)) as cluster:
        yield JavaCluster(cluster)


@contextlib.contextmanager
def java_cluster() -> Iterator[JavaCluster]:
    """Start two brokers of the Java TubeMQ.

    By default a broker acknowledges what it has in memory, and what is not written dies with it:
    docs/guarantees/guarantees.md, "What TubeMQ itself can lose". These write first, so that no row may be
    missing.
    """
    topics = dict.fromkeys(_TOPICS, TopicSpec(_STORES))
    settings = ServerSettings(use_memory_store=False)
    with RealTubeMQ(topics, brokers=2, settings=settings) as cluster:
        yield JavaCluster(cluster)
