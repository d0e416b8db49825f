"""The web ports: TubeMQ's administration API, ``/webapi.htm?method=...`` with JSON answers.

The status of answers is always HTTP 200, or 302 if the master does not lead; the JSON says whether a call
failed. Parameters are in the query or in a form, and most have a short alias.

Two answers are not TubeMQ's (``net/http_server.py``): 403 to a request that a page of another site made a
browser send, and 408 or 413 to a request that takes too long or is too large.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tubemq_spark.embedded.admin.parameters import Call, GuardedCall, Parameters, bad_request, ok, success
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.http_server import Answer, HttpRequest, HttpServer, RefusedRequestError
from tubemq_spark.protocol.errcodes import ErrCode

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
class WebFrame:
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


MASTER_FRAME: Final = WebFrame(
    prefix="Bad request from client, ",
    no_method="Please take with method parameter!",
    unsupported="unsupported method!",
    list_calls=success,
    version=success([{"version": SERVER_VERSION}]),
    wraps=True,
)
"""The master's (Webapi)."""

BROKER_FRAME: Final = WebFrame(
    prefix="",
    no_method="Please take with method parameter! ",
    unsupported="Unsupported method {method}",
    list_calls=lambda calls: ok("Success!", dataSet=calls, totalCnt=len(calls)),
    version=ok("Ok", data=[{"version": SERVER_VERSION}]),
    wraps=False,
)
"""A broker's (AbstractWebHandler, BrokerAdminServlet)."""


class AdminServer(HttpServer):
    """One web port, served from its construction."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        calls: Mapping[str, Call],
        frame: WebFrame,
        *,
        leader: Callable[[], str | None] = lambda: None,
        advertised: str | None = None,
    ) -> None:
        """Open the port (0: any free one).

        While ``leader`` returns a server, ``host:port``, all requests are redirected to it. ``advertised`` is
        another name that clients use for this machine, besides ``host``.
        """
        self.calls: Mapping[str, Call] = {
            **calls,
            "admin_get_methods": self._list_calls,
            "admin_query_server_version": lambda _parameters: dict(frame.version),
        }
        self._frame = frame
        self._leader = leader
        self._refused: set[HTTPStatus] = set()
        super().__init__(
            f"{name}-web",
            Endpoint(host, port),
            {"GET": self._by_query, "POST": self._by_form},
            names={advertised or host},
            request_s=_REQUEST_TIMEOUT_S,
            connections=_MAX_CONNECTIONS,
            setting=f"{name}_web_port",
        )

    def refusal(self, status: HTTPStatus, why: str) -> Answer:
        """Log that a request is refused, the first of each kind as a warning; return the answer."""
        with self._lock:
            level = logging.DEBUG if status in self._refused else logging.WARNING
            self._refused.add(status)
        logger.log(level, "%s refused a request: %s", self._name, why)
        return _page(_failure(status, f"refused: {why}"), status)

    def _by_query(self, request: HttpRequest) -> Answer:
        return self._page_of(request, urlsplit(request.path).query)

    def _by_form(self, request: HttpRequest) -> Answer:
        form = request.form(_MAX_FORM_BYTES)
        return self._page_of(request, f"{urlsplit(request.path).query}&{form}")

    def _page_of(self, request: HttpRequest, query: str) -> Answer:
        request.refuse_foreign()
        values: dict[str, str] = {}
        try:
            for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS):
                values.setdefault(name, value)
        except ValueError as error:
            why = f"a request has at most {_MAX_FIELDS} fields"
            raise RefusedRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why) from error
        leader = self._leader()
        if leader is not None:
            location = {"Location": f"http://{leader}{request.path}"}
            return Answer("", _USUAL_TYPE, HTTPStatus.FOUND, location)
        try:
            content = self._answer(values)
        except RefusedError as refused:
            # The answer is not wrapped if the call was not reached.
            return _page(_failure(refused.code, self._frame.prefix + refused.text))
        callback = values.get("callback", "").strip()
        if callback and self._frame.wraps:
            return Answer(f"{callback}({_json(content)})", _WRAPPED_TYPE)
        return _page(content)

    def _answer(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Answer one call."""
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


def _page(content: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(_json(content), _USUAL_TYPE, status)


def _json(content: Mapping[str, Any]) -> str:
    """Return JSON that is harmless as HTML, because answers are text/html and repeat the request."""
    text = json.dumps(content)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _failure(code: int, text: str) -> dict[str, Any]:
    return {"result": False, "errCode": int(code), "errMsg": text}
