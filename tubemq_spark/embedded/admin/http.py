"""The web ports: TubeMQ's administration API, ``/webapi.htm?method=...`` with JSON answers.

The status of answers is always HTTP 200, or 302 if the master does not lead; the JSON says whether a call
failed. Parameters are in the query or in a form, and most have a short alias.

Two answers are not TubeMQ's: 403 to a request that a page of another site made a browser send (``visitors``),
and 408 or 413 to a request that takes too long or is too large.
"""

import contextlib
import dataclasses
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tubemq_spark.embedded.admin.parameters import Call, GuardedCall, Parameters, bad_request
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.net import visitors
from tubemq_spark.net.http import HttpRequest
from tubemq_spark.net.listener import Acceptor
from tubemq_spark.protocol.errcodes import ErrCode

__all__ = ["BROKER_FRAME", "MASTER_FRAME", "AdminServer", "Call", "Frame", "Parameters", "bad_request"]

logger = logging.getLogger(__name__)

SERVER_VERSION: Final = "2.4.0"
"""The release of TubeMQ whose answers these are."""

_MAX_FORM_BYTES: Final = 1 << 20
_MAX_FIELDS: Final = 1000
_REQUEST_TIMEOUT_S: Final = 30.0
"""A request must be complete after this time, however its bytes arrive."""
_MAX_CONNECTIONS: Final = 128
_USUAL_TYPE: Final = "text/html;charset=UTF-8"
_WRAPPED_TYPE: Final = "text/plain;charset=utf-8"


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """What differs between the web ports of a master and of a broker, apart from their calls."""

    prefix: str
    """Precedes the text about a call that was not admitted."""
    no_method: str
    unsupported: str
    """The text about an unknown method, which replaces ``{method}``."""
    list_calls: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Returns the answer of ``admin_get_methods``."""
    version: Mapping[str, Any]
    """The answer of ``admin_query_server_version``."""
    wraps: bool
    """Whether a parameter ``callback`` wraps the answer in a function call (JSONP)."""


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
    """An HTTP response."""

    body: bytes
    content_type: str = _USUAL_TYPE
    location: str | None = None
    """Where a redirect leads."""
    status: HTTPStatus = HTTPStatus.OK


class AdminServer:
    """One web port, served from its construction; each request has its own thread."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        calls: Mapping[str, Call],
        frame: Frame,
        *,
        leader: Callable[[], str | None] = lambda: None,
        advertised: str | None = None,
    ) -> None:
        """Open the port (0: any free one).

        While ``leader`` returns a server, ``host:port``, all requests are redirected to it. ``advertised`` is
        another name that clients use for this machine, besides ``host``.

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
        self._name = f"{name}-web"
        self._hosts = frozenset({host, advertised or host})
        self._refusals: set[str] = set()
        self._lock = threading.Lock()
        self._acceptor = Acceptor(
            self._name, host, port, self._serve, _MAX_CONNECTIONS, setting=f"{name}_web_port"
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._acceptor.endpoint.port

    def freeze(self) -> None:
        """Read and answer nothing from now on."""
        self._acceptor.freeze()

    def thaw(self) -> None:
        """Resume with what arrived in the meantime."""
        self._acceptor.thaw()

    def close(self) -> None:
        """Close the port and wait until its threads have ended."""
        self._acceptor.close()

    def _serve(self, connected: socket.socket) -> None:
        try:
            _Handler(connected, self)
        except ValueError as error:
            logger.debug("a request to %s is not HTTP: %s", self._acceptor.endpoint, error)

    def why_foreign(self, header: visitors.Header) -> str | None:
        """Return what shows that a request comes from another site; None if nothing does."""
        return visitors.why_foreign(header, self._hosts)

    def log_refusal(self, kind: str, why: str) -> None:
        """Log that a request was refused; the first one of each kind is a warning."""
        with self._lock:
            first = kind not in self._refusals
            self._refusals.add(kind)
        text = "%s refused a request: %s"
        logger.log(logging.WARNING if first else logging.DEBUG, text, self._name, why)

    def page(self, path: str, values: Mapping[str, str]) -> _Page:
        """Answer one request."""
        leader = self._leader()
        if leader is not None:
            return _Page(b"", location=f"http://{leader}{path}", status=HTTPStatus.FOUND)
        try:
            content = self._answer(values)
        except RefusedError as refused:
            # The answer is not wrapped if the call was not reached.
            return _Page(_json(_failure(refused.code, self._frame.prefix + refused.text)))
        callback = values.get("callback", "").strip()
        if callback and self._frame.wraps:
            return _Page(callback.encode() + b"(" + _json(content) + b")", _WRAPPED_TYPE)
        return _Page(_json(content))

    def _answer(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Answer one call.

        Raises:
            RefusedError: there is no such call, or its token is missing or wrong.
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


class _Handler(HttpRequest):
    """One call: GET with a query, or POST with a form."""

    def __init__(self, connected: socket.socket, server: AdminServer) -> None:
        self._server = server
        super().__init__(connected, _REQUEST_TIMEOUT_S)

    def do_GET(self) -> None:  # noqa: N802 (the base class's name)
        self._answer(urlsplit(self.path).query)

    def do_POST(self) -> None:  # noqa: N802 (the base class's name)
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _MAX_FORM_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a form has at most {_MAX_FORM_BYTES} bytes")
            return
        form = self.rfile.read(length).decode(errors="replace")
        self._answer(f"{urlsplit(self.path).query}&{form}")

    def _answer(self, query: str) -> None:
        foreign = self._server.why_foreign(self.headers.get)
        if foreign is not None:
            self._refuse(HTTPStatus.FORBIDDEN, foreign)
            return
        values: dict[str, str] = {}
        try:
            for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS):
                values.setdefault(name, value)
        except ValueError:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {_MAX_FIELDS} fields")
            return
        self._send(self._server.page(self.path, values))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """Answer with a refusal, and log it."""
        self._server.log_refusal(status.phrase, why)
        self._send(_Page(_json(_failure(status, f"refused: {why}")), status=status))

    def late(self) -> None:
        status, why = HTTPStatus.REQUEST_TIMEOUT, f"it was not complete after {_REQUEST_TIMEOUT_S:g} s"
        if getattr(self, "command", None):
            with contextlib.suppress(OSError):
                self._refuse(status, why)
        else:  # No request has arrived that could be answered.
            self._server.log_refusal(status.phrase, why)

    def _send(self, page: _Page) -> None:
        self.send_response(page.status)
        if page.location is not None:
            self.send_header("Location", page.location)
        self.send_header("Content-Type", page.content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)


def _json(content: Mapping[str, Any]) -> bytes:
    """Return JSON that is harmless as HTML, because answers are text/html and repeat the request."""
    text = json.dumps(content)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _failure(code: int, text: str) -> dict[str, Any]:
    return {"result": False, "errCode": int(code), "errMsg": text}
