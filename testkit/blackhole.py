"""An address that swallows packets: connections to it are neither accepted nor refused."""

import contextlib
import socket
from collections.abc import Iterator

from tubemq_spark.model import Endpoint


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
