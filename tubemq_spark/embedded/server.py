"""A whole TubeMQ in this process: a master, its brokers, their web ports and a data directory."""

import contextlib
import dataclasses
import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from tubemq_spark.embedded.admin.brokers import BrokerSetup
from tubemq_spark.embedded.admin.controls import ClusterCalls, ControlCalls
from tubemq_spark.embedded.admin.groups import GroupCalls
from tubemq_spark.embedded.admin.http import MASTER_FRAME, AdminServer
from tubemq_spark.embedded.admin.parameters import Call
from tubemq_spark.embedded.admin.topics import SetTopic, TopicCalls
from tubemq_spark.embedded.authentication import Authentication, VisitTokens
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import ClusterSetting, Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.faults import MASTER, Faults, InterceptorOf
from tubemq_spark.embedded.files import DirectoryLock, make_directory
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.master.groups import Members
from tubemq_spark.embedded.master.master import Master
from tubemq_spark.embedded.master.state import BrokerList, MasterState
from tubemq_spark.embedded.nodes import (
    BrokerCondition,
    BrokerLocation,
    BrokerNode,
    BrokerNodes,
    ClusterState,
)
from tubemq_spark.embedded.scheduler import wall_ms
from tubemq_spark.errors import OptionError, tells_of_full_disk
from tubemq_spark.model import Endpoint, OffsetBounds, StoreId
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol.constants import DEFAULT_ADMIN_TOKEN


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """Counts at one moment."""

    traffic: Traffic
    """Since the start."""
    connections: int
    """Open connections to the master and the brokers."""
    producers: int
    """Registered at the master."""
    consumers: int
    """Registered at the master; Spark queries are registered only while they plan."""
    leases: int
    """Partitions that are being read."""
    stores: Mapping[StoreId, OffsetBounds]
    """Where the stores begin and end, without stores that were never used or whose broker is stopped."""
    brokers: Mapping[int, BrokerCondition]
    """The condition of each broker."""


