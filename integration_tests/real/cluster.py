"""A TubeMQ cluster of one master and some brokers, started from the real distribution.

The hard part is time: TubeMQ publishes a new topic some 35 s after a broker has learnt of it.
A master that restarts takes over at once what its brokers report, so the cluster restarts the
master whenever a broker or a topic is new: seconds instead of half a minute. Clients that are
connected at that moment see their master go away and must register again.

The same restart helps where a broker does not even learn of a topic: the master tells it of
what changes during one of those 35 s only after their end, unless it starts afresh.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final, Self

from integration_tests.real.artifacts import distribution
from integration_tests.real.processes import ProcessGroup, free_port, wait_until
from integration_tests.real.servers import (
    ADMIN_TOKEN,
    BROKER_CLASS,
    MASTER_CLASS,
    MASTER_HOST,
    BrokerPorts,
    JavaServer,
    MasterPorts,
    ServerSettings,
    broker_host,
    broker_ini,
    data_directory,
    master_ini,
)
from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin, Parameter, TopicOnBroker

# Compiling less well makes the master start in half the time.
MASTER_FLAGS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1")

# Each open store takes 3.4 MB outside the heap.
BROKER_FLAGS: Final = ("-Xmx512m", "-XX:MaxDirectMemorySize=2g")

SHORT_LIVED_VARIABLE: Final = "TUBEMQ_SHORT_LIVED_BROKERS"
"""``1``: brokers live for a minute or two, in which the second stage of the JIT compiler does not pay."""
SHORT_LIVED_FLAGS: Final = ("-XX:TieredStopAtLevel=1",)

START_TIMEOUT_S: Final = 60.0

# How long each step of the shortcut may take, and how often it is tried. Where all that is not
# enough, TubeMQ's own slow way is still under way, and the last limit is enough for that.
LEARN_TIMEOUT_S: Final = 2.0
REPORT_TIMEOUT_S: Final = 3.0
MASTER_RESTARTS: Final = 4
PUBLISH_TIMEOUT_S: Final = 90.0

# How many heartbeats a broker gets to learn what cannot be asked of it: a topic's new size.
SETTLING_HEARTBEATS: Final = 3

SYSTEM_TOPIC: Final = "__offset_history__"
"""A topic that every broker is told of when the master takes it in."""

TOPIC_DEFAULTS: Final[Mapping[str, Parameter]] = {
    # Data reaches the disk as soon as the broker allows: within 10 s instead of 40 s.
    "unflushThreshold": 1,
    "memCacheFlushIntvl": 4000,
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The shape of a topic on each broker that has it."""

    stores: int = 1
    partitions: int = 1
    """How many partitions share each store."""

    properties: Mapping[str, Parameter] = field(default_factory=dict)
    """Further topic properties by the names of the administration API."""


@dataclass(slots=True)
class Broker:
    """One broker of the cluster."""

    broker_id: int
    ports: BrokerPorts
    server: JavaServer
    topics: set[str] = field(default_factory=set)

    @property
    def host(self) -> str:
        """Its own loopback address."""
        return broker_host(self.broker_id)

    @property
    def address(self) -> str:
        """The `host:port` where clients reach it."""
        return f"{self.host}:{self.ports.rpc}"

    @property
    def data(self) -> Path:
        """Where it keeps a folder for every store, named `topic-0` and so on."""
        return data_directory(self.server.directory)

    @property
    def admin(self) -> BrokerAdmin:
        """Its administration API."""
        return BrokerAdmin(f"{self.host}:{self.ports.web}")

    def knows(self, topics: Iterable[str]) -> bool:
        """Say whether it has been told of all these topics."""
        return self.admin.is_up() and all(map(self.admin.knows_topic, topics))


