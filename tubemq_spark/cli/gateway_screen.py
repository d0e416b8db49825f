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


def line(seen: Overview) -> str:
    """Return everything but sessions and routes, in one line."""
    return "; ".join((_head(seen), *_flows(seen), _numbers(seen)))


def table(seen: Overview) -> RenderableType:
    """Return everything, for a terminal."""
    sessions = _columns("client", "group", "peer", "#calls", "#running", "#silent")
    busiest = sorted(seen.sessions, key=lambda one: (-one.running, one.silent_ms, one.client_id))
    for one in busiest[:_MOST]:
        silent = f"{one.silent_ms / 1000:,.1f} s"
        sessions.add_row(one.client_id, one.group, one.peer, f"{one.calls:,}", f"{one.running:,}", silent)
    routes = _columns("topic", "group", "#partitions", "#brokers", "#age")
    for route in seen.routes[:_MOST]:
        age = f"{route.age_ms / 1000:,.1f} s"
        routes.add_row(route.topic, route.group, f"{route.partitions:,}", f"{route.brokers:,}", age)
    parts: list[RenderableType] = [Text(text) for text in (_head(seen), *_flows(seen), _numbers(seen))]
    for shown, rows, total in (
        (sessions, min(len(busiest), _MOST), seen.session_count),
        (routes, min(len(seen.routes), _MOST), len(seen.routes)),
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
    made = Table(box=None, padding=(0, 2, 0, 0))
    for head in heads:
        made.add_column(head.removeprefix("#"), justify="right" if head.startswith("#") else "left")
    return made


def _head(seen: Overview) -> str:
    state = "about to stop" if seen.draining else "serves"
    return f"gateway {seen.name} {state} at {seen.address}, {seen.session_count:,} sessions"


def _flows(seen: Overview) -> list[str]:
    return [f"{direction} {_flow(flow)}" for direction, flow in seen.flows.items()]


def _flow(flow: Flow) -> str:
    speed = f"{flow.rows_per_second:,.0f} messages/s, {flow.bytes_per_second / _MEGABYTE:,.1f} MB/s"
    return f"{speed} ({flow.rows:,} messages, {flow.bytes / _MEGABYTE:,.1f} MB in total)"


def _numbers(seen: Overview) -> str:
    """Return what is not 0; when all is, the gateway is idle."""
    found = [f"{name}: {number:,}" for name, number in seen.numbers.items() if number]
    return "; ".join(found) or "idle"
