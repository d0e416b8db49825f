"""The accepting side of TubeMQ's RPC: one thread accepts, one thread serves each connection.

What strangers can make it hold is bounded: the number of connections, the time a frame may take to come,
the bytes of all frames together that have not come whole yet, and the answers of one connection that wait to
be sent. A connection may be idle as long as it
likes. A peer that goes beyond a bound is told of in the log, the first time as a warning, and is cut off.
"""

import contextlib
import dataclasses
import errno
import functools
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tubemq_spark.errors import OptionError, ProtocolError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.receive_buffer import keep_freed_memory
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Status

logger = logging.getLogger(__name__)

_BACKLOG: Final = 256
_LAST_PORT: Final = 65_535
_RECEIVE_BYTES: Final = 1 << 18
_RECORD_BYTES: Final = 1 << 14
"""No record of TLS is longer, and a read returns one at most."""
MAX_CONNECTIONS: Final = 4096
_FRAME_TIMEOUT_S: Final = 120.0
"""The longest frame, 28 MiB, comes in that time over 2 Mbit/s."""
_LOOK_S: Final = 5.0
"""How often to look at the time while the rest of a frame does not come."""
_MAX_HELD_BYTES: Final = 256 << 20
"""Of unfinished frames, all connections together."""
_SLICE_BYTES: Final = 1 << 20
"""Answers to one read are sent when there is this much of them."""
_HANDSHAKE_S: Final = 10.0
_ACCEPT_PAUSE_S: Final = 0.1
"""How long to leave the port alone after a failed accept: out of file descriptors passes by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """An answer that is an exception: how bad, a Java class name, one line of text."""

    status: Status
    exception_name: str
    text: str


Answer = bytes | Fault
"""The serialised response message of a request, or an exception."""

Service = Callable[[Sequence[rpc.Request]], Iterable[Answer]]
"""Answers the requests that one read from one connection brought, in their order; it never raises.

Answers are sent as they come, so a service whose answers are large makes each when it is asked for. When the
connection has ended by then, it is not asked for the others."""


def _unchanged(frame: bytes) -> bytes:
    return frame


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What an interceptor wants to be sent for one request."""

    answer: Answer | None
    """None: nothing."""
    change: Callable[[bytes], bytes] = _unchanged
    """Makes the bytes that are sent of the answer's frame."""
    hang_up: bool = False
    """Close the connection afterwards."""


Interceptor = Callable[[rpc.Request, Callable[[], Answer]], Reply]
"""Gets a request and a function that lets the service answer it; it may block, and never raises."""


