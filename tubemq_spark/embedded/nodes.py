"""The brokers of this process, running or not, and the running master.

A running broker and a running master are values, each opened and closed as a whole. A broker can be stopped,
frozen and started.
"""

import contextlib
import dataclasses
import enum
import ipaddress
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from tubemq_spark.embedded.admin.broker_calls import BrokerCalls
from tubemq_spark.embedded.admin.http import BROKER_FRAME, AdminServer
from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.broker.broker import Broker
from tubemq_spark.embedded.broker.groups import LeaseTable, OffsetTable
from tubemq_spark.embedded.broker.state import BrokerState, Service, StoreSet
from tubemq_spark.embedded.config.catalog import SYSTEM_USER, Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import BrokerConfig, Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.files import make_directory
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.master.state import BrokerEntry, Presence
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Interceptor


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerLocation:
    """Where a broker keeps its data, and where it listens."""

    broker_id: int
    directory: Path
    host: str
    """What it listens on."""
    advertised: str
    """The name that clients use for it."""
    port: int
    """0, here and below: any free port."""
    web_port: int


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterState:
    """What all servers of a cluster share."""

    settings: EmbeddedSettings
    controls: Controls
    tokens: VisitTokens
    authentication: Authentication


class Ending(enum.Enum):
    """How a broker ends."""

    ORDERLY = enum.auto()
    """It commits what is in flight, and saves everything."""
    KILLED = enum.auto()
    """Like a kill: acknowledged messages are kept, offsets are as last saved, nothing is committed."""
    POWER_CUT = enum.auto()
    """Like a kill, and what was not flushed is lost."""


class BrokerCondition(enum.StrEnum):
    """The condition of a broker."""

    RUNNING = "running"
    FROZEN = "frozen"
    STOPPED = "stopped"


