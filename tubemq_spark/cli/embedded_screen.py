"""What ``tubemq-spark embedded`` shows while it serves: a live table on a terminal, or lines."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tubemq_spark.embedded.server import Overview
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, StoreId
from tubemq_spark.receipts import counted

_MEGABYTE: Final = 1_000_000
_SHOWN_STORES: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """Traffic in one direction: the total, and the present rate per second."""

    messages: int
    bytes: int
    messages_per_second: float
    bytes_per_second: float

    def __str__(self) -> str:
        speed = f"{self.messages_per_second:,.0f} messages/s, {self.bytes_per_second / _MEGABYTE:,.1f} MB/s"
        return f"{speed} ({self.messages:,} messages, {self.bytes / _MEGABYTE:,.1f} MB in total)"


class Meter:
    """Turns totals into rates, from one call to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = ((0, 0), (0, 0))
        self._last_at = clock()

    def flows(self, overview: Overview) -> tuple[Flow, Flow]:
        """Return the incoming and the outgoing traffic."""
        now, traffic = self._clock(), overview.traffic
        totals = (traffic.messages_in, traffic.bytes_in), (traffic.messages_out, traffic.bytes_out)
        seconds = max(now - self._last_at, 1e-9)
        incoming, outgoing = (
            Flow(*total, (total[0] - last[0]) / seconds, (total[1] - last[1]) / seconds)
            for total, last in zip(totals, self._last, strict=True)
        )
        self._last, self._last_at = totals, now
        return incoming, outgoing


def line(overview: Overview, flows: tuple[Flow, Flow]) -> str:
    """Return everything except the offsets, in one line."""
    return "; ".join((f"in {flows[0]}", f"out {flows[1]}", _clients(overview), *_brokers(overview)))


def table(overview: Overview, flows: tuple[Flow, Flow]) -> RenderableType:
    """Return everything, for a terminal."""
    topics = Table("topic", "messages", "offsets by store", box=None, padding=(0, 2, 0, 0))
    topics.columns[1].justify = "right"
    for topic, stores in _by_topic(overview.stores).items():
        rows = sum((bounds.latest - bounds.earliest) // INDEX_ENTRY_BYTES for bounds in stores.values())
        topics.add_row(topic, f"{rows:,}", _ranges(stores, several_brokers=len(overview.brokers) > 1))
    lines = (f"in   {flows[0]}", f"out  {flows[1]}", _clients(overview), *_brokers(overview))
    return Group(*map(Text, lines), topics)


@contextmanager
def live(console: Console | None = None) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that replaces what it showed before."""
    # Without its refresh thread: the screen is redrawn when there is something new.
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda shown: screen.update(shown, refresh=True)


def _clients(overview: Overview) -> str:
    return (
        f"{counted(overview.connections, 'connection')}, {counted(overview.producers, 'producer')}, "
        f"{counted(overview.consumers, 'consumer')}, {counted(overview.leases, 'partition')} being read"
    )


def _brokers(overview: Overview) -> list[str]:
    """Return the line about brokers if there are several."""
    if len(overview.brokers) == 1:
        return []
    return ["brokers: " + ", ".join(f"{number} {state}" for number, state in overview.brokers.items())]


def _by_topic(stores: Mapping[StoreId, OffsetBounds]) -> dict[str, dict[StoreId, OffsetBounds]]:
    topics: dict[str, dict[StoreId, OffsetBounds]] = {}
    for place, bounds in sorted(stores.items()):
        topics.setdefault(place.topic, {})[place] = bounds
    return topics


def _ranges(stores: Mapping[StoreId, OffsetBounds], *, several_brokers: bool) -> str:
    shown = [
        f"{f'{place.broker_id}/' if several_brokers else ''}{place.store}: {bounds.earliest}-{bounds.latest}"
        for place, bounds in stores.items()
    ]
    more = len(shown) - _SHOWN_STORES
    return "  ".join(shown[:_SHOWN_STORES]) + (f"  and {more} more" if more > 0 else "")
