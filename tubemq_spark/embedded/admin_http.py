"""The web ports: TubeMQ's administration API, ``/webapi.htm?method=...`` with JSON answers.

Answers are always HTTP 200; whether a call failed is said in the JSON. Parameters come in the query or in
a form, and most have a short alias.
"""

import http.server
import json
import logging
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.net.listener import Acceptor
from tubemq_spark.protocol.errcodes import ErrCode

if TYPE_CHECKING:
    import socketserver

logger = logging.getLogger(__name__)

_MAX_FORM_BYTES: Final = 1 << 20
_REQUEST_TIMEOUT_S: Final = 30
_MAX_LIST_ITEMS: Final = 100
_ALIASES: Final = {
    "topicName": "topic",
    "groupName": "group",
    "partitionId": "pid",
    "confModAuthToken": "authToken",
    "modifyUser": "mur",
    "createUser": "cur",
}


class Parameters:
    """The parameters of one call (WebParameterUtils)."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take the values as they came."""
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Return a text without blanks around it, or the default."""
        value = self._values.get(name) or self._values.get(_ALIASES.get(name, name)) or default
        return value.strip()

    def required(self, name: str) -> str:
        """Return a text that must be there.

        Raises:
            RefusedError: it is missing or blank.
        """
        value = self.text(name)
        if not value:
            raise bad_request(f"Parameter {name} is missing or value is blank!")
        return value

    def items(self, name: str) -> list[str]:
        """Return a comma-separated list, empty when there is none.

        Raises:
            RefusedError: there are more than 100 items.
        """
        items = [item.strip() for item in self.text(name).split(",") if item.strip()]
        if len(items) > _MAX_LIST_ITEMS:
            raise bad_request(f"Parameter {name}'s item count over max allowed count ({_MAX_LIST_ITEMS})!")
        return items

    def required_items(self, name: str) -> list[str]:
        """Return a comma-separated list that must not be empty.

        Raises:
            RefusedError: it is missing or blank, or has more than 100 items.
        """
        self.required(name)
        return self.items(name)

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number; one without default must be there.

        Raises:
            RefusedError: it is missing, or no number.
        """
        value = self.text(name) if default is not None else self.required(name)
        try:
            return int(value) if value else default or 0
        except ValueError:
            raise bad_request(f"Parameter {name}'s value {value} is not a number!") from None

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return self.text(name, str(default)).lower() == "true"


def bad_request(text: str) -> RefusedError:
    """Return what ends a call with the code that TubeMQ gives to all bad calls."""
    return RefusedError(ErrCode.BAD_REQUEST, text)


Call = Callable[[Parameters], dict[str, Any]]
"""Answers one method with the whole JSON object, or raises RefusedError."""


class AdminServer:
    """One web port; it serves from the start, each request in a thread of its own."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        calls: Mapping[str, Call],
        *,
        failure_prefix: str,
        unsupported: str,
    ) -> None:
        """Open the port (0: any free one).

        ``failure_prefix`` stands before every text of a refused call; ``unsupported`` is the text for an
        unknown method, in which ``{method}`` is replaced.

        Raises:
            TubeMQConnectionError: the port cannot be opened.
        """
        self._calls = calls
        self._failure_prefix = failure_prefix
        self._unsupported = unsupported
        self._acceptor = Acceptor(f"{name}-web", host, port, self._serve)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._acceptor.endpoint.port

    def answer(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Answer one call; it never raises."""
        parameters = Parameters(values)
        method = parameters.text("method")
        call = self._calls.get(method)
        try:
            if not method:
                return self._failed("Please take with method parameter! ")
            if call is None:
                return self._failed(self._unsupported.replace("{method}", method))
            return call(parameters)
        except RefusedError as refused:
            return self._failed(refused.text, refused.code)
        except Exception as error:
            logger.exception("the web call %s failed", method)
            return self._failed(str(error), ErrCode.INTERNAL_SERVER_ERROR)

    def close(self) -> None:
        """Close the port and wait until its threads are gone."""
        self._acceptor.close()

    def _serve(self, connected: socket.socket) -> None:
        try:
            _Handler(connected, self.answer)
        except ValueError as error:
            logger.debug("what came to %s is no HTTP: %s", self._acceptor.endpoint, error)

    def _failed(self, text: str, code: ErrCode = ErrCode.BAD_REQUEST) -> dict[str, Any]:
        return {"result": False, "errCode": int(code), "errMsg": self._failure_prefix + text}


class _Handler(http.server.BaseHTTPRequestHandler):
    """One call: GET with a query, or POST with a form."""

    timeout = _REQUEST_TIMEOUT_S

    def __init__(
        self, connected: socket.socket, answer: Callable[[Mapping[str, str]], dict[str, Any]]
    ) -> None:
        self._json = answer
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
        body = json.dumps(self._json(dict(parse_qsl(query)))).encode()
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/html;charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        logger.debug("web %s: %s", self.client_address[0], format % args)
