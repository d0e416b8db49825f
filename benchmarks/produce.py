"""Our producer and ``df.write`` in one task beside TubeMQ's own load generator, in turns on one Java broker.

    make bench-produce
    make bench-produce ARGS="--messages 1000000 --rounds 5"
    TUBEMQ_SPARK_PURE=1 make bench-produce              # with the Python twin

Needs Maven. The generator (``CliProducer``) sends from one client and does not wait for answers; every topic
has the memory cache that brokers give it as shipped, so some of the generator's messages are refused.

- Messages per second are those the broker has stored, looked at while a run goes on, without its beginning
  and its end. Processor time is that of the client's process tree between the same two looks.
- *Ready frames* is a program that sends frames it has encoded before and only counts the answers, one by one:
  how fast the broker takes messages.
- After each run the broker must have stored what was accepted; more only where a client says that a message
  may be stored twice.

Each figure is the median of all rounds, each ratio the median of the rounds' ratios, with the least and the
greatest one. JSON is the last line.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.bare_producer import KEYS, KINDS, MIXED_BYTES
from benchmarks.looks import cpu_of_child, of_process, steady, watched
from benchmarks.spark import session
from integration_tests.real import config_files, load
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from tubemq_spark.protocol import speedups

MEAN_OF_MIXED: Final = sum(MIXED_BYTES) // 2
AS_SHIPPED: Final = {"unflushThreshold": 1_000, "memCacheFlushIntvl": 20_000}
"""What the test servers set otherwise."""
TOPICS: Final = {
    "one": TopicSpec(1, 1, properties=AS_SHIPPED),
    "hundred": TopicSpec(10, 10, properties=AS_SHIPPED),
}
JAVA: Final = "CliProducer"
SPARK: Final = "df.write"
BARE: Final = ("send", "send_batch")
READY: Final = "ready frames"
PROGRAMS: Final = {SPARK: "SparkSubmit", JAVA: load.PRODUCER_CLASS, READY: "bare_frames.py"}
"""What the command line of a way's process contains; the other ways' is ``bare_producer.py``."""
screen = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    """What is sent."""

    label: str
    size: int | None
    """Bytes of each message; None means mixed."""
    topic: str = "one"
    full: bool = False
    """With key, attributes, type and time."""
    ways: tuple[str, ...] = (*BARE, SPARK)

    def messages(self, of_100_bytes: int) -> int:
        """Return how many are sent: a quarter of them when they are long."""
        return of_100_bytes if self.size == SMALL.size else of_100_bytes // 4


SMALL: Final = Case("100 B", 100, ways=(*BARE, SPARK, JAVA, READY))
LONG: Final = Case("1 KiB", 1024, ways=(*BARE, SPARK, JAVA, READY))
MEAN: Final = Case(f"{MEAN_OF_MIXED} B", MEAN_OF_MIXED)
MIXED: Final = Case("mixed sizes, 100 partitions", None, topic="hundred")
FULL: Final = Case("100 B, all columns", 100, full=True)
CASES: Final = (SMALL, LONG, MEAN, MIXED, FULL)


@dataclass(frozen=True)
class Told:
    """What a client says about its messages."""

    accepted: int
    refused: int = 0
    unanswered: int = 0
    """Attempts of which nobody knows whether they stored a message."""


@dataclass(frozen=True)
class Figures:
    """What one run gave."""

    rate: float
    """Stored messages per second."""
    cpu_us: dict[str, float]
    """Processor time per stored message, by part of the client."""
    refused: float
    """Refused messages per message sent."""
    seconds: float
    """The whole run, its beginning and its end included."""

    @property
    def all_cpu_us(self) -> float:
        """The processor time of all parts."""
        return sum(self.cpu_us.values())


class Bench:
    """The servers and the Spark session that all runs share."""

    def __init__(self, java: RealTubeMQ, spark: SparkSession) -> None:
        self._java = java
        self._spark = spark

    def run(self, case: Case, way: str, count: int) -> Figures:
        """Send messages and check that none is lost."""
        works: dict[str, Callable[[], Told]] = {
            "send": lambda: self._bare(case, count, "bare_producer.py", "--way", "send"),
            "send_batch": lambda: self._bare(case, count, "bare_producer.py", "--way", "send_batch"),
            READY: lambda: self._bare(case, count, "bare_frames.py"),
            SPARK: lambda: self._spark_write(case, count),
            JAVA: lambda: self._java_produce(case, count),
        }
        before = self._java.message_count(case.topic)
        began = time.perf_counter()
        # The work in this thread: Spark finds Python data sources only in the one that made the session.
        told, looks = watched(
            works[way],
            lambda: self._java.message_count(case.topic),
            lambda: cpu_seconds(way),
        )
        seconds = time.perf_counter() - began
        check(told, count, self._java.message_count(case.topic) - before)
        first, last = steady(looks, before)
        stored = max(1, last.count - first.count)
        return Figures(
            stored / max(last.at - first.at, 1e-6),
            {name: (spent - first.cpu_s.get(name, 0.0)) / stored * 1e6 for name, spent in last.cpu_s.items()},
            told.refused / count,
            seconds,
        )

    def _bare(self, case: Case, count: int, program: str, *arguments: str) -> Told:
        path = Path(__file__).with_name(program)
        command = [sys.executable, str(path), "--master", self._java.master, "--topic", case.topic]
        command += [*arguments, "--count", str(count), *["--full"] * case.full]
        command += [] if case.size is None else ["--size", str(case.size)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        return Told(found["accepted"], unanswered=found["unanswered"])

    def _spark_write(self, case: Case, count: int) -> Told:
        options = {"tubemq.master.servers": self._java.master, "topic": case.topic}
        frame = rows(self._spark, case, count)
        frame.write.format("tubemq").options(**options).mode("append").save()
        return Told(count)

    def _java_produce(self, case: Case, count: int) -> Told:
        assert case.size is not None, "the generator knows one size only"
        found = load.produce_ahead(self._java.master, case.topic, count, size=case.size)
        return Told(found.accepted, found.refused, found.unanswered)


def rows(spark: SparkSession, case: Case, count: int) -> DataFrame:
    """Return the messages of a case in one partition, made in the JVM as cheaply as it can."""
    least, greatest = MIXED_BYTES
    length = f"{least} + id * 7919 % {greatest - least + 1}" if case.size is None else str(case.size)
    # Texts would be padded, or cut, letter by letter.
    numbered = "cast(lpad(cast(id as string), 12, '0') as binary)"
    rest = f"cast('{'x' * (case.size or greatest)}' as binary)"
    value = f"substring(concat({numbered}, {rest}), 1, cast({length} as int)) as value"
    kind = f"cast(id % {KINDS} as string)"
    optional = [
        f"cast(concat('key ', id % {KEYS}) as binary) as key",
        f"map('kind', concat('v', {kind}), 'source', 'bench') as attributes",
        f"concat('type', {kind}) as messageType",
        "timestamp'2026-01-01 00:00:00' as timestamp",
    ]
    return spark.range(0, count, numPartitions=1).selectExpr(value, *optional * case.full)


def cpu_seconds(way: str) -> dict[str, float]:
    """Return the processor time so far of a client's processes, by part."""
    program = PROGRAMS.get(way, "bare_producer.py")
    if way != SPARK:
        return cpu_of_child(program)
    for process in psutil.Process().children():
        try:
            if program in " ".join(process.cmdline()):
                workers = process.children(recursive=True)
                return {"JVM": of_process(process), "Python": sum(map(of_process, workers))}
        except psutil.Error:
            continue
    return {}


