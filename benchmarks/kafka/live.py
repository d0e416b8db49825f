"""Queries while messages arrive one by one: latency, idle cost, and the first message after a quiet time."""

import dataclasses
import functools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka.flow import Send
from benchmarks.kafka.systems import ANY, KAFKA, LIVE_TOPIC, OURS, System, started
from benchmarks.meter import SPARK_CPU, SparkMeter
from benchmarks.turns import Figures, Key, Line, Section

MESSAGES_PER_SECOND: Final = 20
_START_S: Final = 60.0
_ARRIVE_S: Final = 20.0
_SETTLE_S: Final = 10.0
"""So long after the last message an idle query counts as one."""

P50: Final = "latency p50"
P99: Final = "latency p99"
IDLE: Final = "idle"
FIRST: Final = "first message after the quiet time"


@dataclasses.dataclass(frozen=True)
class Durations:
    """How long the parts of one measurement take, in seconds."""

    flow: float = 20.0
    """Messages flow."""
    quiet: float = 60.0
    """No message comes."""


class _Arrivals:
    """Which messages ``foreachBatch`` has seen, and after how long."""

    def __init__(self) -> None:
        self._milliseconds: dict[bytes, float] = {}
        self._changed = threading.Condition()

    def note(self, batch: DataFrame, _number: int) -> None:
        """Note the delays of a micro-batch, for ``foreachBatch``; a message is the time when it was sent."""
        values = [bytes(row.value) for row in batch.select("value").collect()]
        now = time.time_ns()
        with self._changed:
            self._milliseconds |= {value: (now - int(value)) / 1e6 for value in values}
            self._changed.notify_all()

    def latencies(self, messages: Sequence[bytes], timeout_s: float) -> list[float]:
        """Wait for some messages and return their latencies in milliseconds, in their order."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._milliseconds.keys() >= set(messages), timeout_s):
                raise TimeoutError(f"not all of {len(messages)} messages came within {timeout_s:g} s")
            return [self._milliseconds[message] for message in messages]


def live_ways(
    spark: SparkSession, senders: Mapping[str, tuple[System, Send]], durations: Durations
) -> dict[Key, Callable[[], Figures]]:
    """Return the measurement of each system."""
    meter = SparkMeter()
    return {
        (name,): functools.partial(_measure, spark, meter, system, send, durations)
        for name, (system, send) in senders.items()
    }


def _measure(
    spark: SparkSession, meter: SparkMeter, system: System, send: Send, durations: Durations
) -> Figures:
    with _query(spark, system) as arrivals:
        _await_first(arrivals, send)
        flow = arrivals.latencies(_send_for(send, durations.flow), _ARRIVE_S)
        # The first ones come while the query warms up.
        settled = sorted(flow[len(flow) // 4 :])
        time.sleep(min(_SETTLE_S, durations.quiet / 2))
        idle_s = durations.quiet - min(_SETTLE_S, durations.quiet / 2)
        idle = meter.measure(lambda: time.sleep(idle_s))
        (first,) = arrivals.latencies([_send(send)], _ARRIVE_S)
    return {
        P50: _percentile(settled, 0.5),
        P99: _percentile(settled, 0.99),
        IDLE: idle[SPARK_CPU] / idle_s,
        FIRST: first,
    }


@contextmanager
def _query(spark: SparkSession, system: System) -> Iterator[_Arrivals]:
    """Run a query that begins a micro-batch whenever it can."""
    arrivals = _Arrivals()
    data = system.stream(spark, LIVE_TOPIC, first=None)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = started(data.writeStream.foreachBatch(arrivals.note), checkpoint)
        try:
            yield arrivals
        finally:
            query.stop()


def _await_first(arrivals: _Arrivals, send: Send) -> None:
    """Send until the query reads: it begins at what is new when it has started."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            arrivals.latencies([_send(send)], 1.0)
        except TimeoutError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _send(send: Send) -> bytes:
    message = b"%d" % time.time_ns()
    send(message)
    return message


def _send_for(send: Send, seconds: float) -> list[bytes]:
    """Send at random times, because a fixed pace could keep step with the query's triggers."""
    sent, pauses = [], random.Random(1)
    for _ in range(int(seconds * MESSAGES_PER_SECOND)):
        sent.append(_send(send))
        time.sleep(pauses.uniform(0, 2 / MESSAGES_PER_SECOND))
    return sent


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of sorted values lies."""
    return values[min(len(values) - 1, int(len(values) * share))]


def live_section(found: Mapping[Key, Sequence[Figures]], durations: Durations) -> Section:
    """Return the table; a smaller ratio is better."""
    units = {P50: "ms", P99: "ms", IDLE: "share of a core", FIRST: "ms"}
    lines = [
        Line(what, unit, {name: [one[what] for one in all_] for (name,), all_ in found.items()})
        for what, unit in units.items()
    ]
    title = f"{MESSAGES_PER_SECOND} messages/s, then {durations.quiet:g} s without any"
    return Section(title, (OURS, KAFKA, ANY), lines)
