"""The web ports: TubeMQ's administration API, ``/webapi.htm?method=...`` with JSON answers.

Answers are always HTTP 200, and 302 of a master that does not lead; whether a call failed is said in the
JSON. Parameters come in the query or in a form, and most have a short alias.
"""

import dataclasses
import http.server
import json
import logging
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from tubemq_spark.embedded.admin.parameters import Call, GuardedCall, Parameters, bad_request
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.net.listener import Acceptor
from tubemq_spark.protocol.errcodes import ErrCode

if TYPE_CHECKING:
    import socketserver

__all__ = ["BROKER_FRAME", "MASTER_FRAME", "AdminServer", "Call", "Frame", "Parameters", "bad_request"]

logger = logging.getLogger(__name__)

SERVER_VERSION: Final = "2.4.0"
"""The release of TubeMQ that these answers are those of."""

_MAX_FORM_BYTES: Final = 1 << 20
_REQUEST_TIMEOUT_S: Final = 30
_USUAL_TYPE: Final = "text/html;charset=UTF-8"
_WRAPPED_TYPE: Final = "text/plain;charset=utf-8"


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """What is around the calls of a server: what it says when there is no call, and what it wraps."""

    prefix: str
    """Stands before what is said of a call that was not let through."""
    no_method: str
    unsupported: str
    """Said of an unknown method, for which ``{method}`` stands."""
    list_calls: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Makes the answer of ``admin_get_methods``."""
    version: Mapping[str, Any]
    """The answer of ``admin_query_server_version``."""
    wraps: bool
    """Whether a parameter ``callback`` puts a function call around the answer (JSONP)."""


MASTER_FRAME: Final = Frame(
    prefix="Bad request from client, ",
    no_method="Please take with method parameter!",
    unsupported="unsupported method!",
    list_calls=lambda calls: {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        "data": calls,
        "count": len(calls),
    },
    version={
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        "data": [{"version": SERVER_VERSION}],
        "count": 1,
    },
    wraps=True,
)
"""The master's (Webapi)."""

BROKER_FRAME: Final = Frame(
    prefix="",
    no_method="Please take with method parameter! ",
    unsupported="Unsupported method {method}",
    list_calls=lambda calls: {
        "result": True,
        "errCode": 0,
        "errMsg": "Success!",
        "dataSet": calls,
        "totalCnt": len(calls),
    },
    version={"result": True, "errCode": 0, "errMsg": "Ok", "data": [{"version": SERVER_VERSION}]},
    wraps=False,
)
"""A broker's (AbstractWebHandler, BrokerAdminServlet)."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Page:
    """What goes back by HTTP."""

    body: bytes
    content_type: str = _USUAL_TYPE
    location: str | None = None
    """Where to ask instead."""


class AdminServer:
    """One web port; it serves from the start, each request in a thread of its own."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        calls: Mapping[str, Call],
        frame: Frame,
        *,
        leader: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Open the port (0: any free one).

        While ``leader`` names a server, ``host:port``, all requests are sent on to it.

        Raises:
            TubeMQConnectionError: the port cannot be opened.
        """
        self.calls: Mapping[str, Call] = {
            **calls,
            "admin_get_methods": self._list_calls,
            "admin_query_server_version": lambda _parameters: dict(frame.version),
        }
        self._frame = frame
        self._leader = leader
        self._acceptor = Acceptor(f"{name}-web", host, port, self._serve)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._acceptor.endpoint.port

    def freeze(self) -> None:
        """Read and answer nothing from now on."""
        self._acceptor.freeze()

    def thaw(self) -> None:
        """Go on with what came meanwhile."""
        self._acceptor.thaw()

    def close(self) -> None:
        """Close the port and wait until its threads are gone."""
        self._acceptor.close()

    def _serve(self, connected: socket.socket) -> None:
        try:
            _Handler(connected, self._page)
        except ValueError as error:
            logger.debug("what came to %s is no HTTP: %s", self._acceptor.endpoint, error)

    def _page(self, path: str, values: Mapping[str, str]) -> _Page:
        leader = self._leader()
        if leader is not None:
            return _Page(b"", location=f"http://{leader}{path}")
        try:
            content = self._answer(values)
        except RefusedError as refused:
            # Nothing is wrapped that did not get as far as its call.
            return _Page(_json(_failure(refused.code, self._frame.prefix + refused.text)))
        callback = values.get("callback", "").strip()
        if callback and self._frame.wraps:
            return _Page(callback.encode() + b"(" + _json(content) + b")", _WRAPPED_TYPE)
        return _Page(_json(content))

    def _answer(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Answer one call.

        Raises:
            RefusedError: there is no such call, or it is not for everybody.
        """
        method = values.get("method")
        if method is None:
            raise bad_request(self._frame.no_method)
        call = self.calls.get(method.strip())
        if call is None:
            raise bad_request(self._frame.unsupported.replace("{method}", method))
        parameters = Parameters(values)
        if isinstance(call, GuardedCall):
            call.check(parameters)
        try:
            return call(parameters)
        except RefusedError as refused:
            return _failure(refused.code, refused.text)
        except Exception as error:
            logger.exception("the web call %s failed", method)
            return _failure(ErrCode.INTERNAL_SERVER_ERROR, str(error))

    def _list_calls(self, _parameters: Parameters) -> dict[str, Any]:
        return self._frame.list_calls(
            [
                {"method": method, "needAuth": isinstance(call, GuardedCall)}
                for method, call in sorted(self.calls.items())
            ]
        )


class _Handler(http.server.BaseHTTPRequestHandler):
    """One call: GET with a query, or POST with a form."""

    timeout = _REQUEST_TIMEOUT_S

    def __init__(self, connected: socket.socket, page: Callable[[str, Mapping[str, str]], _Page]) -> None:
        self._page = page
        # The base class hands the server to subclasses only; here an Acceptor does its work.
        super().__init__(connected, connected.getpeername(), cast("socketserver.BaseServer", None))

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).query)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _MAX_FORM_BYTES:
            self.send_error(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        form = self.rfile.read(length).decode(errors="replace")
        self._answer(f"{urlsplit(self.path).query}&{form}")

    def _answer(self, query: str) -> None:
        values: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            values.setdefault(name, value)
        page = self._page(self.path, values)
        self.send_response(http.HTTPStatus.OK if page.location is None else http.HTTPStatus.FOUND)
        if page.location is not None:
            self.send_header("Location", page.location)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_request(self, code: int | str = "-", _size: int | str = "-") -> None:
        # Not the query: it may have the token. Of a request that is none there is no path.
        path = urlsplit(self.path).path if self.command else "garbage"
        logger.debug("web %s: %s %s: %s", self.client_address[0], self.command, path, code)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        logger.debug("web %s: %s", self.client_address[0], format % args)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _failure(code: int, text: str) -> dict[str, Any]:
    return {"result": False, "errCode": int(code), "errMsg": text}
