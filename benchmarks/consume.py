"""Our group consumer beside TubeMQ's own load consumer, in turns on one Java broker.

    make bench-consume
    make bench-consume ARGS="--rows 1000000 --rounds 5"
    TUBEMQ_SPARK_PURE=1 make bench-consume              # with the Python twin

Needs Maven. The load consumer (``CliConsumer``) pulls batches with as many threads as there are processors,
confirms each batch at its broker and counts its messages without a look at them; ours makes a record of each
message and looks at its value, and confirms each batch at its broker too.

- ``messages`` is ``for message in consumer.messages()``, ``batches`` is ``for batch in consumer``, both in
  one thread; ``threads`` are two that share one consumer; ``asyncio`` is one coroutine that takes batches,
  ``coroutines`` are two that share one consumer.
- Every run reads all messages of a topic in a group of its own, alone in it.
- Messages per second are those that the group has confirmed, looked at while a run goes on, without its
  beginning and its end. Processor time is that of the client's process between the same two looks.
- After each run the client must have had every message, and ours none of them twice.

Each figure is the median of all rounds, each ratio the median of the rounds' ratios of ours to
``CliConsumer``'s, with the least and the greatest one. JSON is the last line.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bare_consumer import COROUTINES, WAYS
from benchmarks.meter import cpu_of_child, steady, watched
from benchmarks.turns import Figures, Key, Line, Section, in_turns, screen
from integration_tests.real import load
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.servers import AS_SHIPPED
from tubemq_spark.model import INDEX_ENTRY_BYTES, PARTITIONS_PER_STORE
from tubemq_spark.protocol import speedups

JAVA: Final = "CliConsumer"
OURS: Final = "bare_consumer.py"
OUR_WAYS: Final = (*WAYS, *COROUTINES)
STORES: Final = 4
"""Each with one partition: there the position of a group tells how many messages it has confirmed."""
SIZES: Final = {"100 B": 100, "1 KiB": 1024}
TOPICS: Final = {"100 B": "short", "1 KiB": "long"}
PER_LONG: Final = 4
"""Of short messages there are so many for each long one."""
RATE: Final = "messages/s"
CPU: Final = "client's CPU"
UNITS: Final = {RATE: "1/s", CPU: "us per message"}


class Bench:
    """A running Java TubeMQ with its messages."""

    def __init__(self, java: RealTubeMQ, rows: int) -> None:
        """Fill the topics."""
        self._java = java
        self._counts = {"100 B": rows, "1 KiB": rows // PER_LONG}
        self._groups = itertools.count(1)
        for label, count in self._counts.items():
            self._produce(TOPICS[label], SIZES[label], count)

    def run(self, label: str, way: str) -> Figures:
        """Read a topic to its end and check that nothing is missing."""
        group = f"bench_{next(self._groups)}"
        consume = self._consume_by_java if way == JAVA else partial(self._consume, way)
        program = load.CONSUMER_CLASS if way == JAVA else OURS
        received, looks = watched(
            lambda: consume(group, label),
            lambda: self._confirmed(TOPICS[label], group),
            lambda: cpu_of_child(program),
        )
        count = self._counts[label]
        if received < count or (way != JAVA and received > count):
            raise RuntimeError(f"{way} got {received} messages, and there are {count}")
        first, last = steady(looks, 0)
        confirmed = max(1, last.count - first.count)
        spent = sum(last.cpu_s.values()) - sum(first.cpu_s.values())
        return {RATE: confirmed / max(last.at - first.at, 1e-6), CPU: spent / confirmed * 1e6}

    def _produce(self, topic: str, size: int, count: int) -> None:
        program = Path(__file__).with_name("bare_producer.py")
        command = [sys.executable, str(program), "--master", self._java.master, "--topic", topic]
        command += ["--way", "send_batch", "--count", str(count), "--size", str(size)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if (stored := self._java.message_count(topic)) != count:
            raise RuntimeError(f"{count} messages were sent to topic {topic}, but {stored} are stored")

    def _consume(self, way: str, group: str, label: str) -> int:
        program = Path(__file__).with_name(OURS)
        command = [sys.executable, str(program), "--master", self._java.master, "--topic", TOPICS[label]]
        command += ["--group", group, "--way", way, "--count", str(self._counts[label])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        told = json.loads(done.stdout)
        if told["bytes"] != told["messages"] * SIZES[label]:
            raise RuntimeError(f"{way} got {told}, of messages of {SIZES[label]} bytes")
        return int(told["messages"])

    def _consume_by_java(self, group: str, label: str) -> int:
        return load.consume(self._java.master, TOPICS[label], group, self._counts[label])

    def _confirmed(self, topic: str, group: str) -> int:
        """Return how many messages a group has confirmed; one without a position begins at 0 by that."""
        (broker,) = self._java.brokers.values()
        places = range(0, STORES * PARTITIONS_PER_STORE, PARTITIONS_PER_STORE)
        answers = (broker.admin.group_offset(topic, group, place, real_offset=True) for place in places)
        return sum(int(answer["zkOffset"]) for answer in answers) // INDEX_ENTRY_BYTES


def sections(found: Mapping[Key, list[Figures]]) -> list[Section]:
    """Return a table per size and way, with the ratios to the load consumer."""
    return [
        Section(
            f"{label}, {way}",
            (way, JAVA),
            [
                Line(what, unit, {name: [one[what] for one in found[label, name]] for name in (way, JAVA)})
                for what, unit in UNITS.items()
            ],
        )
        for label, way in found
        if way != JAVA
    ]


def main() -> None:
    """Start the servers, measure in turns, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="of 100 B; a quarter of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=OUR_WAYS, default=OUR_WAYS)
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds that do not count")
    arguments = parser.parse_args()
    screen.print(f"our twin: {'Python' if speedups.compiled is None else 'compiled'}")
    topics = dict.fromkeys(TOPICS.values(), TopicSpec(STORES, 1, properties=load.PATIENT))
    with RealTubeMQ(topics, settings=AS_SHIPPED) as java:
        bench = Bench(java, arguments.rows)
        work: dict[Key, Callable[[], Figures]] = {
            (label, way): partial(bench.run, label, way) for label in SIZES for way in (*arguments.ways, JAVA)
        }
        found = in_turns(work, warm_ups=arguments.warm_ups, rounds=arguments.rounds, title="consuming")
    tables = sections(found)
    for table in tables:
        table.show(screen)
    sys.stdout.write(json.dumps([table.to_json() for table in tables]) + "\n")


if __name__ == "__main__":
    main()