class BrokerNode:
    """One broker: its configuration and, while it runs, its stores and ports.

    ``broker`` is replaced as a whole, under the lock; it is None while the broker is stopped. The master is
    told about each change (``entry.presence``).
    """

    def __init__(self, location: BrokerLocation, cluster: ClusterState) -> None:
        """Open the broker; ports that were not specified are chosen now, and kept from then on."""
        make_directory(location.directory)
        settings = cluster.settings
        self._cluster = cluster
        self._location = location
        self._lock = threading.RLock()
        # Not ``_lock``, which ``stop`` holds while it waits for requests, and those may end a fault.
        self._interceptor_lock = threading.Lock()
        self._interceptor: Interceptor | None = None
        self._frozen = False
        self._past_traffic = Traffic()
        self._reserved = contextlib.ExitStack()
        catalog = Catalog(location.directory / "topics.json")
        config = BrokerConfig(location.directory / "broker.json")
        broker = self._open(catalog)
        self.broker: Broker | None = broker
        self._location = dataclasses.replace(location, port=broker.port, web_port=self._web.port)
        self.entry = BrokerEntry(
            location.broker_id,
            Endpoint(location.advertised, broker.port),
            self._web.port,
            catalog,
            config,
            Presence(settings.broker_timeout_ms, settings.broker_startup_ms),
        )
        """The broker as its master sees it."""

    @property
    def id(self) -> int:
        """The broker's id."""
        return self.entry.id

    @property
    def condition(self) -> BrokerCondition:
        """The present condition."""
        with self._lock:
            if self.broker is None:
                return BrokerCondition.STOPPED
            return BrokerCondition.FROZEN if self._frozen else BrokerCondition.RUNNING

    @property
    def state(self) -> BrokerState:
        """What the handlers of the running broker share."""
        if (broker := self.broker) is None:
            raise OptionError("TUBEMQ_BROKER_STOPPED", broker_id=self.id)
        return broker.state

    def stop(self, ending: Ending) -> None:
        """Close the ports and connections, and then the stores; a stopped broker stays stopped."""
        with self._lock:
            if (broker := self.broker) is None:
                return
            self.broker = None
            self._frozen = False
            if ending is Ending.ORDERLY:
                self.entry.presence.mark_left()
            else:
                self.entry.presence.mark_silent()
            stores = broker.state.stores
            self._past_traffic.add(stores.traffic())
            with contextlib.ExitStack() as closing:
                closing.callback(self._reserve_ports)
                closing.callback(stores.close)
                if ending is Ending.POWER_CUT:
                    closing.callback(stores.lose_unflushed)
                if ending is Ending.ORDERLY:
                    closing.callback(broker.state.offsets.close)
                closing.callback(broker.close)
                closing.callback(self._web.close)

    def freeze(self) -> None:
        """Read and answer nothing, but keep the connections; connecting succeeds."""
        with self._lock:
            if self.broker is None:
                raise OptionError("TUBEMQ_BROKER_STOPPED", broker_id=self.id)
            self.broker.freeze()
            self._web.freeze()
            self._frozen = True
            self.entry.presence.mark_silent()

    def start(self) -> None:
        """Run again on the same ports; a frozen broker resumes, a running one keeps running."""
        with self._lock:
            if self.broker is None:
                self._reserved.close()
                self.broker = self._open(self.entry.catalog)
                self._apply_interceptor()
            elif self._frozen:
                self.broker.thaw()
                self._web.thaw()
            self._frozen = False
            self.entry.presence.mark_back()

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Put a function between the requests and their handlers; it is kept over a stop. None removes it."""
        self._interceptor = interceptor
        self._apply_interceptor()

    def set_topic(self, topic: str, spec: TopicSpec, by: str = SYSTEM_USER, date: str | None = None) -> None:
        """Add or change a topic, as ``BrokerState`` does; a stopped broker applies it when it starts."""
        with self._lock:
            if self.broker is not None:
                self.broker.state.set_topic(topic, spec, by, date)
                return
            old = self.entry.catalog.get(topic)
            if old is not None and old.status is TopicStatus.REMOVED is not spec.status:
                what = f"broker {self.id} is stopped and has not removed the old topic yet"
                raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=what)
            self.entry.catalog.add(topic, spec, by, date)

    def spec_with_shape(self, topic: str, stores: int, partitions: int) -> TopicSpec:
        """Return a topic's rules with a shape; a topic that is new or was closed gets the default rules."""
        old = self.entry.catalog.get(topic)
        base = old if old is not None and old.status is TopicStatus.NORMAL else TopicSpec()
        return dataclasses.replace(base, stores=stores, partitions=partitions)

    def apply_retention(self, topic: str, older_than_ms: int | None) -> None:
        """Delete old data of a topic; a stopped broker does nothing."""
        spec = self.entry.catalog.get(topic)
        broker = self.broker
        if spec is None or broker is None:
            return
        age_ms = spec.retention_ms if older_than_ms is None else older_than_ms
        for name, number in broker.state.stores.all():
            if name == topic:
                broker.state.stores.open(name, number).expire(age_ms, roll=older_than_ms is not None)

    def traffic(self) -> Traffic:
        """Return the traffic since the start of the server."""
        total = Traffic()
        with self._lock:
            total.add(self._past_traffic)
            if self.broker is not None:
                total.add(self.broker.state.stores.traffic())
        return total

    def close(self) -> None:
        """End with the server."""
        self.stop(Ending.ORDERLY)
        self._reserved.close()

    def _open(self, catalog: Catalog) -> Broker:
        """Open the stores and then the ports."""
        location, cluster, settings = self._location, self._cluster, self._cluster.settings
        with contextlib.ExitStack() as undo:
            stores = StoreSet(location.directory / "stores", catalog, settings)
            undo.callback(stores.close)
            state = BrokerState(
                location.broker_id,
                settings,
                location.advertised,
                catalog,
                stores,
                OffsetTable(location.directory / "offsets.json"),
                LeaseTable(settings.lease_timeout_ms),
                cluster.tokens,
                cluster.controls,
                cluster.authentication,
                reads=Service(settings.allowed_io_errors, f"Reading at broker {location.broker_id}"),
                writes=Service(settings.allowed_io_errors, f"Writing at broker {location.broker_id}"),
            )
            state.finish_removals()
            broker = Broker(state, location.host, location.port)
            undo.callback(broker.close)
            self._web = AdminServer(
                "broker",
                location.host,
                location.web_port,
                BrokerCalls(state).calls,
                BROKER_FRAME,
                advertised=location.advertised,
            )
            undo.pop_all()
            return broker

    def _apply_interceptor(self) -> None:
        with self._interceptor_lock:
            if (broker := self.broker) is not None:
                broker.interceptor = self._interceptor

    def _reserve_ports(self) -> None:
        """Reserve the ports while the broker is stopped, so that connections are refused."""
        for port in (self._location.port, self._location.web_port):
            reserved = self._reserved.enter_context(socket.socket())
            # Connections that have just ended still have the port.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # If another process was quicker, the start will fail and say so.
            with contextlib.suppress(OSError):
                reserved.bind((self._location.host, port))


