"""What every scenario has: hosts of clients, servers on others, and the end of all troubles."""

import asyncio
import socket
from typing import Final

import simloom

from simulation import chance, hosts
from simulation.server import Server
from tubemq_spark.model import Endpoint

_USUAL_DELAY_S: Final = (0.0005, 0.02)
GRACE_S: Final = 60.0
"""After so long at most a client knows that a server is well again."""


class Scene:
    """Hosts of clients and servers; everything is well until a trouble comes."""

    def __init__(self, world: simloom.World) -> None:
        self.world = world
        self.client = world.host("client")
        self.clients = [self.client]
        """The hosts whose ways to servers may have troubles."""
        self._all_clients = [self.client]
        self._gone: set[asyncio.Task[object]] = set()
        """The tasks of hosts that have crashed."""
        self.exposed: list[Server] | None = None
        """The servers that may have troubles; None: all."""
        self.names_fail = False
        """Whether no name can be looked up at present."""

    @property
    def servers(self) -> list[Server]:
        """All servers that should answer."""
        raise NotImplementedError

    def any_server(self) -> Server:
        """Return a server that may have troubles."""
        return chance.one_of(self.servers if self.exposed is None else self.exposed)

    def any_client(self) -> simloom.Host:
        """Return a client's host."""
        if len(self.clients) < 2:
            return self.clients[0] if self.clients else self.client
        return chance.one_of(self.clients)

    def add_client(self, name: str) -> simloom.Host:
        """Return the host of one more client, which may have troubles like the others."""
        host = self.world.host(name)
        self.clients = [client for client in self.clients if client is not self.client] + [host]
        self._all_clients.append(host)
        return host

    def crash_client(self, host: simloom.Host) -> None:
        """Cut the power of a client's host for good."""
        self.note_gone(host)
        host.crash()
        self.remove_client(host)

    def note_gone(self, host: simloom.Host) -> None:
        """Take note that the tasks of a host never end: it is about to crash."""
        self._gone.update(host._live_tasks())  # noqa: SLF001

    def remove_client(self, host: simloom.Host) -> None:
        """Make troubles of a client's host end."""
        hosts.thaw(host)
        if host in self.clients:
            self.clients.remove(host)

    async def look_up(self, endpoint: Endpoint) -> list[tuple[int, int, int, tuple[str, int]]]:
        """Return the addresses behind a name: its host, after a while."""
        await asyncio.sleep(chance.between(0.0, 0.1))
        if self.names_fail:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, (endpoint.host, endpoint.port))]

    def heal(self) -> None:
        """End all troubles."""
        self.names_fail = False
        self.world.net.heal()
        for client in self.clients:
            hosts.thaw(client)
        for server in self.servers:
            server.restart()
            server.thaw()
            server.faults, server.fault_percent = (), 0
            for client in self.clients:
                self.set_delay(server, *_USUAL_DELAY_S, client)

    def set_delay(
        self, server: Server, least_s: float, most_s: float, client: simloom.Host | None = None
    ) -> None:
        """Delay bytes between a client, by default the first, and a server."""
        host = client or self.client
        self.world.net.set_link_latency(host, server.host, least_s, most_s)
        self.world.net.set_link_latency(server.host, host, least_s, most_s)

    async def nothing_is_left(self) -> None:
        """Assert that no task of a client is left, and no connection."""
        others = {asyncio.current_task(), *self._gone}
        tasks = [task for task in asyncio.all_tasks() if task not in others and _is_the_clients(task)]
        assert not tasks, f"tasks are left: {tasks}"
        await asyncio.sleep(0.001)  # a transport that was closed tells its protocol a turn later
        # What a closed end still had to send through a cut is dropped, so servers may never know of it.
        transports = self.world.net._live_transports.values()  # noqa: SLF001
        of_clients = [transport for transport in transports if transport.owner in self._all_clients]
        assert not of_clients, f"connections are left: {of_clients}"


def _is_the_clients(task: asyncio.Task[object]) -> bool:
    return not task.get_name().startswith(("task-0", "master", "broker", "server"))
