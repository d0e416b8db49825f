"""Connections of the process's loop for threads: what starts requests and waits for answers outside of it.

A request is handed to the loop, which sends it. Its answer is set by the loop's thread; who waits for it does
so in a thread of its own, or is called by that thread and must return at once.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, Self

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import LocalProtocolError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.call import AnyMessage, Call, lost
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import DEFAULT_CONNECT_TIMEOUT_MS, PROBE_S, Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import Wait
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType


class ThreadCall(Call):
    """A call in flight that a thread waits for."""

    def __init__(self, channel: "RpcChannel", timeout_ms: int, wait: Wait | None = None) -> None:
        super().__init__(channel, timeout_ms, wait)
        # A lock that is held until then: an event is several times as much work for every call.
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return not self._unsettled.locked()

    def _wait_at_most(self, seconds: float) -> bool:
        if not self._unsettled.acquire(blocking=False):
            if loop.in_loop():
                what = "a blocking call was made in the thread of the event loop"
                raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)
            if not self._unsettled.acquire(timeout=seconds):
                return False
        self._unsettled.release()
        return True

    def _mark_done(self) -> None:
        self._unsettled.release()


class RpcChannel:
    """A connection of the process's loop, for any number of threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.endpoint = connection.endpoint

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""
        return self.connection.closed

    def call(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        response_type: type[AnyMessage],
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> AnyMessage:
        """Send a request and wait for its answer.

        Raises:
            TubeMQError: as ``start`` and ``Call.result``.
        """
        pending = self.start(service, method, request, timeout_ms=timeout_ms, during=during, wait=wait)
        return pending.result(response_type, during)

    def start(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> ThreadCall:
        """Send a request and return at once; requests of one thread arrive in the order of their calls.

        See ``Channel.start``.
        """
        body = rpc.serialize_message(request)
        rpc.require_time(timeout_ms)  # or this thread waits no longer than that for the loop to say so
        if self.closed:
            raise lost(self.endpoint, during, self.connection.lost_because)
        call = ThreadCall(self, timeout_ms, wait)

        def send() -> None:
            if self.closed:
                call.settle(self.connection.lost_because)
                return
            try:
                self.connection.send(call, service, method, body, timeout_ms, during)
            except LocalProtocolError as error:
                call.settle(error)

        loop.call_soon(send)
        return call

    def forget(self, call: Call) -> None:
        """Drop the answer of a call if it arrives later."""
        loop.call_soon(self.connection.forget, call)

    def give_up(self, call: Call) -> None:
        """Forget a call that timed out."""
        loop.call_soon(self.connection.give_up, call)


class StartedChannel:
    """A peer's channel for one who waits no longer than some time, also for the resolver of names."""

    def __init__(self, endpoint: Endpoint, coming: loop.Submitted[Connection], timeout_s: float) -> None:
        self._endpoint = endpoint
        self._coming = coming
        self._deadline = Deadline.after_ms(timeout_s * 1000)

    @property
    def remaining_s(self) -> float:
        """For how many seconds the channel may still come; then ``result`` raises an error at once."""
        return self._deadline.remaining()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function when ``result`` will not wait any more, in any thread."""
        self._coming.when_done(listener)

    def result(self) -> RpcChannel:
        """Wait for the channel.

        Raises:
            TubeMQError: as ``ChannelPool.get``.
        """
        if not self._coming.wait(self.remaining_s):
            raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=self._endpoint, cause="timed out")
        return RpcChannel(self._coming.result())


class ChannelPool:
    """The connections of one owner, for threads; ``connections`` are the same ones for coroutines.

    In a forked child the pools are empty: connections stay with the parent.
    """

    def __init__(self, connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS) -> None:
        self.connections = Connections(connect_timeout_ms)
        self._connect_timeout_ms = connect_timeout_ms
        _pools.add(self)

    @property
    def open_count(self) -> int:
        """How many shared connections are open."""
        return len(self.connections.shared())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(
        self, endpoint: Endpoint, connect_timeout_ms: int | None = None, tls: TlsConfig | None = None
    ) -> RpcChannel:
        """Return the peer's channel; connect if there is none, or if it was lost.

        Raises:
            TubeMQError: as ``Connections.get``.
        """
        connection = None if self.connections.sweep_is_due else self.connections.connected(endpoint, tls)
        if connection is None:
            connection = loop.run(self.connections.get(endpoint, connect_timeout_ms, tls))
        return RpcChannel(connection)

    def start(
        self, endpoint: Endpoint, timeout_ms: int | None = None, tls: TlsConfig | None = None
    ) -> StartedChannel:
        """Return the peer's channel, or one that is being opened: for callers that must not wait."""
        coming = loop.submit(self.connections.get(endpoint, timeout_ms, tls))
        timeout_s = (timeout_ms or self._connect_timeout_ms) / 1000 + (PROBE_S if tls else 0.0)
        return StartedChannel(endpoint, coming, timeout_s)

    def failed_lately(self, endpoint: Endpoint, tls: TlsConfig | None, seconds: float) -> bool:
        """Whether the last attempt to connect to a peer failed, and not longer ago than some seconds."""
        return self.connections.failed_lately(endpoint, tls, seconds)

    def close(self) -> None:
        """Close all connections; the pool opens no others."""
        if not loop.has_begun():
            # None was opened, or the process exits; a loop could not be started then.
            self.connections.closed = True
        elif not self.connections.closed:
            loop.run(self.connections.close())


_pools: "weakref.WeakSet[ChannelPool]" = weakref.WeakSet()
_process_pool: Final = ChannelPool()


def process_pool() -> ChannelPool:
    """Return the pool that everything in this process shares; it is closed when the process ends."""
    return _process_pool


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.connections.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_process_pool.close)