class BrokerNodes:
    """All brokers of this process by id, counted from 1; none is ever removed."""

    def __init__(self, first: BrokerLocation, cluster: ClusterState) -> None:
        """Take the location of the first broker, from which those of the others follow."""
        self._first = first
        self._cluster = cluster
        self._by_id: dict[int, BrokerNode] = {}
        self._adding_lock = threading.Lock()

    def __iter__(self) -> Iterator[BrokerNode]:
        return iter(self._by_id.values())

    def get(self, broker_id: int) -> BrokerNode:
        """Return a broker."""
        if (node := self._by_id.get(broker_id)) is None:
            broker_ids = ", ".join(map(str, self._by_id))
            raise OptionError("TUBEMQ_NO_SUCH_BROKER", broker_id=broker_id, known=broker_ids)
        return node

    def open_next(self) -> BrokerNode:
        """Open one more broker."""
        with self._adding_lock:
            location = self._location_of(len(self._by_id) + 1)
            try:
                node = BrokerNode(location, self._cluster)
            except TubeMQConnectionError:
                # A port that was free at the first broker's address may be taken at this one.
                asked = dataclasses.replace(location, port=self._first.port, web_port=self._first.web_port)
                if asked == location:
                    raise
                node = BrokerNode(asked, self._cluster)
            self._by_id = {**self._by_id, node.id: node}
            return node

    def stored_count(self) -> int:
        """Return how many brokers have a data directory."""
        directory = self._first.directory
        return next(number for number in range(1, 256) if not _directory(directory, number + 1).is_dir())

    def select(self, topic: str, brokers: Iterable[int] | None) -> list[BrokerNode]:
        """Return the brokers with these ids; without ids, those that have a topic, or all if none has it."""
        if brokers is not None:
            return [self.get(broker_id) for broker_id in brokers]
        specs = {node: node.entry.catalog.get(topic) for node in self}
        having = [
            node
            for node, spec in specs.items()
            if spec is not None and spec.status is not TopicStatus.REMOVED
        ]
        return having or list(specs)

    def set_topic(self, broker_id: int, topic: str, spec: TopicSpec, by: str, date: str | None) -> None:
        """Add a topic to a broker, or change it there, in the name of a user."""
        self.get(broker_id).set_topic(topic, spec, by, date)

    def traffic(self) -> Traffic:
        """Return the traffic since the start of the server."""
        total = Traffic()
        for node in self:
            total.add(node.traffic())
        return total

    def close(self) -> None:
        """Close all brokers, even if one of them fails to close."""
        with contextlib.ExitStack() as closing:
            for node in self:
                closing.callback(node.close)

    def _location_of(self, number: int) -> BrokerLocation:
        first = self._first
        if number == 1:
            return first
        host = nth_host(first.host, first.advertised, number)
        # All use the same ports, like the hosts of a real cluster.
        broker = self._by_id[1].entry
        directory = _directory(first.directory, number)
        return BrokerLocation(number, directory, host, host, broker.endpoint.port, broker.web_port)


def nth_host(host: str, advertised: str, number: int) -> str:
    """Return the address of a broker, counted up from that of the first: 127.0.0.1, 127.0.0.2 and so on.

    Each broker has its own address, because TubeMQ's master refuses a second broker on the same one. The
    first must be a loopback address that clients use by the same name.
    """
    if host == advertised:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host) + (number - 1)
            if address.is_loopback:
                return str(address)
    raise OptionError("TUBEMQ_BROKER_ADDRESSES", host=host, advertised=advertised)


def _directory(data: Path, number: int) -> Path:
    """Return the directory of a broker that is not the first."""
    return data / f"broker-{number}"
