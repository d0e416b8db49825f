"""Spark's own Kafka source beside ours, on one machine, in turns.

    make bench-kafka
    make bench-kafka ARGS="--only read,bound --rows 1000000 --rounds 7"

Needs Maven. Both servers (Java TubeMQ, Kafka) run all the time; one task reads one partition. Each round
measures every way of both systems once; the first rounds warm up and do not count. Each figure is the median
of all counted rounds, each ratio (ours to Kafka's) the median of the rounds' ratios, with the least and the
greatest one. CPU is that of Spark's whole process tree: driver, JVM and Python processes, also ended ones.

Parts: read (batches), stream, live (latency and idle cost), steady (a flow of messages), start, bound (the
broker without Spark).
``benchmarks/README.md`` says what each figure means. JSON, with all rounds, is the last line.
"""

import argparse
import contextlib
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyspark
from pyspark.sql import SparkSession

from benchmarks.kafka import (
    any_source,
    bound,
    live,
    reading,
    starting,
    steady,
    systems,
)
from benchmarks.kafka.flow import datagram_sender, free_datagram_port, kafka_sender, tubemq_sender
from benchmarks.kafka.server import KAFKA_VERSION, SPARK_VERSION, connector_jars, kafka_server
from benchmarks.kafka.systems import System
from benchmarks.meter import child_with, cpu_of
from benchmarks.spark import session
from benchmarks.turns import Figures, Key, Section, in_turns, screen
from integration_tests.real.artifacts import TUBEMQ_VERSION
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.servers import AS_SHIPPED, BROKER_CLASS
from tubemq_spark.protocol import speedups

PARTS: Final = ("read", "stream", "live", "steady", "start", "bound")
WARM_UP: Final = live.Durations(flow=5, quiet=2)
"""Of the live measurements, which need no long quiet time to be compiled."""
IN_MEMORY: Final = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 200}


@dataclass(frozen=True)
class Bench:
    """Both servers and Spark, all running, and what was asked for."""

    spark: SparkSession
    master: str
    kafka_address: str
    rows: dict[str, int]
    """How many messages there are, by their size."""
    parts: frozenset[str]
    warm_ups: int
    rounds: int
    durations: live.Durations
    steady_s: float

    @property
    def ours(self) -> System:
        return systems.tubemq(self.master)

    @property
    def kafka(self) -> System:
        return systems.kafka(self.kafka_address)

    @property
    def kafka_large(self) -> System:
        return systems.kafka_large(self.kafka_address)

    def measure(self) -> list[Section]:
        """Measure all parts that were asked for."""
        sections = []
        if self.parts & {"read", "stream", "bound"}:
            for label, rows in self.rows.items():
                screen.print(f"filling both with {rows} messages of {label}")
                systems.fill(self.spark, self.ours, (self.kafka, self.kafka_large), label, rows)
            sections += self._reading()
        if self.parts & {"live", "steady", "start"}:
            systems.fill_one(self.spark, self.ours, self.kafka)
            any_source.register(self.spark)
            port = free_datagram_port()
            anything = System(systems.ANY, any_source.FORMAT, {"port": str(port)})
            if "start" in self.parts:
                sections.append(self._starting(anything))
            if "live" in self.parts:
                sections.append(self._live(anything, port))
            if "steady" in self.parts:
                sections.append(self._steady())
        return sections

    def _in_turns(self, ways: dict[Key, Callable[[], Figures]], title: str) -> dict[Key, list[Figures]]:
        return in_turns(ways, warm_ups=self.warm_ups, rounds=self.rounds, title=title)

    def _reading(self) -> list[Section]:
        broker = functools.partial(cpu_of, child_with(BROKER_CLASS))
        servers = {
            systems.OURS: broker,
            **dict.fromkeys(
                (systems.KAFKA, systems.LARGE), functools.partial(cpu_of, child_with("kafka.Kafka"))
            ),
        }
        compared = [self.ours, self.kafka]
        ways: dict[Key, Callable[[], Figures]] = {}
        if "read" in self.parts:
            systems_read = [*compared, self.kafka_large]
            ways |= reading.batch_ways(self.spark, systems_read, self.rows, servers)
        if "stream" in self.parts:
            ways |= reading.stream_ways(self.spark, compared, self.rows, servers)
            # What a stream's row costs is compared with a batch's.
            batches = reading.batch_ways(self.spark, compared, self.rows, servers)
            ways = {key: way for key, way in batches.items() if key[1] in reading.PER_ROW} | ways
        alone = bound.bound_ways(self.master, self.rows, broker) if "bound" in self.parts else {}
        found = self._in_turns(ways | alone, "reading")
        sections = reading.reading_sections({key: found[key] for key in ways}, self.rows)
        if alone:
            sections.append(bound.bound_section({key: found[key] for key in alone}, self.rows))
        return sections

    def _starting(self, anything: System) -> Section:
        compared = [self.ours, self.kafka, anything]
        warm = starting.start_ways(self.spark, compared)
        cold = starting.cold_ways(compared, connector_jars())
        found = self._in_turns(warm, "starting")
        # Each of these is the first in its Spark, so nothing can be warmed up but files.
        found |= in_turns(cold, warm_ups=min(1, self.warm_ups), rounds=self.rounds, title="starting cold")
        return starting.start_section(found)

    def _live(self, anything: System, port: int) -> Section:
        with contextlib.ExitStack() as stack:
            sends = [
                stack.enter_context(tubemq_sender(self.master, systems.LIVE_TOPIC)),
                stack.enter_context(kafka_sender(self.kafka_address, systems.LIVE_TOPIC)),
                stack.enter_context(datagram_sender(port)),
            ]
            compared = (self.ours, self.kafka, anything)
            senders = {system.name: (system, send) for system, send in zip(compared, sends, strict=True)}
            brief = live.live_ways(self.spark, senders, WARM_UP)
            in_turns(brief, warm_ups=self.warm_ups, rounds=0, title="live")
            ways = live.live_ways(self.spark, senders, self.durations)
            found = in_turns(ways, warm_ups=0, rounds=self.rounds, title="live")
        return live.live_section(found, self.durations)

    def _steady(self) -> Section:
        flow = {"rowsPerSecond": str(steady.MESSAGES_PER_SECOND)}
        compared = [self.ours, self.kafka, System(systems.ANY, any_source.FORMAT, flow)]
        ways = steady.steady_ways(self.spark, compared, self.steady_s)
        return steady.steady_section(self._in_turns(ways, "steady"))


