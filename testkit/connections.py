"""Connections in the process's loop, for tests in threads."""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.master.session import MasterSession
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import DEFAULT_CONNECT_TIMEOUT_MS, Connections, close_connections
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.rpc import AnyMessage


@contextlib.contextmanager
def opened_connections(connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS) -> Iterator[Connections]:
    """Yield connections, which are closed at the end of the block."""
    connections = Connections(connect_timeout_ms)
    try:
        yield connections
    finally:
        close_connections(connections)


@contextlib.contextmanager
def connected(endpoint: Endpoint, connect_timeout_ms: int | None = None) -> Iterator[Connection]:
    """Connect to a peer, and close the connection at the end of the block."""
    with opened_connections() as connections:
        yield loop.run(connections.get(endpoint, connect_timeout_ms))


def submit_call(
    connection: Connection,
    service: ServiceType,
    method: Method,
    request: Message,
    response_type: type[AnyMessage],
    *,
    timeout_ms: int,
) -> loop.Submitted[AnyMessage]:
    """Send a request, and return at once what its answer will be; its ``result`` waits for that."""

    async def answer() -> AnyMessage:
        call = connection.start(service, method, request, timeout_ms=timeout_ms, during="asking")
        await call
        return call.result(response_type, "asking")

    return loop.submit(answer())


AnySession = TypeVar("AnySession", bound=MasterSession)


@contextlib.contextmanager
def opened(session: AnySession) -> Iterator[AnySession]:
    """Open a session, and close it at the end of the block."""
    run(session.open())
    try:
        yield session
    finally:
        run(session.close())