def check(told: Told, sent: int, stored: int) -> None:
    """Raise when a message is missing, or there are more than a client can explain."""
    if not told.accepted <= stored <= told.accepted + told.unanswered:
        raise RuntimeError(f"{sent} sent, {told}, but {stored} stored")
    if told.accepted + told.refused + told.unanswered < sent:
        raise RuntimeError(f"{sent} sent, but the client accounts for fewer: {told}")


Results = dict[tuple[str, str], list[Figures]]


def measure(bench: Bench, messages: int, rounds: int) -> Results:
    """Run every way of every case in turns; the first round of ours warms up and is not counted."""
    results: Results = {}
    for number in range(rounds + 1):
        for case in CASES:
            for way in case.ways:
                if number == 0 and way == JAVA:
                    continue
                found = bench.run(case, way, case.messages(messages))
                what = f"round {number} of {rounds}" if number else "warming up"
                screen.print(
                    f"{what}: {case.label}, {way}: {found.rate:,.0f}/s, {found.all_cpu_us:.1f} us, "
                    f"{found.seconds:.1f} s"
                )
                if number:
                    results.setdefault((case.label, way), []).append(found)
    return results


def ratios(results: Results) -> list[dict[str, object]]:
    """Return the ratios that say something, each with its spread."""
    lines = []
    for case in (SMALL, LONG):
        lines += [
            ratio(results, what, (case.label, way), (case.label, JAVA))
            for way in (*BARE, SPARK, READY)
            for what in ("rate", "all_cpu_us")
        ]
    lines += [
        ratio(results, "rate", (case.label, SPARK), (case.label, way)) for case in CASES for way in BARE
    ]
    for case, usual in ((MIXED, MEAN), (FULL, SMALL)):
        lines += [ratio(results, "rate", (case.label, way), (usual.label, way)) for way in (*BARE, SPARK)]
    return lines


