"""A server of TubeMQ in a simulated world: a model's answers over our own protocol, and what can go wrong.

A server's process may freeze: then what it is sent is received, as much as the sockets hold, but not read,
and it sends nothing. Its host may crash: then its tasks and connections are gone, and what the model had in
memory. Single requests may meet a fault instead of being answered.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Final, Protocol

import simloom
from google.protobuf.message import Message

from simulation import chance
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, Status

_JAVA: Final = "org.apache.inlong.tubemq."


class RaisedError(Exception):
    """What a server answers instead of a message: an exception of Java."""

    def __init__(self, exception: str, text: str, status: Status = Status.ERROR) -> None:
        super().__init__(text)
        self.exception, self.text, self.status = exception, text, status


class Model(Protocol):
    """The rules of a server, without a network; ``now`` is set before each request."""

    now: float
    is_late: bool
    """Whether the request has come in behind later ones of the same client."""

    def answer(self, method: Method, body: bytes | memoryview) -> Message:
        """Do what a request asks and return the answer, or raise ``RaisedError``."""

    def crash(self) -> None:
        """Lose what was in memory only."""


@dataclasses.dataclass(frozen=True)
class Received:
    """A request that a server read."""

    at: float
    method: Method
    body: bytes


Fault = Callable[["Exchange"], None]
"""Called instead of the model's answer."""


class Exchange:
    """A request, and what can be done about it."""

    def __init__(self, server: "Server", peer: "_Peer", request: rpc.Request) -> None:
        self.server = server
        self.request = request
        self._peer = peer
        self._read_at = server.model.now

    def carry_out(self) -> Message | RaisedError:
        """Do what the request asks; return the answer without sending it."""
        self.server.model.now = asyncio.get_running_loop().time()
        self.server.model.is_late = self._peer.is_old or self.server.model.now > self._read_at
        try:
            return self.server.model.answer(Method(self.request.method), self.request.body)
        except RaisedError as error:
            return error

    def answer(self, answer: Message | RaisedError | bytes) -> None:
        """Send an answer."""
        self._peer.send(self.encoded(answer))

    def encoded(self, answer: Message | RaisedError | bytes) -> bytes:
        """Return the bytes of an answer, which must be sent, or be the last ones of the connection."""
        connection = self._peer.connection
        if isinstance(answer, RaisedError):
            connection.send_failure(self.request, answer.status, _JAVA + answer.exception, answer.text)
        else:
            body = answer if isinstance(answer, bytes) else rpc.serialize_message(answer)
            connection.send_response(self.request, body)
        return connection.data_to_send()

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._peer.send(data)

    def hang_up(self) -> None:
        """Close the connection."""
        self._peer.send_rest()
        self._peer.transport.close()

    def fall_silent(self) -> None:
        """Send nothing more on this connection."""
        self._peer.send_rest()
        self._peer.is_silent = True


class Server:
    """A process on a host of its own; it runs again when the host does."""

    def __init__(self, world: simloom.World, name: str, port: int, model: Model) -> None:
        self.host = world.host(name)
        self.endpoint = Endpoint(name, port)
        self.model = model
        self.frozen = False
        self.faults: tuple[Fault, ...] = ()
        """What requests meet at present, ``fault_percent`` of them."""
        self.fault_percent = 0
        self.drops_late = False
        """Whether requests of a connection are lost for which its client has made another one."""
        self.received: list[Received] = []
        self.peers: list[_Peer] = []
        self.newest: dict[object, _Peer] = {}
        """The last connection of each host."""
        self.task = self.host.spawn(self._serve)

    def freeze(self) -> None:
        """Stop the process without ending it."""
        self.frozen = True
        for peer in self.peers:
            peer.transport.pause_reading()

    def thaw(self) -> None:
        """Continue the process where it was."""
        self.frozen = False
        for peer in list(self.peers):
            peer.transport.resume_reading()
            peer.go_on()

    def crash(self) -> None:
        """Cut the power."""
        self.host.crash()
        self.peers.clear()
        self.model.crash()

    def restart(self) -> None:
        """Start the host again, and the process on it, if it had crashed."""
        if self.host.crashed:
            self.frozen = False
            self.host.restart()

    def drop_connections(self) -> None:
        """End all connections."""
        for peer in list(self.peers):
            peer.transport.close()

    def handle(self, peer: "_Peer", request: rpc.Request) -> None:
        """Answer a request, or not."""
        if self.drops_late and peer.is_old:
            return
        self.model.now = asyncio.get_running_loop().time()
        self.received.append(Received(self.model.now, Method(request.method), bytes(request.body)))
        exchange = Exchange(self, peer, request)
        if self.faults and chance.happens(self.fault_percent):
            chance.one_of(self.faults)(exchange)
        else:
            exchange.answer(exchange.carry_out())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Peer(self), self.endpoint.host, self.endpoint.port)
        await server.serve_forever()


class _Peer(asyncio.Protocol):
    """A connection that a server has accepted."""

    def __init__(self, server: Server) -> None:
        self.connection = RpcConnection(Role.SERVER)
        self.transport: asyncio.Transport
        self._server = server
        self._unread: list[bytes] = []
        self._unsent: list[bytes] = []
        self._rest: list[bytes] | None = None
        """Answers that are to be sent together; None: each is sent alone."""
        self.is_silent = False

    @property
    def is_old(self) -> bool:
        """Whether its client has made another connection since."""
        return self._server.newest[self._host] is not self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._host = transport._peer.owner  # type: ignore[attr-defined] # noqa: SLF001
        self._server.peers.append(self)
        self._server.newest[self._host] = self
        if self._server.frozen:
            transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self in self._server.peers:
            self._server.peers.remove(self)

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        if not self._server.frozen:
            self.go_on()

    def go_on(self) -> None:
        """Send what was not sent, and read what was not read."""
        unsent, self._unsent = self._unsent, []
        for data in unsent:
            self.send(data)
        unread, self._unread = b"".join(self._unread), []
        if not unread:
            return
        try:
            requests = self.connection.receive_data(unread)
        except RemoteProtocolError:
            self.transport.abort()
            return
        if len(requests) > 1 and chance.happens(50):
            self._rest = []
        for request in requests:
            assert isinstance(request, rpc.Request)
            self._server.handle(self, request)
        self.send_rest()

    def send_rest(self) -> None:
        """Send what was to be sent together."""
        rest, self._rest = self._rest, None
        if rest:
            self.send(b"".join(rest))

    def send(self, data: bytes) -> None:
        """Send bytes, in several parts or with others: a network knows no frames."""
        if self._rest is not None:
            self._rest.append(data)
            return
        if self._server.frozen:
            self._unsent.append(data)
            return
        if self.is_silent:
            return
        while chance.happens(20) and len(data) > 1:
            cut = 1 + (len(data) - 1) * chance.below(64) // 64
            self.transport.write(data[:cut])
            data = data[cut:]
        self.transport.write(data)
