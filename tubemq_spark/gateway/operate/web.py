"""Serves metrics, the status page and a health check over HTTP; nothing can be changed here.

Each request has a thread, of which there are a few, and what it shows is asked of the event loop. The page
names clients, so a request that a browser sends for a page of another site is refused. It needs nothing else,
neither scripts nor other files.
"""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from html import escape
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from tubemq_spark.gateway.metrics import DIRECTIONS
from tubemq_spark.gateway.operate.overview import (
    HISTORY_S,
    MARK_S,
    MEGABYTE,
    SHOWN,
    Flow,
    Overview,
    sessions_in_words,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net import visitors
from tubemq_spark.net.deadline import Clock
from tubemq_spark.net.http import HttpRequest
from tubemq_spark.net.listener import Acceptor

logger = logging.getLogger(__name__)

_REQUEST_S: Final = 10.0
"""How long a request may take to come."""
_MOST_CONNECTIONS: Final = 64
_PAGE_S: Final = 1.0
"""How old a page may be: however often it is asked for, it is made once a second."""
_HEADERS: Final = {
    # The page needs no script and no other file, so none may be loaded.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"
_NUMBERS: Final = "text/plain; version=0.0.4; charset=utf-8"


class WebServer:
    """Serves ``/``, ``/metrics`` and ``/health`` from its construction."""

    def __init__(
        self,
        endpoint: Endpoint,
        names: Collection[str],
        overview: Callable[[], Overview],
        numbers: Callable[[], str],
        takes_calls: Callable[[], bool],
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin to serve.

        Args:
            endpoint: where to listen; port 0: any free one.
            names: by which browsers and programs reach it, besides addresses and localhost.
            overview: returns what the gateway is doing.
            numbers: returns the metrics as Prometheus reads them.
            takes_calls: tells whether the gateway takes calls.
            clock: tells seconds.

        Raises:
            OptionError: the host is not this machine.
            TubeMQConnectionError: nothing can listen there.
        """
        self._names = frozenset({endpoint.host, *names})
        self._overview = overview
        self._numbers = numbers
        self._takes_calls = takes_calls
        self._clock = clock
        self._lock = threading.Lock()
        self._page = -math.inf, ""
        self._acceptor = Acceptor(
            "gateway-web",
            endpoint.host,
            endpoint.port,
            self._serve,
            _MOST_CONNECTIONS,
            setting="metrics (--metrics)",
        )
        self.endpoint = self._acceptor.endpoint

    def close(self) -> None:
        """Serve no longer."""
        self._acceptor.close()

    def _serve(self, connected: socket.socket) -> None:
        try:
            _Request(connected, self)
        except ValueError as error:
            logger.debug("a request to %s is not HTTP: %s", self.endpoint, error)

    def answer(self, path: str, header: visitors.Header) -> tuple[HTTPStatus, str, str]:
        """Return the status, the type and the content of the answer to a request."""
        try:
            if path == "/health":
                # It says nothing of clients, and load balancers use names of their own.
                serving = self._takes_calls()
                status = HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE
                return status, _PLAIN, "serving\n" if serving else "draining\n"
            if path not in {"/", "/metrics"}:
                return HTTPStatus.NOT_FOUND, _PLAIN, "there are only /, /metrics and /health\n"
            if foreign := visitors.why_foreign(header, self._names):
                logger.warning("the status page refused a request: %s", foreign)
                text = f"refused: {foreign}; the setting metrics_hosts adds names\n"
                return HTTPStatus.FORBIDDEN, _PLAIN, text
            if path == "/metrics":
                return HTTPStatus.OK, _NUMBERS, self._numbers()
            return HTTPStatus.OK, _HTML, self._recent_page()
        except Exception:  # (any mistake is one of ours, and belongs into the log)
            logger.exception("the gateway cannot say what it is doing")
            return HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, "the gateway's log says why this is not shown\n"

    def _recent_page(self) -> str:
        with self._lock:
            at, text = self._page
            if self._clock() - at >= _PAGE_S:
                text = render(self._overview())
                self._page = self._clock(), text
            return text


class _Request(HttpRequest):
    """One request; only the methods GET and HEAD are served."""

    def __init__(self, connected: socket.socket, server: WebServer) -> None:
        self._web = server
        super().__init__(connected, _REQUEST_S)

    def do_GET(self) -> None:  # noqa: N802 (the base class's name)
        self._send(*self._web.answer(urlsplit(self.path).path, self.headers.get))

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "only GET and HEAD are served\n")

    do_HEAD = do_GET  # noqa: N815 (the base class's names)
    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


# The page.

_REFRESH_S: Final = 5
_CELL_CHARACTERS: Final = 120
_WIDTH: Final = 600
_HEIGHT: Final = 100
_STYLE: Final = (
    ":root{color-scheme:light dark;--text:#1f2328;--dim:#59636e;--back:#fff;--line:#d1d9e0;"
    "--read:#0969da;--published:#bc4c00;--good:#1a7f37;--warning:#9a6700;--bad:#d1242f}"
    "@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--dim:#9198a1;--back:#0d1117;--line:#3d444d;"
    "--read:#4493f8;--published:#f0883e;--good:#3fb950;--warning:#d29922;--bad:#f85149}}"
    "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:75rem;"
    "color:var(--text);background:var(--back)}"
    "h1{font-size:1.4rem;margin:.2em 0 .6em;overflow-wrap:anywhere}a{color:var(--read)}"
    "table{border-collapse:collapse;width:100%;margin:0 0 2rem}"
    "caption,figcaption{text-align:left;font-weight:600;padding:.3em 0}"
    "th,td{text-align:left;vertical-align:top;padding:.25em 1em .25em 0;border-bottom:1px solid var(--line);"
    "overflow-wrap:anywhere}th,.number{white-space:nowrap}th{color:var(--dim);font-weight:400}"
    ".wide td{min-width:4em}.wide td:not(.number){min-width:8em}.wide td:first-child{min-width:12em}"
    ".number{text-align:right;font-variant-numeric:tabular-nums}"
    ".pair{display:grid;gap:0 3rem;align-items:start;"
    "grid-template-columns:repeat(auto-fit,minmax(18rem,1fr))}"
    ".state{padding:.1em .6em;border-radius:1em;color:var(--back);font-size:.9rem;white-space:nowrap}"
    ".good{background:var(--good)}.warning{background:var(--warning)}.bad{background:var(--bad)}"
    "figure{margin:0 0 2rem}svg{display:block;width:100%;height:8rem}"
    "polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}"
    "line{stroke:var(--line);vector-effect:non-scaling-stroke}"
    "polyline.read{stroke:var(--read)}polyline.published{stroke:var(--published)}"
    "b.read{color:var(--read)}b.published{color:var(--published)}"
    ".ends{display:flex;justify-content:space-between;color:var(--dim);font-size:.85rem}"
    # On a phone each row of a wide table is a card of its own.
    "@media(max-width:45rem){.wide thead{display:none}.wide tr{display:block;padding:.5em 0;"
    "border-bottom:1px solid var(--line)}.wide td{display:flex;justify-content:space-between;gap:1em;"
    "border:0;padding:.1em 0;text-align:right}"
    ".wide td,.wide td:not(.number),.wide td:first-child{min-width:0}.wide td:empty{display:none}"
    ".wide td:first-child{font-weight:600}"
    ".wide td::before{content:attr(data-name);color:var(--dim);font-weight:400;"
    "text-align:left;white-space:nowrap;overflow-wrap:normal}th,td{padding-right:.5em}}"
)


def render(overview: Overview) -> str:
    """Return the page."""
    mood, state = _state(overview)
    badge = f'<strong class="state {mood}">{state}</strong>'
    title = _text(f"Gateway {overview.name}")
    more = overview.session_count - len(overview.sessions)
    facts = (
        ("state", state),
        ("address", _text(overview.address)),
        ("cluster", _text(overview.cluster)),
        ("masters", escape(", ".join(overview.masters))),
        ("version", escape(overview.version)),
        ("running for", _duration(overview.uptime_ms)),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{_REFRESH_S}">'
        f"<title>{title}: {state}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title} {badge}</h1>"
        + _chart(overview.history)
        + _table(
            "rates",
            "Messages",
            ("direction", "#messages/s", "#MB/s", "#messages", "#MB"),
            [(name, *_flow(flow)) for name, flow in overview.flows.items()],
        )
        + '<div class="pair">'
        + _table("gateway", "Gateway", (), facts)
        + _table(
            "waits", "Now", ("what", "#number"), [(name, f"{n:,}") for name, n in overview.numbers.items()]
        )
        + "</div>"
        + _table(
            "sessions",
            sessions_in_words(overview),
            ("client", "group", "peer", "language", "version", "#age", "#silent", "#calls", "#running"),
            [
                (
                    *map(_text, (row.client_id, row.group, row.peer, row.language, row.version)),
                    _duration(row.age_ms),
                    _duration(row.silent_ms),
                    f"{row.calls:,}",
                    f"{row.running:,}",
                )
                for row in overview.sessions
            ],
        )
        + (f"<p>{more:,} more sessions are not listed.</p>" if more > 0 else "")
        + _table(
            "routes",
            "Routes",
            ("topic", "group", "#partitions", "#brokers", "#age"),
            [
                (
                    _text(row.topic),
                    _text(row.group),
                    f"{row.partitions:,}",
                    f"{row.brokers:,}",
                    _duration(row.age_ms),
                )
                for row in overview.routes
            ],
        )
        + (f"<p>More than {SHOWN} routes are not listed.</p>" if len(overview.routes) >= SHOWN else "")
        + '<p><a href="/metrics">metrics</a></p></body></html>\n'
    )


def _state(overview: Overview) -> tuple[str, str]:
    """Return a colour and words."""
    if overview.draining:
        return "bad", "about to stop"
    return ("warning", "serving, but no master answers") if overview.degraded else ("good", "serving")


def _chart(history: Mapping[str, tuple[float, ...]]) -> str:
    """Return messages per second over the last minutes, as lines that end now."""
    top = _round_up(max((rate for rates in history.values() for rate in rates), default=0))
    places = HISTORY_S / MARK_S - 1
    lines = "".join(
        f'<polyline class="{direction}" points="{_points(rates, places, top)}"/>'
        for direction, rates in history.items()
    )
    names = " and ".join(f'<b class="{direction}">{direction}</b>' for direction in DIRECTIONS)
    grid = "".join(f'<line x1="0" x2="{_WIDTH}" y1="{y}" y2="{y}"/>' for y in (0, _HEIGHT // 2, _HEIGHT))
    return (
        f'<figure id="chart"><figcaption>Messages per second, {names}</figcaption>'
        f'<div class="ends"><span>{top:,.0f}</span></div>'
        f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 4}" preserveAspectRatio="none" role="img" '
        f'aria-label="messages per second over the last minutes">{grid}{lines}</svg>'
        f'<div class="ends"><span>{HISTORY_S / 60:.0f} min ago</span><span>now</span></div></figure>'
    )


def _points(rates: tuple[float, ...], places: float, top: float) -> str:
    first = places + 1 - len(rates)
    return " ".join(
        f"{(first + place) / places * _WIDTH:.1f},{_HEIGHT - rate / top * _HEIGHT:.1f}"
        for place, rate in enumerate(rates)
    )


def _round_up(number: float) -> float:
    """Return the next number of few digits, at least 1."""
    power = 10.0 ** max(0, math.ceil(math.log10(max(number, 1))) - 1)
    return next(digit * power for digit in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if digit * power >= number)


def _text(text: str) -> str:
    """Return what a client named, as HTML, cut and without characters that are not printable."""
    cut = text if len(text) <= _CELL_CHARACTERS else f"{text[:_CELL_CHARACTERS]}..."
    return escape(
        "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in cut)
    )


def _table(name: str, caption: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of cells that are HTML already; a head that begins with # is that of numbers."""
    classes = [' class="number"' if head.startswith("#") else "" for head in heads]
    names = [head.removeprefix("#") for head in heads]
    head = "".join(f"<th{kind}>{text}</th>" for kind, text in zip(classes, names, strict=True))
    cells = [f'{kind} data-name="{text}"' for kind, text in zip(classes, names, strict=True)]
    body = "".join(
        "<tr>" + "".join(f"<td{_at(cells, place)}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if heads else ""
    wide = ' class="wide"' if len(heads) > 2 else ""
    return f'<table id="{name}"{wide}><caption>{caption}</caption>{thead}<tbody>{body}</tbody></table>'


def _at(cells: list[str], place: int) -> str:
    return cells[place] if place < len(cells) else ""


def _flow(flow: Flow) -> tuple[str, ...]:
    return (
        f"{flow.rows_per_second:,.0f}",
        f"{flow.bytes_per_second / MEGABYTE:,.1f}",
        f"{flow.rows:,}",
        f"{flow.bytes / MEGABYTE:,.1f}",
    )


def _duration(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
