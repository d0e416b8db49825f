"""The status page: an overview as HTML that needs nothing else, neither scripts nor other files."""

from collections.abc import Iterable
from html import escape
from typing import Final

from tubemq_spark.gateway.operate.overview import MEGABYTE, Flow, Overview

REFRESH_S: Final = 5
_STYLE: Final = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}"
    "table{border-collapse:collapse;margin:0 0 2em}"
    "caption{text-align:left;font-weight:bold;padding:.3em 0}"
    "th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid #ddd}"
    "td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}"
    ".draining{color:#b00}"
)


def render(overview: Overview) -> str:
    """Return the page."""
    state = '<strong class="draining">about to stop</strong>' if overview.draining else "serving"
    facts = (
        ("state", state),
        ("address", escape(overview.address)),
        ("cluster", escape(overview.cluster)),
        ("masters", escape(", ".join(overview.masters))),
        ("version", escape(overview.version)),
        ("running for", _duration(overview.uptime_ms)),
    )
    more = overview.session_count - len(overview.sessions)
    left_out = f"<p>{more:,} more sessions are not listed.</p>" if more else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        f"<title>Gateway {escape(overview.name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Gateway {escape(overview.name)}</h1>"
        + _table("gateway", "Gateway", (), facts)
        + _table(
            "rates",
            "Messages",
            ("direction", "#messages/s", "#MB/s", "#messages", "#MB"),
            [(name, *_flow(flow)) for name, flow in overview.flows.items()],
        )
        + _table(
            "waits", "Now", ("what", "#number"), [(name, f"{n:,}") for name, n in overview.numbers.items()]
        )
        + _table(
            "sessions",
            f"{overview.session_count:,} sessions",
            ("client", "group", "peer", "language", "version", "#age", "#silent", "#calls", "#running"),
            [
                (
                    *map(escape, (row.client_id, row.group, row.peer, row.language, row.version)),
                    _duration(row.age_ms),
                    _duration(row.silent_ms),
                    f"{row.calls:,}",
                    f"{row.running:,}",
                )
                for row in overview.sessions
            ],
        )
        + left_out
        + _table(
            "routes",
            "Routes",
            ("topic", "group", "#partitions", "#brokers", "#age"),
            [
                (
                    escape(row.topic),
                    escape(row.group),
                    f"{row.partitions:,}",
                    f"{row.brokers:,}",
                    _duration(row.age_ms),
                )
                for row in overview.routes
            ],
        )
        + '<p><a href="/metrics">metrics</a></p></body></html>\n'
    )


def _table(name: str, caption: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of cells that are HTML already; a head that begins with # is that of numbers."""
    classes = [' class="number"' if head.startswith("#") else "" for head in heads]
    head = "".join(
        f"<th{kind}>{text.removeprefix('#')}</th>" for kind, text in zip(classes, heads, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_at(classes, place)}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f'<table id="{name}"><caption>{caption}</caption>{thead}<tbody>{body}</tbody></table>'


def _at(classes: list[str], place: int) -> str:
    return classes[place] if place < len(classes) else ""


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
