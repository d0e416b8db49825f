"""An address that forwards connections to another one; they can be cut, or the target changed."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

_READ_BYTES: Final = 1 << 16


class Forwarder:
    """Listens on its own port and forwards bytes in both directions; a context manager.

    ``close_port`` and ``open_port`` act like a process that dies and restarts; ``lead_to`` is for servers
    that change their roles.
    """

    def __init__(self, target: str) -> None:
        """Forward to ``host:port``."""
        self._lock = threading.Lock()
        self._target = target
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._port = 0
        self._listener: socket.socket | None = None
        self.open_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_port()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"127.0.0.1:{self._port}"

    def open_port(self) -> None:
        """Listen, if it does not already."""
        if self._listener is not None:
            return
        self._listener = listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._run(lambda: self._accept(listener))

    def close_port(self) -> None:
        """Refuse connections from now on, and drop the present ones."""
        if self._listener is not None:
            # Wakes the thread that accepts; closing the socket does not.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self._drop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def lead_to(self, target: str) -> None:
        """Drop all connections and forward new ones to another ``host:port``."""
        with self._lock:
            self._target = target
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._forward(client)

    def _forward(self, client: socket.socket) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:
            client.close()
            return
        pair = _Pair(client, server)
        with self._lock:
            self._connections |= {client, server}
        self._run(lambda: self._copy(client, server, pair))
        self._run(lambda: self._copy(server, client, pair))

    def _copy(self, source: socket.socket, sink: socket.socket, pair: "_Pair") -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
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
