"""A whole TubeMQ in this process: one master, one broker, their web ports, and a directory."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tubemq_spark.embedded.admin.broker_calls import BrokerCalls
from tubemq_spark.embedded.admin.broker_views import BrokerViews
from tubemq_spark.embedded.admin.brokers import BrokerSetup
from tubemq_spark.embedded.admin.cluster import Addresses, ClusterCalls
from tubemq_spark.embedded.admin.controls import ControlCalls
from tubemq_spark.embedded.admin.groups import GroupCalls
from tubemq_spark.embedded.admin.http import BROKER_FRAME, MASTER_FRAME, AdminServer
from tubemq_spark.embedded.admin.parameters import Call
from tubemq_spark.embedded.admin.settings import SettingCalls
from tubemq_spark.embedded.admin.topic_views import TopicViews
from tubemq_spark.embedded.admin.topics import TopicCalls
from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.broker.broker import Broker
from tubemq_spark.embedded.broker.leases import LeaseTable
from tubemq_spark.embedded.broker.offsets import OffsetTable
from tubemq_spark.embedded.broker.services import Service
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.broker.stores import StoreSet
from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.broker_config import BrokerConfig
from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import ClusterSetting, Controls
from tubemq_spark.embedded.config.files import DirectoryLock
from tubemq_spark.embedded.config.settings import BROKER_ID, EmbeddedSettings
from tubemq_spark.embedded.faults import Faults
from tubemq_spark.embedded.log.store import Traffic
from tubemq_spark.embedded.master.master import Master
from tubemq_spark.embedded.master.members import Members
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.overview import Overview, look
from tubemq_spark.embedded.tokens import VisitTokens
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Interceptor
from tubemq_spark.net.scheduler import Scheduler
from tubemq_spark.protocol.infostrings import BrokerInfo, format_broker_info

__all__ = ["EmbeddedSettings", "EmbeddedTubeMQ", "TopicSpec", "Traffic"]

_ANY_HOST: Final = "0.0.0.0"  # noqa: S104  compared with, not listened on by default


@dataclasses.dataclass(frozen=True, slots=True)
class _Ports:
    master: int
    broker: int
    master_web: int
    broker_web: int


class EmbeddedTubeMQ:
    """Runs from its construction until ``close``; also a context manager.

    With a directory everything outlives the process: topics, messages, committed offsets. What was
    acknowledged survives a kill of the process; a loss of power takes at most what was not flushed yet.
    """

    def __init__(
        self,
        data: Path | None = None,
        topics: Mapping[str, TopicSpec | tuple[int, int]] | None = None,
        host: str = "127.0.0.1",
        master_port: int = 0,
        broker_port: int = 0,
        master_web_port: int = 0,
        broker_web_port: int = 0,
        *,
        settings: EmbeddedSettings | None = None,
        advertised_host: str | None = None,
    ) -> None:
        """Open the directory and the ports.

        Args:
            data: where everything is kept; None: a temporary directory, removed at the end.
            topics: topics that shall be there, besides those of the directory; a pair is the number of
                stores and that of partitions of each store.
            host: IPv4 address or name to listen on.
            master_port: port of the master; 0 here and below: any free one.
            broker_port: port of the broker.
            master_web_port: port of the master's administration by HTTP.
            broker_web_port: port of the broker's.
            settings: everything else.
            advertised_host: the name under which clients reach this machine, when it is not ``host``.

        Raises:
            OptionError: another process uses the directory, or a topic is not as it may be.
            DataLossError: the directory is damaged in a way that recovery must not repair.
            TubeMQConnectionError: a port cannot be opened.
        """
        self._settings = settings or EmbeddedSettings()
        self._host = host
        self._advertised = advertised_host or ("127.0.0.1" if host == _ANY_HOST else host)
        if ":" in self._advertised:
            raise OptionError("TUBEMQ_BAD_ADDRESS", address=self._advertised)
        with contextlib.ExitStack() as closing:
            if data is None:
                data = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="tubemq-")))
            self.data = data
            self._state = self._open_data(closing)
            for topic, spec in (topics or {}).items():
                self._state.set_topic(
                    topic, spec if isinstance(spec, TopicSpec) else self._grown(topic, *spec)
                )
            self._ports = _Ports(master_port, broker_port, master_web_port, broker_web_port)
            self._ports = self._open_ports(closing)
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def master(self) -> str:
        """The master's ``host:port``, as clients need it."""
        return self._address(self._ports.master)

    @property
    def broker(self) -> str:
        """The broker's ``host:port``; clients learn it from the master."""
        return self._address(self._ports.broker)

    @property
    def master_web(self) -> str:
        """``host:port`` of the master's administration by HTTP."""
        return self._address(self._ports.master_web)

    @property
    def broker_web(self) -> str:
        """``host:port`` of the broker's administration by HTTP."""
        return self._address(self._ports.broker_web)

    @property
    def addresses(self) -> dict[str, str]:
        """All four addresses by the names of their properties."""
        names = ("master", "broker", "master_web", "broker_web")
        return {name: getattr(self, name) for name in names}

    @property
    def broker_id(self) -> int:
        """The id of the one broker."""
        return BROKER_ID

    def topics(self) -> dict[str, TopicSpec]:
        """Return the topics by name."""
        return self._state.catalog.all()

    def add_topic(self, name: str, stores: int = 1, partitions: int = 1) -> None:
        """Add a topic, or let it grow to this many stores and partitions of each store.

        Raises:
            OptionError: the name or a number is not allowed, or the topic would shrink.
        """
        self._state.set_topic(name, self._grown(name, stores, partitions))

    def apply_retention(self, topic: str, *, older_than_ms: int | None = None) -> None:
        """Delete old data of a topic now, as it happens every few minutes; the earliest offsets rise.

        Whole files go, never the last one of a log. With ``older_than_ms`` that age counts instead of the
        topic's, and all data that are old enough go: 0 empties the topic.
        """
        spec = self._state.catalog.get(topic)
        for (name, _), store in self._state.stores.all().items():
            if spec is not None and name == topic:
                age_ms = spec.retention_ms if older_than_ms is None else older_than_ms
                store.expire(age_ms, roll=older_than_ms is not None)

    def overview(self) -> Overview:
        """Return what goes on: traffic, clients, what the stores hold."""
        connections = self._master.connection_count + self._broker.connection_count
        return look(self._state.stores, self._state.leases, self._master.state, connections)

    def stats(self) -> Traffic:
        """Return how many messages and payload bytes came in and went out since the start."""
        return self._state.stores.traffic()

    def close(self) -> None:
        """Close the ports, save everything, let go of the directory; batches in flight count as consumed."""
        self._closing.close()

    def reopened(self) -> Self:
        """Return a new server on the same directory and ports, after this one was closed."""
        ports = self._ports
        return type(self)(
            self.data,
            None,
            self._host,
            ports.master,
            ports.broker,
            ports.master_web,
            ports.broker_web,
            settings=self._settings,
            advertised_host=self._advertised,
        )

    def _open_data(self, closing: contextlib.ExitStack) -> BrokerState:
        self.data.mkdir(parents=True, exist_ok=True)
        closing.enter_context(DirectoryLock(self.data))
        catalog = Catalog(self.data / "topics.json")
        stores = StoreSet(self.data / "stores", catalog, self._settings)
        closing.callback(stores.close)
        offsets = OffsetTable(self.data / "offsets.json")
        closing.callback(offsets.close)
        state = BrokerState(
            self._settings,
            self._advertised,
            catalog,
            stores,
            offsets,
            LeaseTable(self._settings.lease_timeout_ms),
            VisitTokens(self._settings.visit_token_period_ms),
            Controls(
                self.data / "controls.json",
                ClusterSetting(query_priority=self._settings.query_priority),
            ),
            BrokerConfig(self.data / "broker.json"),
            Authentication(self._settings),
            reads=Service(self._settings.allowed_io_errors),
            writes=Service(self._settings.allowed_io_errors),
        )
        state.finish_removals()
        return state

    def _open_ports(self, closing: contextlib.ExitStack) -> _Ports:
        """Open the ports that are asked for and return those that are; they are closed before the data."""
        state, settings, wish = self._state, self._settings, self._ports
        scheduler = Scheduler()
        closing.callback(scheduler.close)
        broker = Broker(state, self._host, wish.broker, scheduler)
        closing.callback(broker.close)
        broker_endpoint = Endpoint(self._advertised, broker.port)
        master_state = MasterState(
            state.catalog,
            state.controls,
            state.broker_config,
            state.tokens,
            Members(settings.client_timeout_ms),
            state.authentication,
            format_broker_info(BrokerInfo(BROKER_ID, broker_endpoint), default_port=None),
            wall_ms(),
        )
        master = Master(master_state, self._host, wish.master, settings, scheduler)
        closing.callback(master.close)
        broker_web = AdminServer(
            "broker",
            self._host,
            wish.broker_web,
            BrokerCalls(state).calls,
            BROKER_FRAME,
        )
        closing.callback(broker_web.close)
        addresses = Addresses(Endpoint(self._advertised, master.port), broker_endpoint, broker_web.port)
        master_web = AdminServer(
            "master",
            self._host,
            wish.master_web,
            self._master_calls(master_state, addresses),
            MASTER_FRAME,
            # There is no other master to send callers to.
            leader=lambda: self.master_web if master_state.standby.is_set() else None,
        )
        closing.callback(master_web.close)

        self._broker, self._master = broker, master

        def intercept(interceptor: Interceptor | None) -> None:
            broker.intercept(interceptor)
            master.intercept(interceptor)

        self.faults = Faults(
            state, master_state, intercept, lambda topic: self.apply_retention(topic, older_than_ms=0)
        )
        """What can go wrong at this server, on demand."""
        # First of all: what a fault holds would hold up the ports' end.
        closing.callback(self.faults.clear)
        return _Ports(master.port, broker.port, master_web.port, broker_web.port)

    def _master_calls(self, state: MasterState, addresses: Addresses) -> Mapping[str, Call]:
        token = self._settings.admin_token
        topics = TopicViews(state, addresses)
        groups: tuple[Mapping[str, Call], ...] = (
            ClusterCalls(addresses, wall_ms()).calls,
            BrokerSetup(state, addresses, token, self._state.release_services).calls,
            BrokerViews(state, addresses, topics).calls,
            TopicCalls(state, token, self._state.set_topic).calls,
            topics.calls,
            GroupCalls(state, token).calls,
            ControlCalls(state, token).calls,
            SettingCalls(state, token, self._state.set_topic).calls,
        )
        return {method: call for calls in groups for method, call in calls.items()}

    def _grown(self, topic: str, stores: int, partitions: int) -> TopicSpec:
        """Return a topic's rules with this shape; one that is new, or was closed, gets the usual rules."""
        old = self._state.catalog.get(topic)
        base = old if old is not None and old.status is TopicStatus.NORMAL else TopicSpec()
        return dataclasses.replace(base, stores=stores, partitions=partitions)

    def _address(self, port: int) -> str:
        return str(Endpoint(self._advertised, port))
