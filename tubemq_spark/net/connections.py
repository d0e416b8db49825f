"""The connections of one owner in an event loop: one per peer for all that ask, and private ones.

A *shared* connection is opened when it is first needed, and again after it was lost; all that ask while it is
being opened wait for the same attempt. A caller with other TLS settings, or none, gets another one. It is
closed when it was idle for ``IDLE_LIMIT_S``, as soon as any connection is asked for: devices on the way may
have forgotten it. Its users find it lost, as after any other end.

A *private* connection has one user at a time, for bulk reading. One that its user gives back is *kept* for
the next: Spark reuses its Python workers for many tasks, and each task reads from few brokers. At most
``_MOST_KEPT`` are kept, none that was lost, and none for longer than ``IDLE_LIMIT_S`` once another is given
back.

Everything here belongs to the thread of the loop, but for what is read only: ``connected``, ``shared`` and
``failed_lately``. A forked child has none of them: connections stay with the parent.

``process_connections`` are those in the process's loop, which threads share.
"""

import asyncio
import atexit
import collections
import contextlib
import dataclasses
import os
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from typing import Any, Final

from tubemq_spark.errors import TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.byte_connection import LookUp, look_up
from tubemq_spark.net.connection import Connection, connect
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import IDLE_LIMIT_S

_SWEEP_PERIOD_S: Final = 20.0
"""How often shared connections that are idle are looked for at most, as TubeMQ's C++ client does."""
DEFAULT_CONNECT_TIMEOUT_MS: Final = 3_000
PROBE_S: Final = 3.5
"""How long it takes at most to see whether a port speaks no TLS (``net/tls_errors.py``)."""
_MOST_KEPT: Final = 8
_CLOSE_S: Final = 2.0
"""How long the ends of connections are waited for, longer than TLS takes to say goodbye."""

Peer = tuple[Endpoint, TlsConfig | None]


@dataclasses.dataclass(slots=True, eq=False)
class _Shared:
    """The shared connection to a peer."""

    connection: Connection | None = None
    attempt: "asyncio.Task[Connection] | None" = None
    failed_at: float | None = None
    """When the last attempt failed, on the monotonic clock; None: it did not."""


