"""What a gateway is doing, as one value: for the status page, and as a line of text."""

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from tubemq_spark.net.deadline import Clock

DIRECTIONS: Final = ("read", "published")
"""Which way messages pass, as ``Metrics.passed`` calls it."""


MEGABYTE: Final = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Messages that passed in one direction: in total, and per second of late."""

    rows: int
    bytes: int
    rows_per_second: float
    bytes_per_second: float


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRow:
    """One session; times in ms."""

    client_id: str
    group: str
    peer: str
    language: str
    version: str
    age_ms: int
    silent_ms: int
    calls: int
    running: int
    """How many of its calls are under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class RouteRow:
    """What a master said of one topic, for one kind of session."""

    topic: str
    group: str
    partitions: int
    brokers: int
    age_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """A gateway at one moment."""

    name: str
    cluster: str
    version: str
    address: str
    masters: tuple[str, ...]
    uptime_ms: int
    draining: bool
    flows: Mapping[str, Flow]
    """By direction."""
    numbers: Mapping[str, int]
    """How much of each there is now, by what it is, such as ``open reads``."""
    sessions: tuple[SessionRow, ...]
    """In the order of their ids; not more than ``SHOWN``."""
    session_count: int
    routes: tuple[RouteRow, ...]


SHOWN: Final = 500
"""How many sessions an overview lists."""


class Rates:
    """Turns totals into rates.

    A look gives the rate since one of the last two marks, so that several may look as often as they
    like. Used in the event loop only.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """Begin at 0."""
        self._clock = clock
        nothing = dict.fromkeys(DIRECTIONS, (0, 0))
        self._marks: deque[tuple[float, Mapping[str, tuple[int, int]]]] = deque(
            [(clock(), nothing)], maxlen=2
        )

    def mark(self, totals: Mapping[str, tuple[int, int]]) -> None:
        """Note messages and bytes that have passed by now, by direction."""
        self._marks.append((self._clock(), totals))

    def flows(self, totals: Mapping[str, tuple[int, int]]) -> dict[str, Flow]:
        """Return totals with their rates."""
        then, before = self._marks[0]
        seconds = max(self._clock() - then, 1e-3)
        return {
            direction: Flow(
                rows, size, (rows - before[direction][0]) / seconds, (size - before[direction][1]) / seconds
            )
            for direction, (rows, size) in totals.items()
        }


def report(overview: Overview) -> str:
    """Return everything but sessions and routes, in one line."""
    state = "about to stop" if overview.draining else "serves"
    head = f"gateway {overview.name} {state} at {overview.address}, {overview.session_count:,} sessions"
    flows = (f"{direction} {_flow(flow)}" for direction, flow in overview.flows.items())
    numbers = [f"{name}: {number:,}" for name, number in overview.numbers.items() if number]
    return "; ".join((head, *flows, *(numbers or ["idle"])))


def _flow(flow: Flow) -> str:
    speed = f"{flow.rows_per_second:,.0f} messages/s, {flow.bytes_per_second / MEGABYTE:,.1f} MB/s"
    return f"{speed} ({flow.rows:,} messages, {flow.bytes / MEGABYTE:,.1f} MB in total)"
