"""Connections in the process's loop, for threads."""

import atexit
from typing import Final

from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections

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
