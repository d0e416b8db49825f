"""Gateways before a simulated cluster, each on a host of its own, where they are the real ones.

A gateway drains and begins again on the same host, freezes, crashes and comes back; to TubeMQ it is a client,
whose ways to masters and brokers may be slow or cut like those of others.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import simloom

from simulation import chance, hosts
from simulation.cluster import Cluster
from simulation.troubles import last
from simulation.wire import SimulatedChannels, SimulatedListener
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.remote.consumers import RemoteAssignedCore, RemoteGroupCore
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.transport.gateway import GatewayTransport
from tubemq_spark.gateway import admission, policy, publishing, sessions
from tubemq_spark.gateway.calls import ServedCall
from tubemq_spark.gateway.server import GatewayServer
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses, byte_connection

PORT: Final = 11911
_LOOK_S: Final = 6.0
"""After so long a gateway has looked at its policy."""
_WITH_THREADS: Final = (admission, byte_connection, policy)
"""Modules that have threads for what has no coroutines: large batches, names, files."""
_ROWS_READ: Final = 'tubemq_gateway_rows_total{direction="read"}'
_TOKEN: Final = "the token of all clients"


class Gateway:
    """A gateway on a host of its own; what troubles of any server need of it is as with ``Server``."""

    def __init__(self, cluster: Cluster, name: str, drain_ms: int, policy_file: Path | None = None) -> None:
        self.endpoint = Endpoint(name, PORT)
        self.host = cluster.world.host(name)
        self.faults = ()
        self.fault_percent = 0
        self.model = None
        self.settings = GatewaySettings(
            master_servers=cluster.master_addresses,
            listen=self.endpoint,
            node_name=name,
            drain_ms=drain_ms,
            route_refresh_ms=chance.one_of((100, 5_000, 60_000)),
            poll_ms=chance.one_of((100, 200, 1_000)),
        ).validate()
        if policy_file is not None:
            # Outside simulated worlds that needs TLS.
            self.settings = dataclasses.replace(self.settings, policy=str(policy_file))
        self.server: GatewayServer | None = None
        """Which runs, or did before its host has crashed."""
        self.listener: SimulatedListener | None = None
        self.drained_s = 0.0
        """How long it took to end when it drained last."""
        self._stopped = asyncio.Event()
        self._is_to_stop = asyncio.Event()
        self._ends = False
        self._serves_since = float("inf")
        self._gone: Callable[[simloom.Host], object] = lambda _: None
        self.task = self.host.spawn(self._run, name=name)

    def tell_gone(self, tell: Callable[[simloom.Host], object]) -> None:
        """Call a function before the host crashes."""
        self._gone = tell

    @property
    def rows_read(self) -> float:
        """How many messages it has given to consumers, as it tells."""
        assert self.server is not None
        lines = self.server.metrics.text().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(_ROWS_READ))

    def serves_since(self, since: float) -> bool:
        """Whether it serves, and has neither crashed nor been frozen since a moment."""
        return (
            not self.host.crashed
            and not hosts.was_frozen(self.host, since)
            and self._serves_since < since
            and not self._is_to_stop.is_set()
        )

    # Troubles.

    def freeze(self) -> None:
        """Stop the process without ending it."""
        if not self.host.crashed:
            hosts.freeze(self.host)

    def thaw(self) -> None:
        """Continue the process where it was."""
        hosts.thaw(self.host)

    def crash(self) -> None:
        """Cut the power."""
        self._gone(self.host)
        hosts.drop(self.host)
        self.host.crash()
        self._serves_since = float("inf")

    def restart(self) -> None:
        """Start the host again, and the gateway on it, if it had crashed."""
        if self.host.crashed:
            self.host.restart()

    def drop_connections(self) -> None:
        """End all connections of clients."""
        if self.listener is not None and not self.host.crashed:
            for connection in list(self.listener.connections):
                connection.close()

    async def drain(self) -> None:
        """Drain and end; it begins again soon."""
        if self.host.crashed or self._is_to_stop.is_set():
            return
        simloom.reached("a gateway drains")
        self._is_to_stop.set()

    async def end(self) -> None:
        """Drain and end for good."""
        self._ends = True
        self._is_to_stop.set()
        await self._stopped.wait()

    async def _run(self) -> None:
        """Serve, again after each drain."""
        if not self._ends:
            self._is_to_stop.clear()  # its host may have crashed while it drained
        while not self._ends:
            self.server = server = GatewayServer(self.settings, listener=self._listen)
            await server.start()
            self._serves_since = asyncio.get_running_loop().time()
            await self._is_to_stop.wait()
            began = asyncio.get_running_loop().time()
            await server.stop()
            self.drained_s = asyncio.get_running_loop().time() - began
            self._is_to_stop.clear()
            if not self._ends:
                await asyncio.sleep(chance.between(0.1, 5.0))
        self._stopped.set()

    def _listen(self, settings: GatewaySettings) -> SimulatedListener:
        self.listener = SimulatedListener(settings)
        return self.listener


class Fleet(Cluster):
    """A cluster, and two gateways before it, which are servers of clients."""

    def __init__(
        self,
        world: simloom.World,
        *,
        count: int = 2,
        policy_file: Path | None = None,
        **shape: Any,  # noqa: ANN401 (those of Cluster)
    ) -> None:
        self.gateways: list[Gateway] = []
        super().__init__(world, **shape)
        self.drain_ms = chance.one_of((1, 2_000, 10_000))
        self.policy = policy_file
        self.allow()
        for number in range(1, count + 1):
            gateway = Gateway(self, f"gateway{number}", self.drain_ms, policy_file)
            gateway.tell_gone(self.note_gone)
            self.gateways.append(gateway)
        self.clients = [gateway.host for gateway in self.gateways]

    @property
    def servers(self) -> list[Any]:
        """All servers that should answer, gateways more often than others."""
        return [*super().servers, *self.gateways, *self.gateways]

    def any_gateway(self) -> Gateway:
        """Return one of the gateways."""
        return chance.one_of(self.gateways)

    def way(self, config: ClientConfig, kind: str = "Pull") -> Gateways:
        """Return gateways of a client, with a session of its own."""
        places = tuple(gateway.endpoint for gateway in self.gateways)
        token = None if self.policy is None else _TOKEN
        return Gateways(places, config, token, kind=kind, channels=SimulatedChannels)

    def heal(self) -> None:
        """End all troubles."""
        super().heal()
        self.allow()

    @property
    def denies(self) -> bool:
        """Whether rights are taken away at present."""
        return self.policy is not None and "[]" in self.policy.read_text()

    def allow(self, *, everything: bool = True) -> None:
        """Say in the policy, if there is one, that clients may do everything, or not consume in any group."""
        if self.policy is not None:
            digest = hashlib.sha256(_TOKEN.encode()).hexdigest()
            groups = '["*"]' if everything else "[]"
            text = f'name = "all"\ntoken_sha256 = "{digest}"\nread = ["*"]\nwrite = ["*"]\ngroup = {groups}\n'
            self.policy.write_text(f"[[clients]]\n{text}")

    def group_consumer(self, setup: ConsumerSetup) -> ConsumerCore:
        """Return a new member of a group."""
        gateways = self.way(setup.config, "Balance")
        return RemoteGroupCore(setup, gateways, GatewayTransport(gateways))

    def assigned_consumer(self, setup: ConsumerSetup) -> ConsumerCore:
        """Return a new consumer of partitions that its user names; gateways do not tell of resets."""
        assert not setup.follow_resets
        gateways = self.way(setup.config, "Balance")
        return RemoteAssignedCore(setup, gateways, GatewayTransport(gateways))

    async def nothing_is_left(self) -> None:
        """End the gateways; assert that no task of a client or gateway is left, and no connection."""
        await asyncio.gather(*(gateway.end() for gateway in self.gateways))
        await asyncio.sleep(0.01)  # what gateways have cancelled ends a moment later
        await super().nothing_is_left()


async def drain(fleet: Fleet) -> None:
    """Drain a gateway, which begins again soon."""
    await fleet.any_gateway().drain()


async def take_rights(fleet: Fleet) -> None:
    """Take away the right to consume in groups, for a while, if there is a policy; it counts soon."""
    if fleet.policy is None or fleet.denies:
        return
    began = fleet.world.time
    fleet.allow(everything=False)
    await asyncio.sleep(_LOOK_S)
    before = {gateway: gateway.rows_read for gateway in fleet.gateways if gateway.serves_since(began)}
    await last()
    for gateway, rows in before.items():
        if gateway.serves_since(began):
            simloom.reached("rights were taken away")
            assert gateway.rows_read == rows, f"{gateway.endpoint} gives messages to clients without rights"
    fleet.allow()


@contextlib.contextmanager
def one_world() -> Iterator[None]:
    """Do in the loop what gateways do in threads, and order their sets as the seed decides."""
    numbers = itertools.count()

    def number(one: Any) -> int:  # noqa: ANN401
        return one.__dict__.setdefault("_number", next(numbers))  # type: ignore[no-any-return]

    patches: list[Any] = [
        mock.patch.object(ServedCall, "__hash__", lambda call: hash((call.peer, call.method.name))),
        mock.patch.object(sessions.Inbox, "__hash__", number),
        mock.patch.object(publishing._PublishStream, "__hash__", number),  # noqa: SLF001
        *(mock.patch.object(module, "in_thread", _at_once) for module in _WITH_THREADS),
        mock.patch.object(addresses, "addresses_of", _addresses_of),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


async def _at_once(call: Callable[[], Any], name: str) -> Any:  # noqa: ANN401, ARG001
    await asyncio.sleep(chance.between(0.0, 0.05))
    return call()


def _addresses_of(endpoint: Endpoint) -> list[tuple[int, int, int, tuple[str, int]]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, (endpoint.host, endpoint.port))]