@contextmanager
def running(arguments: argparse.Namespace) -> Iterator[Bench]:
    """Start both servers and Spark."""
    rows = reading.rows_of_sizes(arguments.rows)
    sized = [systems.topic_of(label, attributes=some) for label in rows for some in (False, True)]
    names = (*sized, systems.ONE_TOPIC, systems.LIVE_TOPIC, systems.STEADY_TOPIC)
    specs = {name: TopicSpec(1, 1, properties=IN_MEMORY) for name in names}
    with tempfile.TemporaryDirectory() as name, RealTubeMQ(specs, settings=AS_SHIPPED) as java:
        folder = Path(name)
        # One core for the task; the JVM's own threads and the servers have the rest.
        with (
            kafka_server(folder / "kafka") as address,
            session(folder, "local[1]", spark__jars=connector_jars()) as spark,
        ):
            yield Bench(
                spark,
                java.master,
                address,
                rows,
                frozenset(arguments.only),
                arguments.warm_ups,
                arguments.rounds,
                live.Durations(arguments.flow_seconds, arguments.quiet_seconds),
                arguments.steady_seconds,
            )


def parts(text: str) -> Sequence[str]:
    """Return the parts that a text with commas names."""
    names = text.split(",")
    unknown = set(names) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}"
        )
    return names


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usual = live.Durations()
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--only", type=parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    found.add_argument("--rows", type=int, default=2_000_000, help="of 100 B; a quarter of it at 1 KiB")
    found.add_argument("--rounds", type=int, default=5, help="that count")
    found.add_argument("--warm-ups", type=int, default=2, help="rounds before them")
    found.add_argument("--flow-seconds", type=float, default=usual.flow, help="of messages, for the latency")
    found.add_argument(
        "--quiet-seconds", type=float, default=usual.quiet, help="without any, for the idle cost"
    )
    found.add_argument("--steady-seconds", type=float, default=20.0, help="of the steady flow")
    return found


def main() -> None:
    """Start both servers, measure in turns, and print."""
    arguments = parser().parse_args()
    if speedups.compiled is None:
        sys.exit("the compiled twin is not here: install with a C compiler, and without TUBEMQ_SPARK_PURE")
    with running(arguments) as bench:
        sections = bench.measure()
    for section in sections:
        section.show(screen)
    versions = {
        "PySpark": pyspark.__version__,
        "Kafka": KAFKA_VERSION,
        "Spark's Kafka connector": SPARK_VERSION,
        "TubeMQ": TUBEMQ_VERSION,
    }
    settings = {"rows": bench.rows, "rounds": bench.rounds, "warm-ups": bench.warm_ups}
    found = {"versions": versions, **settings, "sections": [section.to_json() for section in sections]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