def ratio(results: Results, what: str, ours: tuple[str, str], theirs: tuple[str, str]) -> dict[str, object]:
    """Return the ratio of two ways, round by round."""
    pairs = zip(results[ours], results[theirs], strict=True)
    found = sorted(getattr(mine, what) / getattr(other, what) for mine, other in pairs)
    return {
        "what": {"rate": "messages/s", "all_cpu_us": "CPU per message"}[what],
        "of": ", ".join(ours),
        "to": ", ".join(theirs),
        "ratio": statistics.median(found),
        "least": found[0],
        "greatest": found[-1],
    }


def show(results: Results, lines: Sequence[Mapping[str, object]]) -> None:
    """Draw the tables."""
    table = Table("messages", "way", "messages/s", "refused", "CPU us per message", "whole run, s")
    for (label, way), found in results.items():
        parts = {
            name: statistics.median(one.cpu_us.get(name, 0.0) for one in found) for name in found[0].cpu_us
        }
        table.add_row(
            label,
            way,
            f"{statistics.median(one.rate for one in found):,.0f}",
            f"{statistics.median(one.refused for one in found):.1%}",
            ", ".join(f"{name} {spent:.2f}" for name, spent in parts.items()),
            f"{statistics.median(one.seconds for one in found):.1f}",
        )
    screen.print(table)
    table = Table("ratio", "of", "to", "median", "least", "greatest")
    for line in lines:
        numbers = [f"{line[key]:.2f}" for key in ("ratio", "least", "greatest")]
        table.add_row(str(line["what"]), str(line["of"]), str(line["to"]), *numbers)
    screen.print(table)


def main() -> None:
    """Start the servers, measure in turns, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000, help="of 100 B; a quarter of longer ones")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    screen.print(f"our twin: {'Python' if speedups.compiled is None else 'compiled'}")
    # One core for the task; the JVM's own threads and the servers have the rest.
    with (
        tempfile.TemporaryDirectory() as name,
        RealTubeMQ(TOPICS, settings=config_files.AS_SHIPPED) as java,
        session(Path(name), "local[1]") as spark,
    ):
        results = measure(Bench(java, spark), arguments.messages, arguments.rounds)
    lines = ratios(results)
    show(results, lines)
    figures = [
        {"messages": label, "way": way, "rounds": [asdict(one) for one in found]}
        for (label, way), found in results.items()
    ]
    sys.stdout.write(json.dumps({"figures": figures, "ratios": lines}) + "\n")


if __name__ == "__main__":
    main()
