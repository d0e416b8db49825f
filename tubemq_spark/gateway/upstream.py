"""TubeMQ, as sessions see it: by the client package.

Sessions with equal settings share routes. Questions, ranges and consumers of all sessions go over the same
connections, one to each master and broker. Producers have their own (``pipelines``).

**Where the masters are** is looked up every ``master_discovery_ms``, if the settings say so. The list of the
settings counts until the first answer. An answer that does not come, or names no master, changes nothing: the
last good list stays, and the log says so, once until an answer comes. Sessions keep their connections; they
ask the new masters with their next question.
"""

import asyncio
import dataclasses
import functools
import logging
import re
import socket
import weakref
from collections.abc import Callable, Iterable
from typing import Final

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.core import AssignedCore
from tubemq_spark.client.consumer.core import ConsumerSetup
from tubemq_spark.client.consumer.group.core import GroupCore
from tubemq_spark.client.consumer.user_code import UserLoop
from tubemq_spark.client.consumer_config import Node, Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.client.metadata.routes import Routes
from tubemq_spark.client.remote import wire
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.gateway.admission import Admission, WorkLimit
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net import http_client
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.fair_quota import Owner
from tubemq_spark.offsets.loss import LossPolicy
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

logger = logging.getLogger(__name__)

_FIRST_CONTACT_MS: Final = 3_000
_REFRESHED_AT_ONCE: Final = 8
_LONGEST_HTTP_MS: Final = 30_000
"""What asks over HTTP has one of few places until it is answered, also when its caller has gone."""
_TIMEOUT_S: Final = 3.0
_ADDRESS: Final = re.compile(r"([\w.-]+|\[[\da-f:]+\]):\d+", re.ASCII | re.IGNORECASE)
_SHOWN: Final = 40
"""How many characters of a wrong address an error shows."""
_MOST_BYTES: Final = 64 << 10
"""Of a list over HTTP."""


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Access:
    """TubeMQ under one set of settings."""

    config: ClientConfig
    transport: DirectTransport
    routes: Routes

    @property
    def http_timeout_ms(self) -> int:
        """How long a server may take over HTTP: no client can make that long."""
        return min(self.config.rpc_timeout_ms, _LONGEST_HTTP_MS)


class Upstream:
    """Opens TubeMQ for sessions; used in the event loop."""

    def __init__(self, settings: GatewaySettings, admission: Admission) -> None:
        """Open no connection."""
        self._settings = settings
        self._admission = admission
        base = settings.client_config()
        waits = dataclasses.replace(base.consumer, not_found_wait_ms=settings.poll_ms)
        self._base = dataclasses.replace(base, consumer=waits)
        self._connections = Connections(self._base.connect_timeout_ms)
        self._accesses: weakref.WeakValueDictionary[ClientConfig, Access] = weakref.WeakValueDictionary()
        self.on_route_change: Callable[[Access, str, int], object] = lambda _access, _topic, _partitions: None
        """Called when a topic has other partitions than before, or elsewhere."""

    def access(self, request: pb.SessionSettings) -> Access:
        """Return TubeMQ for what a session asks for; asks no server."""
        config = wire.settings_from_proto(request, self._base, self._settings.most)
        access = self._accesses.get(config)
        if access is None:
            access = self._accesses[config] = self._new_access(config)
        return access

    def accesses(self) -> list[Access]:
        """Return those that sessions use now; metrics are made in another thread."""
        references = self._accesses.valuerefs()
        return [access for reference in references if (access := reference()) is not None]

    @property
    def connections(self) -> int:
        """How many connections all sessions share; those of producers are not among them."""
        return len(self._connections.shared())

    @property
    def degraded(self) -> bool:
        """Whether no master answered when one was asked last."""
        return any(access.routes.degraded for access in self.accesses())

    def administration(self, access: Access, owner: Owner, patience_s: float | None) -> DirectTransport:
        """Return the transport by which an owner asks over HTTP, and waits so long for a thread."""
        config = dataclasses.replace(access.config, rpc_timeout_ms=access.http_timeout_ms)
        run = self._admission.administration.run_in_thread
        run_for_owner = functools.partial(run, owner=owner, patience_s=patience_s)
        return access.transport.with_config(config).with_threads(run_for_owner)

    def consumer(
        self,
        access: Access,
        subscription: Subscription,
        client_id: str,
        on_loss: LossPolicy,
        node: Node | None,
    ) -> AssignedCore:
        """Return a new consumer under the settings and the client id of a session; asks no server.

        It lives in the gateway's event loop, where ``on_loss`` is called.
        """
        setup = ConsumerSetup(
            access.config, subscription, UserLoop(), on_loss, node=node, client_id=client_id
        )
        return access.transport.assigned_consumer(setup)

    def member(
        self, access: Access, subscription: Subscription, client_id: str, on_loss: LossPolicy
    ) -> GroupCore:
        """Return a new member of a session's group, as ``consumer`` does."""
        setup = ConsumerSetup(access.config, subscription, UserLoop(), on_loss, client_id=client_id)
        return access.transport.group_consumer(setup)

    def _new_access(self, config: ClientConfig) -> Access:
        settings = self._settings
        transport = DirectTransport(
            config,
            self._connections,
            settings.web_servers,
            # A client may not know of the topics that it has no right to.
            suggests=False,
            run_in_thread=self._admission.checks.run_in_thread,
        )
        routes = Routes(transport, settings.route_refresh_ms / 1000, settings.route_expiry_ms / 1000)
        access = Access(config, transport, routes)
        # Not a reference that would keep it: the access has the routes.
        reference = weakref.ref(access)

        def tell(topic: str, partitions: int) -> None:
            if (there := reference()) is not None:
                self.on_route_change(there, topic, partitions)

        routes.on_change = tell
        return access

    async def contact(self) -> TubeMQConnectionError | None:
        """Connect to a master; return why none can be reached, or None."""
        failure = None
        for master in identity.current_masters(self._base.masters):
            try:
                await self._connections.get(master, _FIRST_CONTACT_MS, self._base.tls)
            except TubeMQConnectionError as error:
                failure = error
            else:
                return None
        return failure

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()


