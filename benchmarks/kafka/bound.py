"""What bounds rows/s: a loop that fetches and confirms, from the same broker, without Spark or decoding."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.bare_fetch import fetch_all
from benchmarks.kafka.systems import SIZES, topic_of
from benchmarks.meter import SECONDS, SERVER_CPU
from benchmarks.report import Line, Section
from benchmarks.turns import Figures, Key
from tubemq_spark.client import ClientConfig
from tubemq_spark.model import Endpoint

CLIENT_CPU: Final = "client's CPU s"
BARE: Final = "fetch and confirm"


def bound_ways(
    master: str, rows: Mapping[str, int], broker_cpu: Callable[[], float]
) -> dict[Key, Callable[[], Figures]]:
    """Return the measurements by message size."""
    config = ClientConfig((Endpoint.parse(master),), "bench")
    return {
        (label, BARE): functools.partial(_measure, config, label, count, broker_cpu)
        for label, count in rows.items()
    }


def _measure(config: ClientConfig, label: str, rows: int, broker_cpu: Callable[[], float]) -> Figures:
    broker, client, began = broker_cpu(), time.process_time(), time.perf_counter()
    received = fetch_all(config, topic_of(label))
    found = {
        SECONDS: time.perf_counter() - began,
        CLIENT_CPU: time.process_time() - client,
        SERVER_CPU: broker_cpu() - broker,
    }
    if received < rows * SIZES[label]:
        raise RuntimeError(f"the broker gave {received} bytes for {rows} messages of {label}")
    return found


def bound_section(found: Mapping[Key, Sequence[Figures]], rows: Mapping[str, int]) -> Section:
    """Return the table."""
    lines = []
    for (label, what), all_ in found.items():
        count = rows[label]

        def line(unit: str, values: Sequence[float], what: str = f"{what}, {label}") -> Line:
            return Line(what, unit, {"TubeMQ": values})

        lines += [
            line("rows/s", [count / one[SECONDS] for one in all_]),
            line("client's CPU us/row", [one[CLIENT_CPU] / count * 1e6 for one in all_]),
            line("broker's CPU us/row", [one[SERVER_CPU] / count * 1e6 for one in all_]),
        ]
    return Section(
        "the broker alone: one connection, one request per fetch, nothing decoded", ("TubeMQ",), lines
    )
