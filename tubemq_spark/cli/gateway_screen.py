"""What ``tubemq-spark gateway`` shows while it serves: a live table on a terminal, or lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tubemq_spark.gateway.operate.overview import Flow, Overview

_MEGABYTE: Final = 1_000_000
_MOST: Final = 8
"""How many sessions and how many routes are shown."""


def line(overview: Overview) -> str:
    """Return everything but sessions and routes, in one line."""
    return "; ".join((_head(overview), *_flows(overview), _numbers(overview)))


def table(overview: Overview) -> RenderableType:
    """Return everything, for a terminal."""
    sessions = _columns("client", "group", "peer", "#calls", "#running", "#silent")
    busiest = sorted(
        overview.sessions, key=lambda session: (-session.running, session.silent_ms, session.client_id)
    )
    for session in busiest[:_MOST]:
        silent = f"{session.silent_ms / 1000:,.1f} s"
        sessions.add_row(
            session.client_id,
            session.group,
            session.peer,
            f"{session.calls:,}",
            f"{session.running:,}",
            silent,
        )
    routes = _columns("topic", "group", "#partitions", "#brokers", "#age")
    for route in overview.routes[:_MOST]:
        age = f"{route.age_ms / 1000:,.1f} s"
        routes.add_row(route.topic, route.group, f"{route.partitions:,}", f"{route.brokers:,}", age)
    parts: list[RenderableType] = [
        Text(text) for text in (_head(overview), *_flows(overview), _numbers(overview))
    ]
    for shown, rows, total in (
        (sessions, min(len(busiest), _MOST), overview.session_count),
        (routes, min(len(overview.routes), _MOST), len(overview.routes)),
    ):
        if rows:
            parts += [Text(), shown]
        if total > rows:
            parts.append(Text(f"and {total - rows:,} more"))
    return Group(*parts)


@contextmanager
def live() -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that replaces what it showed before; lines of the log stand above it."""
    # A log that goes to a file stays there.
    redirect = sys.stderr.isatty()
    with Live(console=Console(), auto_refresh=False, redirect_stderr=redirect) as screen:
        yield lambda shown: screen.update(shown, refresh=True)


def _columns(*heads: str) -> Table:
    columns = Table(box=None, padding=(0, 2, 0, 0))
    for head in heads:
        columns.add_column(head.removeprefix("#"), justify="right" if head.startswith("#") else "left")
    return columns


def _head(overview: Overview) -> str:
    state = "about to stop" if overview.draining else "serves"
    return f"gateway {overview.name} {state} at {overview.address}, {overview.session_count:,} sessions"


def _flows(overview: Overview) -> list[str]:
    return [f"{direction} {_flow(flow)}" for direction, flow in overview.flows.items()]


def _flow(flow: Flow) -> str:
    speed = f"{flow.rows_per_second:,.0f} messages/s, {flow.bytes_per_second / _MEGABYTE:,.1f} MB/s"
    return f"{speed} ({flow.rows:,} messages, {flow.bytes / _MEGABYTE:,.1f} MB in total)"


def _numbers(overview: Overview) -> str:
    """Return what is not 0; when all is, the gateway is idle."""
    numbers = [f"{name}: {number:,}" for name, number in overview.numbers.items() if number]
    return "; ".join(numbers) or "idle"