class RouteRefresh:
    """Refreshes the routes of all accesses, each beside the others; used in the event loop.

    At most ``_REFRESHED_AT_ONCE`` are under way. One that takes longer than a round is not begun again in the
    next one, and holds up none of the others.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_REFRESHED_AT_ONCE)
        self._under_way: dict[Access, asyncio.Task[None]] = {}

    def begin(self, accesses: Iterable[Access]) -> None:
        """Begin a round."""
        for access in accesses:
            if access not in self._under_way:
                task = self._under_way[access] = asyncio.create_task(self._refresh(access))
                task.add_done_callback(functools.partial(self._under_way.pop, access))

    async def stop(self) -> None:
        """End what is under way, and wait for that."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh(self, access: Access) -> None:
        async with self._places:
            try:
                await access.routes.refresh()
            except TubeMQError as error:
                logger.warning("the routes of group %s were not refreshed: %s", access.config.group, error)
            except Exception:  # (the others have to be refreshed all the same)
                logger.exception("refreshing the routes of group %s failed", access.config.group)


class Discovery:
    """The masters of one gateway; used in the event loop."""

    def __init__(self, settings: GatewaySettings, administration: WorkLimit) -> None:
        self._settings = settings
        self._first = settings.client_config().masters
        self._administration = administration
        self._failing = False
        self.is_on = settings.master_discovery != "off"
        """Whether the settings say how to find out where the masters are."""

    async def refresh(self) -> None:
        """Find out where the masters are, and have sessions ask them; raises nothing."""
        if not self.is_on:
            return
        before = identity.current_masters(self._first)
        try:
            # A name server that is silent has no limit of its own.
            async with asyncio.timeout(_TIMEOUT_S):
                members = await self._administration.run_in_thread(self._find)
        except (OSError, ValueError, TubeMQError) as error:
            if not self._failing:
                cause = str(error) or f"no server answered within {_TIMEOUT_S:.0f} s"
                logger.warning("the masters stay %s, since others cannot be found: %s", _texts(before), cause)
            self._failing = True
            return
        self._failing = False
        if set(members) != set(before):
            identity.replace_masters(self._first, members)
            logger.info("the masters are %s now, and were %s before", _texts(members), _texts(before))

    def _find(self) -> tuple[Endpoint, ...]:
        url = self._settings.master_discovery_url
        members = _by_name(self._first) if url is None else _listed_at(url)
        if not members:
            raise ValueError("the answer names no master")
        return members


def _by_name(hosts: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return all addresses that the hosts have now."""
    members = {
        Endpoint(str(address[0]), host.port): None
        for host in hosts
        for *_, address in socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    }
    return tuple(members)


def _listed_at(url: str) -> tuple[Endpoint, ...]:
    text = http_client.fetch(url, _TIMEOUT_S, _MOST_BYTES).decode()
    addresses = [address for address in re.split(r"[\s,;]+", text) if address]
    # A page that is something else, such as an error in HTML, must not become names of hosts.
    if strange := [address for address in addresses if not _ADDRESS.fullmatch(address)]:
        raise ValueError(f"{strange[0][:_SHOWN]!r} is not host:port")
    return tuple(dict.fromkeys(map(Endpoint.parse, addresses)))


def _texts(masters: Iterable[Endpoint]) -> str:
    return ", ".join(map(str, masters))