class Acceptor:
    """Listens on a port from the start and gives each connection to a thread of its own."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        serve: Callable[[socket.socket], None],
        max_connections: int = MAX_CONNECTIONS,
        *,
        setting: str = "port",
    ) -> None:
        """Open the port (0: any free one).

        ``serve`` gets each connection, which is closed when it returns; it may raise OSError when the peer
        is gone. ``name`` is part of the threads' names. What comes beyond ``max_connections`` is closed at
        once. Users choose the port by ``setting``, which errors name.
        """
        keep_freed_memory()
        self._name = name
        self._serve = serve
        self._max_connections = max_connections
        self._refusals: set[str] = set()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thawed = threading.Event()
        self._thawed.set()
        self._numbers = itertools.count(1)
        self._socket = _listen(host, port, setting)
        self.endpoint = Endpoint(host, self._socket.getsockname()[1])
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name=f"tubemq-listen-{name}", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.endpoint.port

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        with self._lock:
            return len(self._connections)

    def freeze(self) -> None:
        """Stand still as a stopped process does, until ``thaw``: connect succeeds, nothing else happens.

        Each connection may still take in what one read brings; it is answered after ``thaw``.
        """
        self._thawed.clear()

    def thaw(self) -> None:
        """Go on with what came in the meantime."""
        self._thawed.set()

    def close(self) -> None:
        """Close the port and all connections, and wait until their threads are gone."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thawed.set()
        # Shut down, not only closed: a forked child may hold copies of both, which would keep the accepting
        # thread asleep and the port taken.
        self._wake_sender.shutdown(socket.SHUT_RDWR)
        self._wake_sender.close()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._wake_receiver.close()
        with self._lock:
            connections = dict(self._connections)
            for connected in connections.values():
                # Wakes its thread, which closes the socket; only shut down here, as the number of a
                # closed one may belong to another file already. ``SSLSocket.shutdown`` would turn TLS off
                # below that thread.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)
        for thread in connections:
            thread.join()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            while selector.select() and not self._closing.is_set():
                try:
                    connected, peer = self._socket.accept()
                    if self.connection_count >= self._max_connections:
                        connected.close()
                        self._refuse("too many", f"{peer[0]}: {self._max_connections} connections are open")
                    else:
                        self._start(connected)
                except BlockingIOError:
                    pass  # The peer has gone again.
                except (OSError, RuntimeError) as error:
                    # RuntimeError: there can be no more threads.
                    logger.warning("%s cannot accept a connection: %s", self._name, error)
                    self._closing.wait(_ACCEPT_PAUSE_S)

    def _start(self, connected: socket.socket) -> None:
        """Serve a connection in a thread of its own."""
        thread = threading.Thread(
            target=self._run,
            args=(connected,),
            name=f"tubemq-serve-{self._name}-{next(self._numbers)}",
            daemon=True,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(connected.close)
            connected.setblocking(True)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                thread.start()
                self._connections[thread] = connected
            undo.pop_all()

    def _refuse(self, kind: str, why: str) -> None:
        """Log that a connection was cut off; of each kind the first one is a warning."""
        with self._lock:
            first = kind not in self._refusals
            self._refusals.add(kind)
        level = logging.WARNING if first else logging.DEBUG
        logger.log(level, "%s cut off a connection from %s", self._name, why)

    def _run(self, connected: socket.socket) -> None:
        try:
            self._stand_still()
            self._serve(connected)
        except OSError as error:
            logger.debug("%s lost a connection: %s", self._name, error)
        finally:
            with self._lock:
                self._connections.pop(threading.current_thread()).close()

    def _stand_still(self) -> None:
        """Wait while frozen."""
        if not self._thawed.is_set():
            self._thawed.wait()
            if self._closing.is_set():
                raise ConnectionAbortedError("closed while it was frozen")


class _Held(NamedTuple):
    """What a connection holds of an unfinished frame."""

    frame_count: int
    """Whole frames that came before it."""
    since: float
    size: int


class Listener(Acceptor):
    """Listens on a port and lets a service answer the requests that come in.

    Bytes that break the protocol close the connection they came on and nothing else.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        service: Service,
        tls: ServerTls | None = None,
        *,
        setting: str = "port",
    ) -> None:
        """Open the port (0: any free one); ``name`` is part of the threads' names, ``setting`` of errors."""
        if tls is not None:
            tls.context()
        self._tls = tls
        self._service = service
        self._held: dict[socket.socket, _Held] = {}
        self.interceptor: Interceptor | None = None
        """Stands between requests and the service from the next read on; for tests of clients.

        Requests come to it one by one, each when the one before it on its connection has been answered."""
        super().__init__(name, host, port, self._serve_connection, setting=setting)

    def _serve_connection(self, connected: socket.socket) -> None:
        stream = connected if self._tls is None else self._secured(connected, self._tls)
        if stream is None:
            return
        connection = RpcConnection(Role.SERVER)
        try:
            while data := self._receive(stream, connection):
                self._stand_still()
                requests = [
                    event for event in connection.receive_data(data) if isinstance(event, rpc.Request)
                ]
                interceptor = self.interceptor
                if interceptor is None:
                    self._answer_all(stream, connection, requests)
                elif not self._reply_to_each(stream, connection, requests, interceptor):
                    return
        except ProtocolError as error:
            logger.info("%s closes a connection: %s", self._name, error)
        finally:
            self._held.pop(stream, None)

    def _secured(self, connected: socket.socket, tls: ServerTls) -> ssl.SSLSocket | None:
        """Shake hands with a client over TLS; return None when it has to go."""
        peer = _peer_of(connected)
        try:
            context = tls.context()
            with self._lock:  # ``close`` shuts down the one or the other.
                stream = context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
                self._connections[threading.current_thread()] = stream
            _shake_hands(stream)
        except (OSError, OptionError) as error:
            if not self._closing.is_set():
                self._refuse("TLS", f"{peer} that did not agree to TLS: {_cause(error)}")
            return None
        return stream

    def _receive(self, connected: socket.socket, connection: RpcConnection) -> bytes:
        """Wait for bytes; return none when the connection has ended, or holds too much for too long."""
        while self._may_hold(connected, connection):
            if not connection.held_bytes:
                return _read(connected)
            connected.settimeout(_LOOK_S)
            try:
                return _read(connected)
            except TimeoutError:
                continue
            finally:
                connected.settimeout(None)  # Answers may wait for the peer as long as they like.
        return b""

    def _may_hold(self, connected: socket.socket, connection: RpcConnection) -> bool:
        """Note what a connection holds of an unfinished frame; return whether it may go on."""
        if not connection.held_bytes:
            self._held.pop(connected, None)
            return True
        mine = self._held.get(connected)
        if mine is None or mine.frame_count != connection.frame_count:
            mine = _Held(connection.frame_count, time.monotonic(), 0)
        self._held[connected] = mine = mine._replace(size=connection.held_bytes)
        if time.monotonic() - mine.since > _FRAME_TIMEOUT_S:
            why = f"a frame was not here whole after {_FRAME_TIMEOUT_S:g} s"
        elif sum(connection_held.size for connection_held in list(self._held.values())) > _MAX_HELD_BYTES:
            why = f"unfinished frames hold more than {_MAX_HELD_BYTES >> 20} MiB"
        else:
            return True
        self._refuse(why, f"{_peer_of(connected)}: {why}")
        return False

    def _answer_all(
        self, connected: socket.socket, connection: RpcConnection, requests: Sequence[rpc.Request]
    ) -> None:
        """Answer one read in few packets, and hold a slice: a request of 50 bytes may ask for megabytes."""
        queued = 0
        for request, answer in zip(requests, self._service(requests), strict=True):
            queued += _queue(connection, request, answer)
            if queued >= _SLICE_BYTES:
                self._send_queued(connected, connection)
                queued = 0
        self._send_queued(connected, connection)

    def _send_queued(self, connected: socket.socket, connection: RpcConnection) -> None:
        self._stand_still()
        connected.sendall(connection.data_to_send())

    def _reply_to_each(
        self,
        connected: socket.socket,
        connection: RpcConnection,
        requests: Sequence[rpc.Request],
        interceptor: Interceptor,
    ) -> bool:
        """Pass the requests of one read to an interceptor; return whether the connection goes on."""
        connected.sendall(connection.data_to_send())
        for request in requests:
            reply = interceptor(request, functools.partial(self._answer, request))
            if reply.answer is not None:
                _queue(connection, request, reply.answer)
                self._stand_still()
                connected.sendall(reply.change(connection.data_to_send()))
            if reply.hang_up:
                return False
        return True

    def _answer(self, request: rpc.Request) -> Answer:
        (answer,) = self._service([request])
        return answer


def _read(connected: socket.socket) -> bytes:
    """Wait for bytes and return those that are there; none: the connection has ended."""
    if not isinstance(connected, ssl.SSLSocket):
        return connected.recv(_RECEIVE_BYTES)
    received = bytearray(connected.recv(_RECORD_BYTES))
    # One record at a time would be small reads, each with a packet of answers.
    connected.setblocking(False)
    with contextlib.suppress(OSError):  # What is more than "no record is here" comes again.
        while len(received) < _RECEIVE_BYTES and (record := connected.recv(_RECORD_BYTES)):
            received += record
    connected.setblocking(True)
    return bytes(received)


def _queue(connection: RpcConnection, request: rpc.Request, answer: Answer) -> int:
    """Queue an answer, and return how many bytes it has without its envelope."""
    if isinstance(answer, Fault):
        connection.send_failure(request, answer.status, answer.exception_name, answer.text)
        return len(answer.text)
    connection.send_response(request, answer)
    return len(answer)


def _peer_of(connected: socket.socket) -> str:
    try:
        return str(connected.getpeername()[0])
    except OSError:
        return "a peer that is gone"


def _shake_hands(connected: ssl.SSLSocket) -> None:
    """Agree on TLS with a client."""
    connected.settimeout(_HANDSHAKE_S)
    try:
        connected.do_handshake()
    except OSError:
        # What stays unread resets the connection, and the client may miss the alert.
        connected.setblocking(False)
        with contextlib.suppress(OSError):
            socket.socket.recv(connected, _RECEIVE_BYTES)
        raise
    connected.setblocking(True)


def _cause(error: Exception) -> str:
    """Return why a handshake failed."""
    if isinstance(error, ssl.SSLEOFError):
        return "the peer closed it during the TLS handshake"
    return "timed out" if isinstance(error, TimeoutError) else str(error)


def _listen(host: str, port: int, setting: str) -> socket.socket:
    if not 0 <= port <= _LAST_PORT:
        raise OptionError("TUBEMQ_BAD_SETTING", name=setting, value=port, rule=f"from 0 to {_LAST_PORT}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise listen_error(host, port, setting, error) from error
    return listening


def listen_error(host: str, port: int, setting: str, cause: OSError) -> OptionError | TubeMQConnectionError:
    """Return the error of a port that cannot be opened; users choose it by ``setting``."""
    if isinstance(cause, socket.gaierror) or cause.errno == errno.EADDRNOTAVAIL:
        return OptionError("TUBEMQ_HOST_ELSEWHERE", host=host, cause=cause)
    return TubeMQConnectionError(
        "TUBEMQ_LISTEN_FAILED", endpoint=Endpoint(host, port), cause=cause, setting=setting
    )
