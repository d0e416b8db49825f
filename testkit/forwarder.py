"""An address that forwards connections to another one; they can be cut, stalled and slow."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Self

from testkit.connections import submit_call
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections, close_connections
from tubemq_spark.net.listener import Answer, Fault, Listener, Reply
from tubemq_spark.protocol import packed_strings, rpc
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import master_pb2

_READ_BYTES: Final = 1 << 16
_SLOW_READ_BYTES: Final = 1 << 12
_SLOW_BUFFER_BYTES: Final = 1 << 15
"""How much the kernel takes in front of a slow link. With its usual megabytes, what a client has written
would be on the link for many seconds, and no network has such buffers."""


class Link:
    """A line of limited speed; several forwarders may share it. Safe for any number of threads."""

    def __init__(self, bytes_per_s: float) -> None:
        """Take the bytes that go through each second in each direction."""
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at: dict[str, float] = {}

    def carry(self, direction: str, count: int) -> None:
        """Wait until so many bytes have passed in a direction."""
        with self._lock:
            now = time.monotonic()
            done_at = max(self._free_at.get(direction, now), now) + count / self._bytes_per_s
            self._free_at[direction] = done_at
        time.sleep(done_at - now)


class Forwarder:
    """Listens on its own port and forwards bytes in both directions; a context manager.

    ``close_port`` and ``open_port`` act like a process that dies and restarts; ``lead_to`` is for servers
    that change their roles; ``cut``, ``stall`` and ``resume`` are what a network does.
    """

    def __init__(
        self,
        target: str,
        link: Link | None = None,
        on_request: Callable[[], object] = lambda: None,
        source: str = "",
    ) -> None:
        """Forward to ``host:port``, as fast as that goes or over a link."""
        self._lock = threading.Lock()
        self._on_request = on_request
        self._target = target
        self._link = link
        self._source = source
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._port = 0
        self._listener: socket.socket | None = None
        self._reserved = contextlib.ExitStack()
        self.open_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.close_port()
        self._reserved.close()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"127.0.0.1:{self._port}"

    def open_port(self) -> None:
        """Listen, if it does not already."""
        if self._listener is not None:
            return
        self._reserved.close()
        self._listener = listener = socket.create_server(("127.0.0.1", self._port))
        if self._link is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        self._port = listener.getsockname()[1]
        self._run(lambda: self._accept(listener))

    def close_port(self) -> None:
        """Refuse connections from now on, and drop the present ones; not while it stalls."""
        if self._listener is not None:
            # Wakes the thread that accepts; closing the socket does not.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            self._reserve_port()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def lead_to(self, target: str) -> None:
        """Drop all connections and forward new ones to another ``host:port``."""
        with self._lock:
            self._target = target
        self.cut()

    def cut(self) -> None:
        """Drop all connections; new ones are forwarded."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Forward no byte until ``resume``; connections stay open, and new ones can be made."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, first what came while it stalled."""
        self._flowing.set()

    def _reserve_port(self) -> None:
        """Keep the port without listening: connections are refused, and no other socket gets it."""
        reserved = self._reserved.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", self._port))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._forward(client)

    def _forward(self, client: socket.socket) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), source_address=(self._source, 0))
        except OSError:
            client.close()
            return
        for end in (client, server):
            # Small pieces would wait for each other's acknowledgements, for 40 ms at a time.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(client, server)
        with self._lock:
            self._connections |= {client, server}
        self._run(lambda: self._copy(client, server, pair, "up"))
        self._run(lambda: self._copy(server, client, pair, "down"))

    def _copy(self, source: socket.socket, sink: socket.socket, pair: "_Pair", direction: str) -> None:
        read_bytes = _READ_BYTES if self._link is None else _SLOW_READ_BYTES
        with contextlib.suppress(OSError):
            while data := source.recv(read_bytes):
                if direction == "up":
                    self._on_request()
                self._flowing.wait()
                if self._link is not None:
                    self._link.carry(direction, len(data))
                sink.sendall(data)
        with self._lock:
            self._connections -= pair.end()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="forwarder", daemon=True)
        self._threads.append(thread)
        thread.start()


class _Pair:
    """The two ends of a connection; the last thread that uses them closes both."""

    def __init__(self, *ends: socket.socket) -> None:
        self._ends = ends
        self._copying = len(ends)
        self._lock = threading.Lock()

    def end(self) -> set[socket.socket]:
        """Shut both down; return them if they are closed."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._copying -= 1
            if self._copying:
                return set()
        for end in self._ends:
            end.close()
        return set(self._ends)


@contextlib.contextmanager
def swallowing(address: str) -> Iterator[None]:
    """Swallow connections to ``host:port``, where nothing listens, until the block ends.

    Linux drops requests for connections while the backlog of a listening socket is full, so a client waits
    for its own time-out.
    """
    endpoint = Endpoint.parse(address)
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((endpoint.host, endpoint.port))
        listener.listen(0)
        for _ in range(2):
            filler = closing.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((endpoint.host, endpoint.port))
        yield


class MasterRelay:
    """Passes requests on to a master; a context manager.

    A broker announces its own address to its master, so a proxy in front of it is not used until the master
    tells clients of the proxy instead. Here only producers are told so; readers reach the brokers.
    """

    def __init__(self, master: str, announced: Mapping[int, str]) -> None:
        """Relay to ``host:port``; producers are told that brokers are at these addresses, by broker id."""
        self._master = Endpoint.parse(master)
        self._announced = dict(announced)
        self._hiding = threading.Event()
        self._connections = Connections()
        self._listener = Listener("relay", "127.0.0.1", 0, _refuse_all)
        self._listener.interceptor = self._reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        close_connections(self._connections)

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return str(self._listener.endpoint)

    def hide_routes(self) -> None:
        """Tell producers of no partition, as a master does that has just started, until ``show_routes``."""
        self._hiding.set()

    def show_routes(self) -> None:
        """Tell producers of all partitions again."""
        self._hiding.clear()

    def _reply(self, request: rpc.Request, _handle: Callable[[], Answer]) -> Reply:
        method = Method(request.method)
        types = MESSAGES[method]
        try:
            answer = submit_call(
                loop.run(self._connections.get(self._master)),
                ServiceType.MASTER,
                method,
                rpc.parse_message(types.request, request.body),
                types.response,
                timeout_ms=request.timeout_ms,
            ).result()
        except TubeMQError:
            return Reply(None, hang_up=True)
        if isinstance(answer, master_pb2.RegisterResponseM2P | master_pb2.HeartResponseM2P):
            self._change(answer)
        return Reply(rpc.serialize_message(answer))

    def _change(self, answer: master_pb2.RegisterResponseM2P | master_pb2.HeartResponseM2P) -> None:
        answer.brokerInfos[:] = map(self._elsewhere, answer.brokerInfos)
        if self._hiding.is_set() and isinstance(answer, master_pb2.HeartResponseM2P):
            del answer.topicInfos[:]

    def _elsewhere(self, info: str) -> str:
        broker_id = packed_strings.parse_broker_info(info).broker_id
        address = self._announced.get(broker_id)
        return info if address is None else f"{broker_id}:{address}"


def _refuse_all(requests: Sequence[rpc.Request]) -> list[Answer]:
    """Answer what the interceptor lets through, which is nothing."""
    return [Fault(Status.FATAL, "java.lang.IllegalStateException", "no master serves here") for _ in requests]
