"""Our producer and ``df.write`` beside a bare loop and TubeMQ's load generator, in turns on one Java broker.

    make bench-produce
    make bench-produce ARGS="--messages 1000000 --rounds 5"
    make bench-produce ARGS="--cases '100 B' --ways send send_batch df.write 'ready frames'"
    TUBEMQ_SPARK_PURE=1 make bench-produce              # with the Python twin

Needs Maven. The generator (``CliProducer``) sends from one client and does not wait for answers; every topic
has the memory cache that brokers give it as shipped, so some of the generator's messages are refused.

- Messages per second are those the broker has stored, looked at while a run goes on, without its beginning
  and its end. Processor time is that of the client's process tree, and of the broker, between the same looks.
- *Ready frames* is a program that sends frames it has encoded before over one connection and only counts the
  answers: how fast the broker takes messages.
- After each run the broker must have stored what was accepted; more only where a client says that a message
  may be stored twice.

All ways run once per round, every other round backwards. Each figure is the median of all rounds, each ratio
the median of the rounds' ratios, with the least and the greatest one. JSON is the last line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bare_producer import KEYS, KINDS, MIXED_BYTES
from benchmarks.meter import child_with, cpu_of, cpu_of_child, steady, watched
from benchmarks.spark import session
from benchmarks.turns import Figures, Key, Line, Section, in_turns, screen
from integration_tests.real import load, servers
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.servers import BROKER_CLASS
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
BARE: Final = {
    "send": ("bare_producer.py", "--way", "send"),
    "send_batch": ("bare_producer.py", "--way", "send_batch"),
    "ready frames": ("bare_frames.py",),
}
"""The programs of ways that are a process of their own."""
SEND, BATCH, READY = BARE
OURS: Final = (SEND, BATCH, SPARK)
RATE: Final = "messages/s"
CPU: Final = "client's CPU us per message"
BROKER: Final = "broker's CPU us per message"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Case:
    """What is sent."""

    label: str
    size: int | None
    """Bytes of each message; None means mixed."""
    topic: str = "one"
    full: bool = False
    """With key, attributes, type and time."""
    ways: tuple[str, ...] = OURS

    def messages(self, of_100_bytes: int) -> int:
        """Return how many are sent: a quarter of them when they are long."""
        return of_100_bytes if self.size == SMALL.size else of_100_bytes // 4


SMALL: Final = Case("100 B", 100, ways=(*OURS, READY, JAVA))
LONG: Final = Case("1 KiB", 1024, ways=SMALL.ways)
MEAN: Final = Case(f"{MEAN_OF_MIXED} B", MEAN_OF_MIXED)
MIXED: Final = Case("mixed sizes, 100 partitions", None, topic="hundred")
FULL: Final = Case("100 B, all columns", 100, full=True)
USUAL: Final = ((MIXED, MEAN), (FULL, SMALL))
"""Which cases are compared with which."""
CASES: Final = {case.label: case for case in (SMALL, LONG, MEAN, MIXED, FULL)}


@dataclass(frozen=True)
class Told:
    """What a client says about its messages."""

    accepted: int
    refused: int = 0
    unanswered: int = 0
    """Attempts without an answer that says whether they stored a message."""


class Bench:
    """The servers and the Spark session that all runs share."""

    def __init__(self, java: RealTubeMQ, spark: SparkSession) -> None:
        self._java = java
        self._spark = spark
        self._broker = child_with(BROKER_CLASS)

    def run(self, case: Case, way: str, messages: int) -> Figures:
        """Send messages and check that none is lost."""
        works: dict[str, Callable[[], Told]] = {
            SPARK: lambda: self._write(case, count),
            JAVA: lambda: self._java_produce(case, count),
        }
        count = case.messages(messages)
        before = self._java.message_count(case.topic)
        # The work in this thread: Spark finds Python data sources only in the one that made the session.
        told, looks = watched(
            works.get(way, lambda: self._bare(case, count, *BARE[way])),
            lambda: self._java.message_count(case.topic),
            lambda: self._processor_seconds(way),
        )
        check(told, count, self._java.message_count(case.topic) - before)
        first, last = steady(looks, before)
        stored = max(1, last.count - first.count)
        spent = {name: (last.cpu_s[name] - first.cpu_s.get(name, 0.0)) / stored * 1e6 for name in last.cpu_s}
        return {
            RATE: stored / max(last.at - first.at, 1e-6),
            CPU: sum(spent.values()) - spent[BROKER],
            **spent,
            REFUSED: told.refused / count,
        }

    def _processor_seconds(self, way: str) -> dict[str, float]:
        """Return the processor time so far of a client, by part, and the broker's; {} without a client."""
        if way == SPARK:
            jvm = child_with("SparkSubmit")
            client = {"JVM": cpu_of(jvm), "Python": sum(map(cpu_of, jvm.children(recursive=True)))}
        else:
            client = cpu_of_child(load.PRODUCER_CLASS if way == JAVA else BARE[way][0])
        return client and client | {BROKER: cpu_of(self._broker)}

    def _bare(self, case: Case, count: int, program: str, *arguments: str) -> Told:
        path = Path(__file__).with_name(program)
        command = [sys.executable, str(path), "--master", self._java.master, "--topic", case.topic]
        command += [*arguments, "--count", str(count), *["--full"] * case.full]
        command += [] if case.size is None else ["--size", str(case.size)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        return Told(found["accepted"], found.get("refused", 0), found["unanswered"])

    def _write(self, case: Case, count: int) -> Told:
        options = {"tubemq.master.servers": self._java.master, "topic": case.topic}
        rows(self._spark, case, count).write.format("tubemq").options(**options).mode("append").save()
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


def check(told: Told, sent: int, stored: int) -> None:
    """Raise when a message is missing, or there are more than a client can explain."""
    if not told.accepted <= stored <= told.accepted + told.unanswered:
        raise RuntimeError(f"{sent} sent, {told}, but {stored} stored")
    if told.accepted + told.refused + told.unanswered < sent:
        raise RuntimeError(f"{sent} sent, but the client accounts for fewer: {told}")


Results = dict[Key, list[Figures]]


def tables(results: Results) -> list[Section]:
    """Return what each way of each case gave, and the ratios that say something."""
    sections = []
    for label in CASES:
        found = {way: rounds for (case, way), rounds in results.items() if case == label}
        names = dict.fromkeys(name for rounds in found.values() for name in rounds[0])
        lines = [
            Line(
                name,
                "",
                {way: [one[name] for one in rounds] for way, rounds in found.items() if name in rounds[0]},
            )
            for name in names
        ]
        if found:
            sections.append(Section(label, list(found), lines))
    pairs = [((label, way), (label, READY)) for label in (SMALL.label, LONG.label) for way in OURS]
    pairs += [((label, SPARK), (label, BATCH)) for label in CASES]
    pairs += [
        ((one.label, way), (usual.label, way))
        for one, usual in ((MIXED, MEAN), (FULL, SMALL))
        for way in OURS
    ]
    pairs += [((label, way), (label, JAVA)) for label in (SMALL.label, LONG.label) for way in OURS]
    lines = [
        Line(
            f"{', '.join(ours)} to {', '.join(theirs)}",
            name,
            {"of": [one[name] for one in results[ours]], "to": [one[name] for one in results[theirs]]},
        )
        for ours, theirs in pairs
        if ours in results and theirs in results
        for name in (RATE, CPU)
    ]
    return [*sections, Section("ratios", ("of", "to"), lines)]


def main() -> None:
    """Start the servers, measure in turns, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000, help="of 100 B; a quarter of longer ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", choices=SMALL.ways, default=list(SMALL.ways))
    arguments = parser.parse_args()
    screen.print(f"our twin: {'Python' if speedups.compiled is None else 'compiled'}")
    # One core for the task; the JVM's own threads and the servers have the rest.
    with (
        tempfile.TemporaryDirectory() as name,
        RealTubeMQ(TOPICS, settings=servers.AS_SHIPPED) as java,
        session(Path(name), "local[1]") as spark,
    ):
        bench = Bench(java, spark)
        ways: dict[Key, Callable[[], Figures]] = {
            (label, way): partial(bench.run, CASES[label], way, arguments.messages)
            for label in arguments.cases
            for way in CASES[label].ways
            if way in arguments.ways
        }
        results = in_turns(ways, warm_ups=1, rounds=arguments.rounds, title="producing")
    sections = tables(results)
    for section in sections:
        section.show(screen)
    sys.stdout.write(json.dumps([section.to_json() for section in sections]) + "\n")


if __name__ == "__main__":
    main()
