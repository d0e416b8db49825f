"""Serving HTTP to strangers: a request comes whole in time, however its bytes arrive, or is given up.

Its connection is one of an ``Acceptor``, which bounds how many there are.
"""

import http.server
import io
import logging
import socket
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from tubemq_spark.net.deadline import Deadline

if TYPE_CHECKING:
    import socketserver

    from _typeshed import WriteableBuffer

logger = logging.getLogger(__name__)

WHOLE_REQUEST_S: Final = 30.0


class HttpRequest(http.server.BaseHTTPRequestHandler):
    """One request, served where it is made; subclasses have ``do_GET`` and others.

    Queries are not logged: they may hold secrets.
    """

    def __init__(self, connected: socket.socket, whole_s: float = WHOLE_REQUEST_S) -> None:
        """Serve the request that comes on a connection.

        Args:
            connected: the connection.
            whole_s: how long the request may take to come, however its bytes arrive.

        Raises:
            OSError: the peer is gone.
            ValueError: what came is not HTTP.
        """
        self._whole_s = whole_s
        # The base class only passes the server on to subclasses; here an Acceptor does its work.
        super().__init__(connected, connected.getpeername(), cast("socketserver.BaseServer", None))

    def setup(self) -> None:
        """Read from the connection until the deadline."""
        super().setup()
        deadline = Deadline.after_ms(int(self._whole_s * 1000))
        self.rfile = UntilDeadline(self.connection, deadline).makefile("rb")

    def late(self) -> None:
        """Note that the request did not come whole in time; there is no ``command`` if no line of it did."""

    def log_error(self, format: str, *args: object) -> None:  # noqa: A002
        """Log what the base class tells of a request; of a late one it tells in no other way."""
        super().log_error(format, *args)
        if args and isinstance(args[0], TimeoutError):
            self.late()

    def log_request(self, code: int | str = "-", _size: int | str = "-") -> None:
        """Log a request; one that is invalid has no path."""
        path = urlsplit(self.path).path if self.command else "garbage"
        logger.debug("web %s: %s %s: %s", self.client_address[0], self.command, path, code)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log where all else goes, and not to stderr."""
        logger.debug("web %s: %s", self.client_address[0], format % args)


class UntilDeadline(io.RawIOBase):
    """Reads from a connection until a deadline, which single bytes do not postpone."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        """Read from a connection, whose time-out this sets; closing it is its owner's."""
        self._connected = connected
        self._deadline = deadline

    def readable(self) -> bool:
        """Return whether it can be read: always."""
        return True

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of it, as a socket does."""
        return io.BufferedReader(self)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Wait for the next bytes and return how many there are; 0 at the end.

        Raises:
            OSError: the deadline has passed, or the connection is lost.
        """
        remaining = self._deadline.remaining()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._connected.settimeout(remaining)
        return self._connected.recv_into(buffer)
