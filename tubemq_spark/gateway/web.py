"""Serves metrics, the status page and a health check over HTTP; nothing can be changed here.

Each request has a thread, of which there are a few, and what it shows is asked of the event loop. The page
names clients, so a request that a browser sends for a page of another site is refused. It needs nothing else,
neither scripts nor other files.
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from html import escape
from http import HTTPStatus
from importlib import resources
from itertools import zip_longest
from typing import Final
from urllib.parse import urlsplit

from tubemq_spark.gateway.metrics import DIRECTIONS
from tubemq_spark.gateway.overview import (
    HISTORY_S,
    MARK_S,
    MEGABYTE,
    SHOWN,
    Flow,
    GatewayOverview,
    sessions_in_words,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.net.http_server import Answer, HttpRequest, HttpServer, RefusedRequestError

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
    "Cache-Control": "no-store",
}
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"
_NUMBERS: Final = "text/plain; version=0.0.4; charset=utf-8"


def _text_of(status: HTTPStatus, text: str) -> Answer:
    return Answer(f"{text}\n", _PLAIN, status, _HEADERS)


_SERVING: Final = _text_of(HTTPStatus.OK, "serving")
_DRAINING: Final = _text_of(HTTPStatus.SERVICE_UNAVAILABLE, "draining")
_UNKNOWN: Final = _text_of(HTTPStatus.NOT_FOUND, "there are only /, /metrics and /health")
_READ_ONLY: Final = _text_of(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
_FAILED: Final = _text_of(HTTPStatus.INTERNAL_SERVER_ERROR, "the gateway's log says why this is not shown")


class WebServer(HttpServer):
    """Serves ``/``, ``/metrics`` and ``/health`` from its construction."""

    def __init__(
        self,
        endpoint: Endpoint,
        names: Collection[str],
        overview: Callable[[], GatewayOverview],
        numbers: Callable[[], str],
        takes_calls: Callable[[], bool],
        clock: Clock = monotonic,
    ) -> None:
        """Listen, and ask for what is shown in threads; ``names`` are those by which browsers reach it."""
        self._overview = overview
        self._clock = clock
        self._page_lock = threading.Lock()
        self._page = -math.inf, ""
        self._paths: Mapping[str, Callable[[HttpRequest], Answer]] = {
            "/": lambda request: _shown(request, _HTML, self._recent_page),
            "/metrics": lambda request: _shown(request, _NUMBERS, numbers),
            # It says nothing of clients, and load balancers use names of their own.
            "/health": lambda _: _SERVING if takes_calls() else _DRAINING,
        }
        methods = {"GET": self._answer, "HEAD": self._answer}
        super().__init__(
            "gateway-web",
            endpoint,
            {**methods, **dict.fromkeys(("POST", "PUT", "PATCH", "DELETE", "OPTIONS"), lambda _: _READ_ONLY)},
            names=names,
            request_s=_REQUEST_S,
            connections=_MOST_CONNECTIONS,
            setting="metrics (--metrics)",
        )

    def refusal(self, status: HTTPStatus, why: str) -> Answer | None:
        """Return the answer to a request of another site; one that is late has none."""
        if status is HTTPStatus.REQUEST_TIMEOUT:
            return None
        logger.warning("the status page refused a request: %s", why)
        return _text_of(status, f"refused: {why}; the setting metrics_hosts adds names")

    def _answer(self, request: HttpRequest) -> Answer:
        answer = self._paths.get(urlsplit(request.path).path)
        if answer is None:
            return _UNKNOWN
        try:
            return answer(request)
        except RefusedRequestError:
            raise
        except Exception:  # (any mistake is one of ours, and belongs into the log)
            logger.exception("the gateway cannot say what it is doing")
            return _FAILED

    def _recent_page(self) -> str:
        """Return the status page, which is rendered once per ``_PAGE_S`` at most."""
        with self._page_lock:
            at, text = self._page
            if self._clock() - at >= _PAGE_S:
                text = render(self._overview())
                self._page = self._clock(), text
            return text


def _shown(request: HttpRequest, content_type: str, content: Callable[[], str]) -> Answer:
    """Return an answer which no page of another site may read."""
    request.refuse_foreign()
    return Answer(content(), content_type, headers=_HEADERS)


# The page.

_REFRESH_S: Final = 5
_CELL_CHARACTERS: Final = 120
_WIDTH: Final = 600
_HEIGHT: Final = 100
_STYLE: Final = resources.files(__package__).joinpath("status.css").read_text()
"""On a phone each row of a wide table is a card of its own."""


def render(overview: GatewayOverview) -> str:
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
                    *map(_duration, (row.age_ms, row.silent_ms)),
                    *map(_count, (row.calls, row.running)),
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
                    *map(_text, (row.topic, row.group)),
                    *map(_count, (row.partitions, row.brokers)),
                    _duration(row.age_ms),
                )
                for row in overview.routes
            ],
        )
        + (f"<p>More than {SHOWN} routes are not listed.</p>" if len(overview.routes) >= SHOWN else "")
        + '<p><a href="/metrics">metrics</a></p></body></html>\n'
    )


def _state(overview: GatewayOverview) -> tuple[str, str]:
    """Return the colour and the words for what the gateway is doing."""
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
    columns = [(' class="number"' if head.startswith("#") else "", head.removeprefix("#")) for head in heads]
    head = "".join(f"<th{kind}>{text}</th>" for kind, text in columns)
    kinds = [f'{kind} data-name="{text}"' for kind, text in columns]
    body = "".join(
        f"<tr>{''.join(f'<td{at}>{cell}</td>' for cell, at in zip_longest(row, kinds, fillvalue=''))}</tr>"
        for row in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if heads else ""
    wide = ' class="wide"' if len(heads) > 2 else ""
    return f'<table id="{name}"{wide}><caption>{caption}</caption>{thead}<tbody>{body}</tbody></table>'


def _flow(flow: Flow) -> tuple[str, ...]:
    return tuple(
        cell
        for rows, size in ((flow.rows_per_second, flow.bytes_per_second), (flow.rows, flow.bytes))
        for cell in (_count(rows), f"{size / MEGABYTE:,.1f}")
    )


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _duration(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
