"""Serves metrics, the status page and a health check over HTTP; nothing can be changed here.

Each request has a thread, and what it shows is asked of the event loop.
"""

import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

Application: TypeAlias = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]
"""Of WSGI (PEP 3333)."""
Page: TypeAlias = Callable[[], tuple[bool, str, str]]
"""Returns whether all is well, the type of the content, and the content."""

_PATIENCE_S: Final = 10.0
"""How long a client may take for its request."""
_HEADERS: Final = (
    # The page needs no script and no other file, so none may be loaded.
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout: ClassVar[float] = _PATIENCE_S

    def log_message(self, *_: object) -> None:
        """Log nothing: requests come every few seconds."""


class WebServer:
    """Serves some pages by their paths, and an application under ``/metrics``."""

    def __init__(self, host: str, port: int, metrics: Application, pages: Mapping[str, Page]) -> None:
        """Begin to serve.

        Raises:
            OSError: nothing can listen there.
        """
        self._metrics = metrics
        self._pages = pages
        self._server = make_server(host, port, self._answer, _Server, _Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="tubemq-gateway-web", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: dict[str, Any], begin: Callable[..., object]) -> Iterable[bytes]:
        method, path = request["REQUEST_METHOD"], request.get("PATH_INFO", "/")
        if method not in {"GET", "HEAD"}:
            return _text(begin, "405 Method Not Allowed", "only GET and HEAD are served\n")
        if path == "/metrics":
            return self._metrics(request, begin)
        page = self._pages.get(path)
        if page is None:
            paths = ", ".join(["/metrics", *self._pages])
            return _text(begin, "404 Not Found", f"there are only {paths}\n")
        well, kind, content = page()
        begin("200 OK" if well else "503 Service Unavailable", [("Content-Type", kind), *_HEADERS])
        return [b"" if method == "HEAD" else content.encode()]


def _text(begin: Callable[..., object], status: str, content: str) -> list[bytes]:
    begin(status, [("Content-Type", "text/plain; charset=utf-8"), *_HEADERS])
    return [content.encode()]