class Connections:
    """The connections of one owner.

    What its owner drops without closing it is collected, and its connections end, with a warning.
    """

    def __init__(
        self, connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS, look_up: LookUp = look_up
    ) -> None:
        """Open no connection; may be called in any thread."""
        self._connect_timeout_ms = connect_timeout_ms
        self._look_up = look_up
        self._shared: dict[Peer, _Shared] = {}
        self._kept: collections.deque[tuple[float, Peer, Connection]] = collections.deque()
        """The oldest one first, each with the time when it was given back."""
        self._private: set[Connection] = set()
        """Those in use."""
        self._leaving: set[asyncio.Task[None]] = set()
        """What gives back what peers have for users that have ended."""
        self._swept_at: float | None = None
        self.closed = False
        weakref.finalize(self, _hang_up, self._shared, self._kept).atexit = False
        _instances.add(self)

    def shared(self) -> list[Connection]:
        """Return the shared connections that are open."""
        connections = [shared.connection for shared in list(self._shared.values())]
        return [connection for connection in connections if connection is not None and not connection.closed]

    def connected(self, endpoint: Endpoint, tls: TlsConfig | None = None) -> Connection | None:
        """Return the peer's shared connection if there is an open one."""
        shared = self._shared.get((endpoint, tls))
        connection = None if shared is None else shared.connection
        return None if connection is None or connection.closed else connection

    def failed_lately(self, endpoint: Endpoint, tls: TlsConfig | None, seconds: float) -> bool:
        """Whether the last attempt to connect to a peer failed, and not longer ago than some seconds."""
        shared = self._shared.get((endpoint, tls))
        if shared is None or shared.failed_at is None or self.connected(endpoint, tls) is not None:
            return False
        return time.monotonic() - shared.failed_at <= seconds

    async def get(
        self, endpoint: Endpoint, timeout_ms: int | None = None, tls: TlsConfig | None = None
    ) -> Connection:
        """Return the peer's shared connection; connect if there is none, or if it was lost."""
        self._sweep_when_due()
        connection = self.connected(endpoint, tls)
        if connection is not None:
            return connection
        if self.closed:
            raise _closed(endpoint)
        shared = self._shared.setdefault((endpoint, tls), _Shared())
        timeout_ms = timeout_ms or self._connect_timeout_ms
        if shared.attempt is None:
            shared.attempt = asyncio.create_task(self._attempt(shared, endpoint, timeout_ms, tls))
            # Its error is told to those that wait; all of them may have given up.
            shared.attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        attempt = shared.attempt
        try:
            # An attempt on TLS that failed looks why before it ends, and knows better.
            async with asyncio.timeout(timeout_ms / 1000 + (PROBE_S if tls else 0.0)):
                # Who does not wait any longer takes nothing from the others.
                return await asyncio.shield(attempt)
        except TimeoutError as error:
            raise TubeMQConnectionError(
                "TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause="timed out"
            ) from error
        except asyncio.CancelledError:
            # Closing cancels attempts, and not who waits for them.
            if attempt.cancelled() and self._is_closed():
                raise _closed(endpoint) from None
            raise
        finally:
            # Its error holds this frame.
            del attempt

    async def to_all(
        self, endpoints: Iterable[Endpoint], timeout_ms: int, tls: TlsConfig | None
    ) -> tuple[dict[Endpoint, Connection], dict[Endpoint, TubeMQError]]:
        """Return a connection to each peer, or why there is none; one that is away delays no other."""
        connections: dict[Endpoint, Connection] = {}
        errors: dict[Endpoint, TubeMQError] = {}

        async def get(endpoint: Endpoint) -> None:
            try:
                connections[endpoint] = await self.get(endpoint, timeout_ms, tls)
            except TubeMQError as error:
                errors[endpoint] = error

        async with asyncio.TaskGroup() as group:
            for endpoint in set(endpoints):
                connection = self.connected(endpoint, tls)
                if connection is not None:
                    connections[endpoint] = connection
                else:
                    group.create_task(get(endpoint))
        return connections, errors

    @contextlib.asynccontextmanager
    async def private(
        self, connect_timeout_ms: int, tls: TlsConfig | None
    ) -> "AsyncGenerator[Private, None]":
        """Yield an object that opens a private connection when needed, and give that back at the end."""
        private = Private(self, connect_timeout_ms, tls)
        try:
            yield private
        finally:
            private.give_back()

    async def take(self, peer: Peer, connect_timeout_ms: int) -> Connection:
        """Return a private connection to a peer; connect if none is kept that still stands."""
        if self.closed:
            raise _closed(peer[0])
        connection = self._kept_to(peer)
        if connection is None:
            endpoint, tls = peer
            # The only user of the connection waits for its calls one by one.
            connection = await connect(
                endpoint, connect_timeout_ms, tls, look_up=self._look_up, silent_timeouts=1
            )
            if self._is_closed():
                connection.close()
                raise _closed(endpoint)
        self._private.add(connection)
        return connection

    def give_back(self, peer: Peer, connection: Connection) -> None:
        """Keep a private connection whose user is done with it; one with calls in flight is closed."""
        self._private.discard(connection)
        if self.closed or connection.in_use:
            connection.close()
        if connection.closed:
            return
        now = asyncio.get_running_loop().time()
        self._kept.append((now, peer, connection))
        while len(self._kept) > _MOST_KEPT or self._kept[0][0] < now - IDLE_LIMIT_S:
            self._kept.popleft()[2].close(f"it was idle for {IDLE_LIMIT_S:.0f} s")

    def close_kept(self) -> list[Connection]:
        """Close the private connections without a user, and return them."""
        kept = [connection for _, _, connection in self._kept]
        self._kept.clear()
        for connection in kept:
            connection.close()
        return kept

    def begin_to_leave(self, leaving: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin to give back what a peer has for a user that has ended; ``close`` waits for that."""
        task = asyncio.create_task(leaving)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are; no others are opened."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_CLOSE_S)
        self.closed = True
        attempts = [shared.attempt for shared in self._shared.values() if shared.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        leaving = [*self.shared(), *self.close_kept(), *self._private]
        for connection in leaving:
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*attempts, return_exceptions=True)
                for connection in leaving:
                    await connection.ended.wait()

    def abandon(self) -> None:
        """Forget the connections without closing them for the parent process; for a forked child."""
        kept = [connection for _, _, connection in self._kept]
        for connection in [*self.shared(), *kept, *self._private]:
            connection.abandon()
        self._shared.clear()
        self._kept.clear()
        self._private.clear()
        self._leaving.clear()
        self._swept_at = None

    async def _attempt(
        self, shared: _Shared, endpoint: Endpoint, timeout_ms: int, tls: TlsConfig | None
    ) -> Connection:
        try:
            shared.connection = await connect(endpoint, timeout_ms, tls, look_up=self._look_up)
        except TubeMQConnectionError:
            shared.failed_at = time.monotonic()
            raise
        else:
            shared.failed_at = None
            return shared.connection
        finally:
            shared.attempt = None

    def _is_closed(self) -> bool:
        # A function, since it may have changed at any await.
        return self.closed

    def _kept_to(self, peer: Peer) -> Connection | None:
        """Take out the connection to a peer that was given back last, and still stands and is quiet."""
        for entry in list(reversed(self._kept)):
            if entry[1] == peer:
                self._kept.remove(entry)
                if not (entry[2].closed or entry[2].in_use):
                    return entry[2]
                entry[2].close()
        return None

    def _sweep_when_due(self) -> None:
        """Close the shared connections that were idle too long, and forget those that are closed."""
        now = time.monotonic()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_PERIOD_S:
            return
        self._swept_at = now
        for shared in self._shared.values():
            connection = shared.connection
            if connection is None:
                continue
            if not connection.in_use and connection.silent_s >= IDLE_LIMIT_S:
                connection.close(f"it was idle for {IDLE_LIMIT_S:.0f} s")
            if connection.closed:
                shared.connection = None


class Private:
    """The private connection of one user, to one peer at a time."""

    def __init__(self, connections: Connections, connect_timeout_ms: int, tls: TlsConfig | None) -> None:
        self._connections = connections
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._connection: Connection | None = None

    async def to(self, endpoint: Endpoint) -> Connection:
        """Return the connection to a peer; that to another one is given back."""
        connection = self._connection
        if connection is None or connection.closed or connection.endpoint != endpoint:
            self.give_back()
            connection = await self._connections.take((endpoint, self._tls), self._connect_timeout_ms)
            self._connection = connection
        return connection

    def give_back(self) -> None:
        """Give the connection back, if there is one."""
        if self._connection is not None:
            self._connections.give_back((self._connection.endpoint, self._tls), self._connection)
            self._connection = None


def _hang_up(shared: Mapping[Peer, _Shared], kept: Iterable[tuple[float, Peer, Connection]]) -> None:
    """End connections without waiting: the garbage collector calls this anywhere."""
    candidates = [each.connection for each in shared.values()] + [connection for _, _, connection in kept]
    still_open = [each for each in candidates if each is not None and not each.closed]
    for connection in still_open:
        connection.close_soon()
    if still_open:
        peers = ", ".join(sorted(str(connection.endpoint) for connection in still_open))
        warnings.warn(f"connections to {peers} were not closed", ResourceWarning, stacklevel=2)


def _closed(endpoint: Endpoint) -> TubeMQConnectionError:
    cause = "the pool of connections is closed"
    return TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause=cause)


_instances: "weakref.WeakSet[Connections]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connections in list(_instances):
        connections.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)


_process_connections: Final = Connections()


def process_connections() -> Connections:
    """Return the connections that everything in this process shares; they are closed when it ends."""
    return _process_connections


def close_connections(connections: Connections) -> None:
    """Close connections in the process's loop, and wait until their sockets are; no others are opened."""
    if not loop.has_begun():
        # None was opened, or the process exits; a loop could not be started then.
        connections.closed = True
    elif not connections.closed:
        loop.run(connections.close())


atexit.register(close_connections, _process_connections)
