"""A running broker and a running master: each is a value that exists from its start to its end."""

import contextlib
import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tubemq_spark.embedded.admin.broker_calls import BrokerCalls
from tubemq_spark.embedded.admin.brokers import BrokerSetup
from tubemq_spark.embedded.admin.cluster import ClusterCalls
from tubemq_spark.embedded.admin.controls import ControlCalls
from tubemq_spark.embedded.admin.groups import GroupCalls
from tubemq_spark.embedded.admin.http import BROKER_FRAME, MASTER_FRAME, AdminServer
from tubemq_spark.embedded.admin.parameters import Call
from tubemq_spark.embedded.admin.topics import SetTopic, TopicCalls
from tubemq_spark.embedded.authentication import Authentication
from tubemq_spark.embedded.broker.broker import Broker
from tubemq_spark.embedded.broker.leases import LeaseTable
from tubemq_spark.embedded.broker.offsets import OffsetTable
from tubemq_spark.embedded.broker.services import Service
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.broker.stores import StoreSet
from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.catalog import Catalog
from tubemq_spark.embedded.config.controls import Controls
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.master.master import Master
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.scheduler import Scheduler
from tubemq_spark.embedded.tokens import VisitTokens


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


@dataclasses.dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker with its open stores and ports."""

    state: BrokerState
    broker: Broker
    web: AdminServer
    scheduler: Scheduler

    @classmethod
    def open(cls, location: BrokerLocation, catalog: Catalog, cluster: ClusterState) -> Self:
        """Open the stores and then the ports."""
        with contextlib.ExitStack() as undo:
            state = _open_state(location, catalog, cluster)
            undo.callback(state.stores.close)
            scheduler = Scheduler()
            undo.callback(scheduler.close)
            broker = Broker(state, location.host, location.port, scheduler)
            undo.callback(broker.close)
            web = AdminServer(
                "broker",
                location.host,
                location.web_port,
                BrokerCalls(state).calls,
                BROKER_FRAME,
                advertised=location.advertised,
            )
            undo.pop_all()
            return cls(state, broker, web, scheduler)

    def freeze(self) -> None:
        """Read and answer nothing from now on; connections stay open, and connecting succeeds."""
        self.broker.freeze()
        self.web.freeze()

    def thaw(self) -> None:
        """Resume with what arrived in the meantime."""
        self.broker.thaw()
        self.web.thaw()

    def close(self, ending: Ending) -> None:
        """Close the ports, and then the stores."""
        with contextlib.ExitStack() as closing:
            closing.callback(self.state.stores.close)
            if ending is Ending.POWER_CUT:
                closing.callback(self.state.stores.lose_unflushed)
            if ending is Ending.ORDERLY:
                closing.callback(self.state.offsets.close)
            closing.callback(self.scheduler.close)
            closing.callback(self.broker.close)
            closing.callback(self.web.close)


def _open_state(location: BrokerLocation, catalog: Catalog, cluster: ClusterState) -> BrokerState:
    settings = cluster.settings
    stores = StoreSet(location.directory / "stores", catalog, settings)
    with contextlib.ExitStack() as undo:
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
        undo.pop_all()
    return state


@dataclasses.dataclass(frozen=True, slots=True)
class RunningMaster:
    """The master with its open ports."""

    state: MasterState
    master: Master
    web: AdminServer
    scheduler: Scheduler

    @classmethod
    def open(
        cls,
        state: MasterState,
        host: str,
        ports: tuple[int, int],
        settings: EmbeddedSettings,
        calls: Mapping[str, Call],
    ) -> Self:
        """Open the ports: the one for clients and the web port (0: any free one)."""
        port, web_port = ports
        with contextlib.ExitStack() as undo:
            scheduler = Scheduler()
            undo.callback(scheduler.close)
            master = Master(state, host, port, settings, scheduler)
            undo.callback(master.close)

            def leader() -> str | None:
                # There is no other master to redirect to.
                return f"{state.address.host}:{web.port}" if state.standby.is_set() else None

            web = AdminServer(
                "master",
                host,
                web_port,
                calls,
                MASTER_FRAME,
                leader=leader,
                advertised=state.address.host,
            )
            undo.pop_all()
            return cls(state, master, web, scheduler)

    def close(self) -> None:
        """Close the ports."""
        with contextlib.ExitStack() as closing:
            closing.callback(self.scheduler.close)
            closing.callback(self.master.close)
            closing.callback(self.web.close)


def master_calls(state: MasterState, token: str, set_topic: SetTopic) -> Mapping[str, Call]:
    """Return the web calls of a master; those that change something need ``token``."""
    groups: tuple[Mapping[str, Call], ...] = (
        ClusterCalls(state, token, wall_ms()).calls,
        BrokerSetup(state, token).calls,
        TopicCalls(state, token, set_topic).calls,
        GroupCalls(state, token).calls,
        ControlCalls(state, token).calls,
    )
    return {method: call for calls in groups for method, call in calls.items()}
