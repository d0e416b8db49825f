"""Serving HTTP to strangers: what they can make a server hold is bounded, and pages of others are refused.

Each connection brings one request, and has a thread of an ``Acceptor``, which bounds how many there are. A
request comes whole in its time, however its bytes arrive, or is given up. Queries are not logged: they may
hold secrets.

A browser lets any page send requests to this machine, but says so in ``Sec-Fetch-Site``, ``Origin`` or
``Referer``. A page that reaches this machine through its own DNS name (rebinding) has that name in ``Host``.
Programs send none of the first three, and their ``Host`` is an address or a name of this server.
"""

import contextlib
import dataclasses
import http.server
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urlsplit

from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline, UntilDeadline
from tubemq_spark.net.listener import Acceptor

if TYPE_CHECKING:
    import socketserver

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for a request."""

    content: str
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """More than each answer has."""


class RefusedRequestError(Exception):
    """A request that is not carried out."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class HttpServer(Acceptor):
    """Serves HTTP from its construction; subclasses say how a request is refused."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        methods: "Mapping[str, Handler]",
        *,
        names: Collection[str],
        request_s: float,
        connections: int,
        setting: str,
    ) -> None:
        """Open the port (0: any free one).

        Methods of HTTP without a handler are not implemented; ``names`` are those by which clients reach this
        machine, besides addresses and the host of the endpoint. Users choose the port by ``setting``.
        """
        self.methods = methods
        self.names = frozenset({endpoint.host, *names})
        self.request_s = request_s
        super().__init__(
            name, endpoint.host, endpoint.port, self._serve_request, connections, setting=setting
        )

    def refusal(self, status: HTTPStatus, why: str) -> Answer | None:
        """Return the answer to a request that is refused or late (``REQUEST_TIMEOUT``), if there is one."""
        raise NotImplementedError

    def _serve_request(self, connected: socket.socket) -> None:
        try:
            HttpRequest(connected, self)
        except ValueError as error:
            logger.debug("a request to %s is not HTTP: %s", self.endpoint, error)


class HttpRequest(http.server.BaseHTTPRequestHandler):
    """One request, served where it is made."""

    command = ""
    """Its method; empty until its first line is there."""

    def __init__(self, connected: socket.socket, served_by: HttpServer) -> None:
        """Serve the request that comes on a connection; a ``ValueError`` tells that it is not HTTP."""
        self._served_by = served_by
        # The base class only passes its server on to subclasses; here an Acceptor does its work.
        super().__init__(connected, connected.getpeername(), cast("socketserver.BaseServer", None))

    def setup(self) -> None:
        """Read from the connection until the deadline."""
        super().setup()
        deadline = Deadline.after_ms(int(self._served_by.request_s * 1000))
        self.rfile = UntilDeadline(self.connection, deadline).makefile("rb")

    def refuse_foreign(self) -> None:
        """Refuse a request that a page of another site may have sent."""
        if (foreign := why_foreign(self.headers.get, self._served_by.names)) is not None:
            raise RefusedRequestError(HTTPStatus.FORBIDDEN, foreign)

    def form(self, most_bytes: int) -> str:
        """Return the form that it brings, as it is written."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= most_bytes:
            why = f"a form has at most {most_bytes} bytes"
            raise RefusedRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        return self.rfile.read(length).decode(errors="replace")

    def do_GET(self) -> None:
        """Answer it."""
        handler = self._served_by.methods.get(self.command)
        if handler is None:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED, f"Unsupported method ({self.command!r})")
            return
        try:
            self._send(handler(self))
        except RefusedRequestError as refused:
            self._send(self._served_by.refusal(refused.status, refused.why))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

    def _send(self, answer: Answer | None) -> None:
        if answer is None:
            return
        content = answer.content.encode()
        self.send_response(answer.status)
        common = {"Content-Type": answer.content_type, "Content-Length": str(len(content))}
        for name, value in {**common, "X-Content-Type-Options": "nosniff", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_error(self, format: str, *args: object) -> None:  # noqa: A002
        """Log what the base class tells of a request; of a late one it tells in no other way."""
        super().log_error(format, *args)
        if args and isinstance(args[0], TimeoutError):
            why = f"it was not complete after {self._served_by.request_s:g} s"
            answer = self._served_by.refusal(HTTPStatus.REQUEST_TIMEOUT, why)
            if self.command:  # (otherwise nothing has arrived that could be answered)
                with contextlib.suppress(OSError):
                    self._send(answer)

    def log_request(self, code: int | str = "-", _size: int | str = "-") -> None:
        """Log a request; one that is invalid has no path."""
        path = urlsplit(self.path).path if self.command else "garbage"
        logger.debug("web %s: %s %s: %s", self.client_address[0], self.command, path, code)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log where all else goes, and not to stderr."""
        logger.debug("web %s: %s", self.client_address[0], format % args)


Handler: TypeAlias = Callable[[HttpRequest], Answer]
"""Answers a request, or raises a ``RefusedRequestError``."""


Header = Callable[[str], str | None]
"""Returns a header of a request by its name."""

_OWN_SITES = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for a page of this port, and for an address that was typed in."""


def why_foreign(header: Header, names: Collection[str]) -> str | None:
    """Return the evidence that a request comes from another site; ``names`` are those of the server."""
    host = header("Host")
    if host is not None and not _is_ours(host, names):
        return f"it is for the host {host!r}, but the names of this server are {', '.join(sorted(names))}"
    site = header("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES:
        return f"a browser sent it for a page of another site (Sec-Fetch-Site: {site})"
    for name in ("Origin", "Referer"):
        page = header(name)
        if page is not None and (host is None or _authority(page) != host.lower()):
            return f"a browser sent it for another page ({name}: {page!r})"
    return None


def _is_ours(host: str, names: Collection[str]) -> bool:
    name = _authority(f"http://{host}", port=False)
    if name in {"localhost", *map(str.lower, names)}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _authority(url: str, *, port: bool = True) -> str:
    """Return host and port of a URL, or only the host; empty if it has none."""
    try:
        parts = urlsplit(url)
        return (parts.netloc if port else parts.hostname or "").lower()
    except ValueError:
        return ""