class RealTubeMQ:
    """A master and brokers on this machine, on free ports and in a directory of their own.

    Making one starts it, and it is ready when the constructor returns. Use it as a context
    manager, or call `close()`: that ends every process and removes the directory. All methods
    that change something return when the change is visible to clients.
    """

    def __init__(
        self,
        topics: Mapping[str, TopicSpec] | None = None,
        *,
        brokers: int = 1,
        settings: ServerSettings | None = None,
        standbys: int = 0,
    ) -> None:
        self.brokers: dict[int, Broker] = {}
        """All brokers by their ids 1, 2, ..., whether they run or not."""

        self._settings = settings or ServerSettings()
        self._distribution = distribution()
        self._specs: dict[str, TopicSpec] = {}
        self._resources = ExitStack()
        self._directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tubemq-")))
        self._processes = self._resources.enter_context(ProcessGroup())
        self._master_ports = MasterPorts(*(free_port() for _ in fields(MasterPorts)))
        self._standbys = [MasterPorts(*(free_port() for _ in fields(MasterPorts))) for _ in range(standbys)]
        self._master_server = self._new_master()
        try:
            self._start_all(brokers, topics or {})
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        """The master's `host:port`, as clients want it."""
        return f"{MASTER_HOST}:{self._master_ports.rpc}"

    @property
    def masters(self) -> list[str]:
        """The `host:port` of the master, and of those that may follow it."""
        return [f"{MASTER_HOST}:{ports.rpc}" for ports in (self._master_ports, *self._standbys)]

    @property
    def master_tls(self) -> str:
        """Where clients reach the master over TLS, with settings that have it."""
        return f"{MASTER_HOST}:{self._master_ports.tls}"

    @property
    def master_web(self) -> str:
        """The `host:port` of the master's administration API."""
        return f"{MASTER_HOST}:{self._master_ports.web}"

    @property
    def admin(self) -> MasterAdmin:
        """The administration API of the master."""
        return MasterAdmin(self.master_web, token=ADMIN_TOKEN)

    def message_count(self, topic: str) -> int:
        """Return how many messages of a topic the running brokers hold."""
        return sum(broker.admin.message_count(topic) for broker in self._running_brokers())

    def add_topic(self, name: str, stores: int = 1, partitions: int = 1, **properties: Parameter) -> None:
        """Create one topic on all brokers; for several, `add_topics` restarts only once."""
        self.add_topics({name: TopicSpec(stores, partitions, properties)})

    def add_topics(self, topics: Mapping[str, TopicSpec], *, brokers: Iterable[int] | None = None) -> None:
        """Create topics on the given brokers or on all, with one restart of the master."""
        self._configure_topics(topics, self.brokers if brokers is None else brokers)
        self.publish()

    def grow_topic(self, name: str, *, stores: int, partitions: int) -> None:
        """Give a topic more stores or partitions on every broker that has it."""
        spec = replace(self._specs[name], stores=stores, partitions=partitions)
        self.admin.modify_topic(
            name, self._brokers_with(name), numTopicStores=stores, numPartitions=partitions
        )
        self._specs[name] = spec
        self.publish()

    def close_topic(self, name: str) -> None:
        """Close a topic for rows and consumers, as before its removal; returns when all know."""
        self.admin.modify_topic(name, self._brokers_with(name), acceptPublish=False, acceptSubscribe=False)
        self._await(
            lambda: not self.admin.accepts_publish(name), PUBLISH_TIMEOUT_S, f"topic {name} to be closed"
        )

    def open_topic(self, name: str) -> None:
        """Open a closed topic again."""
        self.admin.modify_topic(name, self._brokers_with(name), acceptPublish=True, acceptSubscribe=True)
        self.publish()

    def remove_topic(self, name: str) -> None:
        """Delete a topic and its data; the name can be used again afterwards."""
        holders = self._brokers_with(name)
        self.admin.delete_topic(name, holders)
        self.admin.remove_topic(name, holders)
        self._await(
            lambda: not self.admin.topic_brokers(name),
            PUBLISH_TIMEOUT_S,
            f"the brokers to drop topic {name}",
        )
        self.forget_topic(name)

    def forget_topic(self, name: str) -> None:
        """No longer wait for a topic that a test closes or removes by itself to be published."""
        del self._specs[name]
        for broker in self.brokers.values():
            broker.topics.discard(name)

    def add_broker(self, topics: Iterable[str] | None = None) -> int:
        """Start one more broker, with the given topics or with all, and return its id."""
        names = self._specs if topics is None else topics
        broker = self._new_broker()
        self._configure_topics({name: self._specs[name] for name in names}, [broker.broker_id])
        broker.server.start()
        self.publish()
        return broker.broker_id

    def stop_broker(self, broker_id: int) -> None:
        """End a broker in good order; it writes all its messages to its files first."""
        self.brokers[broker_id].server.stop()

    def kill_broker(self, broker_id: int) -> None:
        """End a broker as a crash would; messages still in its memory are lost."""
        self.brokers[broker_id].server.kill()

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker: its connections stay open and nothing is answered."""
        self.brokers[broker_id].server.pause()

    def resume_broker(self, broker_id: int) -> None:
        """Resume a paused broker."""
        self.brokers[broker_id].server.resume()

    def start_broker(self, broker_id: int) -> None:
        """Start a broker again on its files, after `stop_broker` or `kill_broker`.

        After a stop this restarts the master too; after a kill that is needed only when the
        master has noticed, which it does after 30 s.
        """
        self.brokers[broker_id].server.start()
        self.publish()

    def restart_broker(self, broker_id: int) -> None:
        """Stop a broker in good order and start it again."""
        self.stop_broker(broker_id)
        self.start_broker(broker_id)

    def stop_master(self) -> None:
        """End the master in good order."""
        self._master_server.stop()

    def kill_master(self) -> None:
        """End the master as a crash would."""
        self._master_server.kill()

    def start_master(self) -> None:
        """Start the master again; it publishes what its brokers report."""
        self._start_master()
        self.publish()

    def restart_master(self) -> None:
        """Kill the master, which keeps nothing in memory that it must save, and start it."""
        self.kill_master()
        self.start_master()

    def start_standbys(self) -> None:
        """Start the other masters, which join the group; the first one leads it."""
        for number, ports in enumerate(self._standbys, start=2):
            name = f"master-{number}"
            server = self._new_server(name, MASTER_CLASS, MASTER_FLAGS)
            settings = self._settings
            server.prepare(master_ini(name, ports, settings, self._directory / name, self._master_ports))
            server.start()
        self._await(self._group_is_whole, START_TIMEOUT_S, "the other masters to join")

    def kill_leader(self) -> None:
        """Kill the first master, and wait until another one leads."""
        self.kill_master()
        self._await(self._another_leads, START_TIMEOUT_S, "another master to lead")

    def close(self) -> None:
        """End every process and remove all files."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_all(self, broker_count: int, topics: Mapping[str, TopicSpec]) -> None:
        self._start_master()
        for _ in range(broker_count):
            self._new_broker()
        self._configure_topics(topics, self.brokers)
        for broker in self.brokers.values():
            broker.server.start()
        self.publish()

    def _new_master(self) -> JavaServer:
        directory = self._directory / "master"
        server = self._new_server("master", MASTER_CLASS, MASTER_FLAGS)
        server.prepare(master_ini("master", self._master_ports, self._settings, directory))
        return server

    def _new_broker(self) -> Broker:
        """Make a broker known to the master, but do not start it."""
        broker_id = len(self.brokers) + 1
        name = f"broker-{broker_id}"
        broker = Broker(
            broker_id,
            BrokerPorts(*(free_port() for _ in fields(BrokerPorts))),
            self._new_server(name, BROKER_CLASS, broker_flags()),
        )
        broker.server.prepare(
            broker_ini(
                broker_id, broker.ports, self._settings, self._directory / name, ",".join(self.masters)
            )
        )
        defaults = dict(TOPIC_DEFAULTS)
        if self._settings.tls is not None:
            defaults["brokerTLSPort"] = broker.ports.tls
        self.admin.add_broker(broker_id, broker.host, broker.ports.rpc, broker.ports.web, **defaults)
        self.admin.online_broker(broker_id)
        self.brokers[broker_id] = broker
        return broker

    def _new_server(self, name: str, main_class: str, jvm_flags: tuple[str, ...]) -> JavaServer:
        return JavaServer(
            name=name,
            main_class=main_class,
            directory=self._directory / name,
            jvm_flags=jvm_flags,
            distribution=self._distribution,
            processes=self._processes,
        )

    def _configure_topics(self, topics: Mapping[str, TopicSpec], broker_ids: Iterable[int]) -> None:
        """Tell the master about topics."""
        broker_ids = tuple(broker_ids)
        with self._brokers_paused():
            for names, spec in _by_spec(topics):
                self.admin.add_topic(
                    names,
                    broker_ids,
                    stores=spec.stores,
                    partitions=spec.partitions,
                    **spec.properties,
                )
        self._specs.update(topics)
        for broker_id in broker_ids:
            self.brokers[broker_id].topics.update(topics)

    @contextmanager
    def _brokers_paused(self) -> Iterator[None]:
        """Pause all brokers, so that none reports while the master takes in a change.

        It would be told of the first half at once, and of the other half 35 s later.
        """
        running = self._running_brokers()
        for broker in running:
            broker.server.pause()
        try:
            yield
        finally:
            for broker in running:
                broker.server.resume()

    def publish(self) -> None:
        """Make the master list all topics of all running brokers, as soon as that can be done."""
        self._await(self._brokers_are_registered, START_TIMEOUT_S, "the brokers to register")
        patience_s = 0.0
        for _ in range(MASTER_RESTARTS):
            if self._comes_soon(self._brokers_know_topics, LEARN_TIMEOUT_S):
                if self._comes_soon(self._is_published, patience_s):
                    return
                time.sleep(SETTLING_HEARTBEATS * self._settings.heartbeat_ms / 1000)
            self._master_server.kill()
            self._start_master()
            patience_s = REPORT_TIMEOUT_S
        self._await(self._is_published, PUBLISH_TIMEOUT_S, "the master to publish all topics")

    def _brokers_are_registered(self) -> bool:
        """Say whether all running brokers serve, and the master knows that they do."""
        brokers = self._running_brokers()
        # In this order: until a broker registers again, the master tells of its last life.
        if not all(broker.knows([SYSTEM_TOPIC]) for broker in brokers):
            return False
        status = self.admin.broker_run_status()
        return all(status[broker.broker_id].is_online for broker in brokers)

    def _brokers_know_topics(self) -> bool:
        return all(broker.knows(broker.topics) for broker in self._running_brokers())

    def _start_master(self) -> None:
        self._master_server.start()
        self._await(self.admin.is_active, START_TIMEOUT_S, "the master to lead")

    def _group_is_whole(self) -> bool:
        roles = [role.upper() for role in self.admin.group_nodes().values()]
        return sorted(roles) == ["MASTER", *["REPLICA"] * len(self._standbys)]

    def _another_leads(self) -> bool:
        return any(MasterAdmin(f"{MASTER_HOST}:{ports.web}").is_active() for ports in self._standbys)

    def _comes_soon(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that may as well not come."""
        try:
            wait_until(condition, timeout_s=timeout_s, what="something")
        except TimeoutError:
            return False
        return True

    def _is_published(self) -> bool:
        """Say whether clients are told of every topic, in its shape, on all running brokers."""
        published = self.admin.published_topics()
        return all(
            # Not until the system topic is out, does the broker learn of others at once.
            (SYSTEM_TOPIC, broker.broker_id) in published
            and all(
                _is_open(published.get((name, broker.broker_id)), self._specs[name]) for name in broker.topics
            )
            for broker in self._running_brokers()
        )

    def _running_brokers(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.server.is_running]

    def _brokers_with(self, topic: str) -> list[int]:
        return [number for number, broker in self.brokers.items() if topic in broker.topics]

    def _servers(self) -> list[JavaServer]:
        return [self._master_server, *(broker.server for broker in self.brokers.values())]

    def _await(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for the servers; when they do not get there, tell what they printed last."""
        servers = self._servers()

        def is_there_or_dead() -> bool:
            return condition() or any(server.has_died for server in servers)

        try:
            wait_until(is_there_or_dead, timeout_s=timeout_s, what=what)
            if any(server.has_died for server in servers):
                raise RuntimeError(f"a server died while waiting for {what}")
        except (TimeoutError, RuntimeError) as error:
            error.add_note("\n".join(server.describe() for server in servers))
            raise


def broker_flags() -> tuple[str, ...]:
    """Return the flags of a broker's JVM."""
    return BROKER_FLAGS + (SHORT_LIVED_FLAGS if os.environ.get(SHORT_LIVED_VARIABLE) == "1" else ())


def _is_open(seen: TopicOnBroker | None, spec: TopicSpec) -> bool:
    return (
        seen is not None
        and seen.accepts_publish
        and (seen.stores, seen.partitions) == (spec.stores, spec.partitions)
    )


def _by_spec(topics: Mapping[str, TopicSpec]) -> list[tuple[list[str], TopicSpec]]:
    """Put topics of the same shape together, so that one call creates them all."""
    groups: list[tuple[list[str], TopicSpec]] = []
    for name, spec in topics.items():
        for names, known in groups:
            if known == spec:
                names.append(name)
                break
        else:
            groups.append(([name], spec))
    return groups