class EmbeddedTubeMQ:
    """Runs from its construction until ``close``; also a context manager.

    With a directory, everything is kept for the next start: topics, messages, committed offsets. Acknowledged
    messages survive a kill of the process; a power failure loses at most what was not flushed.

    Brokers have the ids 1, 2, 3 and so on. The first one listens on ``host``, each further one on the next
    loopback address and the same ports, because TubeMQ's master requires an address per broker.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        topics: Mapping[str, TopicSpec | tuple[int, int]] | None = None,
        host: str = "127.0.0.1",
        master_port: int = 0,
        broker_port: int = 0,
        master_web_port: int = 0,
        broker_web_port: int = 0,
        *,
        brokers: int = 1,
        settings: EmbeddedSettings | None = None,
        advertised_host: str | None = None,
    ) -> None:
        """Open the directory and the ports.

        Args:
            data: the data directory; None: a temporary one, deleted at the end.
            topics: topics to create, or to change if they are in the directory; a pair is the number of
                stores and of partitions per store. A new topic is created on all brokers, an existing one
                is changed on those that have it.
            host: the IPv4 address or name to listen on.
            master_port: the port of the master; 0, here and below: any free port.
            broker_port: the port of the brokers.
            master_web_port: the port of the master's HTTP administration.
            broker_web_port: the port of the brokers' HTTP administration.
            brokers: the minimum number of brokers; if the directory has more, all run. More than one need a
                loopback address as ``host``.
            settings: everything else.
            advertised_host: the name that clients use to reach this machine, if it is not ``host``.

        Raises:
            OptionError: the directory cannot be used, or another process uses it; a topic is not valid;
                ``host`` is not this machine, or lets other machines in with the public default of the
                administration token; or there are no addresses for several brokers.
            DataLossError: the directory is damaged in a way that recovery must not repair.
            TubeMQConnectionError: a port cannot be opened.
        """
        self._settings = settings = settings or EmbeddedSettings()
        self._host = host
        self._advertised = advertised_host or ("127.0.0.1" if host == _ANY_HOST else host)
        if ":" in self._advertised:
            raise OptionError("TUBEMQ_BAD_ADDRESS", address=self._advertised)
        _require_guarded(host, settings)
        if brokers < 1:
            raise OptionError("TUBEMQ_BAD_SETTING", name="brokers", value=brokers, rule="1 or more")
        with contextlib.ExitStack() as closing:
            if data is None:
                data = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="tubemq-")))
            self.data = data = Path(data)
            closing.enter_context(_locked(data))
            # What all servers share.
            cluster = ClusterState(
                settings,
                Controls(data / "controls.json", ClusterSetting(query_priority=settings.query_priority)),
                VisitTokens(settings.visit_token_period_ms),
                Authentication(settings),
            )
            first = BrokerLocation(_FIRST, data, host, self._advertised, broker_port, broker_web_port)
            self._nodes = nodes = BrokerNodes(first, cluster)
            closing.callback(nodes.close)
            for _ in range(max(brokers, nodes.stored_count())):
                nodes.open_next()
            for topic, spec in (topics or {}).items():
                if isinstance(spec, TopicSpec):
                    self.set_topic(topic, spec)
                else:
                    self.add_topic(topic, *spec)
            state = MasterState(
                BrokerList(node.entry for node in nodes),
                cluster.controls,
                cluster.tokens,
                Members(settings.client_timeout_ms),
                cluster.authentication,
                Endpoint(self._advertised, master_port),
            )
            self._master = Master(state, host, master_port, settings)
            closing.callback(self._master.close)
            calls = _master_calls(state, settings.admin_token, nodes.set_topic)
            self._master_web = AdminServer(
                "master",
                host,
                master_web_port,
                calls,
                MASTER_FRAME,
                leader=self._leader,
                advertised=self._advertised,
            )
            closing.callback(self._master_web.close)
            self._interceptor_of: InterceptorOf | None = None
            self.faults = Faults(nodes, state, self._intercept)
            """Faults of this server on demand."""
            # Closed first, because requests that a fault holds would delay the closing of ports.
            closing.callback(self.faults.release)
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def master(self) -> str:
        """The master's ``host:port``, which clients need."""
        return str(self._master.state.address)

    @property
    def broker(self) -> str:
        """The first broker's ``host:port``, which clients get from the master."""
        return self.brokers[_FIRST]

    @property
    def brokers(self) -> dict[int, str]:
        """Each broker's ``host:port`` by id, whether it runs or not."""
        return {node.id: str(node.entry.endpoint) for node in self._nodes}

    @property
    def master_web(self) -> str:
        """``host:port`` of the master's HTTP administration."""
        return str(Endpoint(self._advertised, self._master_web.port))

    @property
    def broker_web(self) -> str:
        """``host:port`` of the first broker's HTTP administration."""
        return self.broker_webs[_FIRST]

    @property
    def broker_webs(self) -> dict[int, str]:
        """``host:port`` of each broker's HTTP administration, by broker id."""
        return {node.id: str(Endpoint(node.entry.endpoint.host, node.entry.web_port)) for node in self._nodes}

    @property
    def addresses(self) -> dict[str, str]:
        """The four addresses of the master and the first broker by the names of their properties."""
        names = ("master", "broker", "master_web", "broker_web")
        return {name: getattr(self, name) for name in names}

    @property
    def broker_id(self) -> int:
        """The id of the first broker."""
        return _FIRST

    def topics(self) -> dict[str, TopicSpec]:
        """Return the topics by name; a topic on several brokers as it is on the first of them."""
        specs: dict[str, TopicSpec] = {}
        for node in self._nodes:
            specs = {**node.entry.catalog.all(), **specs}
        return dict(sorted(specs.items()))

    def topics_of(self, broker_id: int) -> dict[str, TopicSpec]:
        """Return the topics of a broker by name.

        Raises:
            OptionError: there is no such broker.
        """
        return self._nodes.get(broker_id).entry.catalog.all()

    def add_broker(self) -> int:
        """Add a broker at run time, and return its id; it begins without topics.

        Raises:
            OptionError: there is no address for it.
            TubeMQConnectionError: a port cannot be opened.
        """
        node = self._nodes.open_next()
        node.intercept(None if self._interceptor_of is None else self._interceptor_of(node.id))
        node.entry.presence.mark_joined()
        self._master.state.brokers.add(node.entry)
        return node.id

    def add_topic(
        self, name: str, stores: int = 1, partitions: int = 1, *, brokers: Iterable[int] | None = None
    ) -> None:
        """Add a topic, or increase its stores and partitions per store.

        Args:
            name: the topic.
            stores: the number of logs on each broker.
            partitions: the number of partitions in each log.
            brokers: the ids of its brokers; None: those that have it, or all if it is new.

        Raises:
            OptionError: the name or a number is not allowed, the topic would shrink, or there is no such
                broker.
        """
        for node in self._nodes.select(name, brokers):
            node.set_topic(name, node.spec_with_shape(name, stores, partitions))

    def set_topic(self, name: str, spec: TopicSpec, *, brokers: Iterable[int] | None = None) -> None:
        """Add a topic, or change it; ``brokers`` and errors are those of ``add_topic``."""
        for node in self._nodes.select(name, brokers):
            node.set_topic(name, spec)

    def close_topic(self, name: str, *, brokers: Iterable[int] | None = None) -> None:
        """Close a topic, as an operator does to delete it: clients cannot use it, its data is kept.

        Raises:
            OptionError: one of ``brokers`` does not exist or does not have the topic.
        """
        self._change_status(name, TopicStatus.SOFT_DELETED, brokers)

    def remove_topic(self, name: str, *, brokers: Iterable[int] | None = None) -> None:
        """Remove a topic with its data; a stopped broker does so when it starts.

        Raises:
            OptionError: as in ``close_topic``.
        """
        self._change_status(name, TopicStatus.REMOVED, brokers)

    def apply_retention(self, topic: str, *, older_than_ms: int | None = None) -> None:
        """Delete old data of a topic now, as happens every few minutes; the earliest offsets rise.

        Whole files are deleted, except the last one of a log. With ``older_than_ms``, that age is used
        instead of the topic's, and all data that is old enough is deleted: 0 empties the topic.
        """
        for node in self._nodes:
            node.apply_retention(topic, older_than_ms)

    def overview(self) -> Overview:
        """Return the present traffic, clients, brokers and offsets."""
        return _overview(self._nodes, self._master)

    def stats(self) -> Traffic:
        """Return the messages and payload bytes that came in and went out since the start."""
        return self._nodes.traffic()

    def close(self) -> None:
        """Close the ports, save everything, release the directory; batches in flight count as consumed."""
        self._closing.close()

    def reopened(self) -> Self:
        """Return a new server with the same directory and ports; this one must be closed."""
        first = self._nodes.get(_FIRST).entry
        return type(self)(
            self.data,
            None,
            self._host,
            self._master.port,
            first.endpoint.port,
            self._master_web.port,
            first.web_port,
            settings=self._settings,
            advertised_host=self._advertised,
        )

    @property
    def _state(self) -> BrokerState:
        return self._nodes.get(_FIRST).state

    def _leader(self) -> str | None:
        """Return where a standby sends web calls: there is no other master to redirect to."""
        return self.master_web if self._master.state.standby.is_set() else None

    def _change_status(self, topic: str, status: TopicStatus, brokers: Iterable[int] | None) -> None:
        for node in self._nodes.select(topic, brokers):
            spec = node.entry.catalog.all().get(topic)
            if spec is None:
                raise OptionError("TUBEMQ_NO_SUCH_TOPIC", topic=topic, broker_id=node.id)
            node.set_topic(topic, dataclasses.replace(spec, status=status))

    def _intercept(self, make: InterceptorOf | None) -> None:
        self._interceptor_of = make
        self._master.interceptor = None if make is None else make(MASTER)
        for node in self._nodes:
            node.intercept(None if make is None else make(node.id))


def _locked(data: Path) -> DirectoryLock:
    """Create the directory if necessary, and take its lock."""
    try:
        make_directory(data)
        return DirectoryLock(data)
    except OSError as error:
        condition = f"TUBEMQ_DATA_DIR_UNUSABLE{'.FULL' if tells_of_full_disk(error) else ''}"
        raise OptionError(condition, path=data, cause=error) from error


def _require_guarded(host: str, settings: EmbeddedSettings) -> None:
    """Refuse to let other machines in with the public default of the administration token."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, UnicodeError) as error:
        raise OptionError("TUBEMQ_HOST_ELSEWHERE", host=host, cause=error) from error
    if not address.is_loopback and settings.admin_token == DEFAULT_ADMIN_TOKEN:
        raise OptionError("TUBEMQ_OPEN_TO_ALL", host=host)


def _master_calls(state: MasterState, token: str, set_topic: SetTopic) -> Mapping[str, Call]:
    """Return the web calls of a master; those that change something need ``token``."""
    groups: tuple[Mapping[str, Call], ...] = (
        ClusterCalls(state, token, wall_ms()).calls,
        BrokerSetup(state, token).calls,
        TopicCalls(state, token, set_topic).calls,
        GroupCalls(state, token).calls,
        ControlCalls(state, token).calls,
    )
    return {method: call for calls in groups for method, call in calls.items()}


def _overview(nodes: BrokerNodes, master: Master) -> Overview:
    """Return the present counts."""
    with master.state.lock:
        producers = master.state.members.producer_count
        consumers = sum(len(group.members) for group in master.state.members.groups.values())
    brokers = [broker for node in nodes if (broker := node.broker) is not None]
    return Overview(
        traffic=nodes.traffic(),
        connections=sum(server.connection_count for server in (master, *brokers)),
        producers=producers,
        consumers=consumers,
        leases=sum(len(broker.state.leases.all()) for broker in brokers),
        stores={store: bounds for node in nodes for store, bounds in _bounds(node)},
        brokers={node.id: node.condition for node in nodes},
    )


def _bounds(node: BrokerNode) -> Iterator[tuple[StoreId, OffsetBounds]]:
    if (broker := node.broker) is None:
        return
    for (topic, number), store in broker.state.stores.all().items():
        # The topic may just be removed, or the broker stopped.
        with contextlib.suppress(OSError):
            bounds = store.bounds
            yield StoreId(topic, node.id, number), OffsetBounds(bounds.earliest, bounds.latest)


__all__ = ["BrokerCondition", "EmbeddedSettings", "EmbeddedTubeMQ", "ServerTls", "TopicSpec", "Traffic"]

_ANY_HOST: Final = "0.0.0.0"  # noqa: S104  compared with, not listened on by default
_FIRST: Final = 1
"""The id of the first broker, whose data is in the directory itself."""
