"""What a stream's questions cost the driver: CPU of each, on a scripted cluster of many partitions.

No server and no Spark: only what our side of the driver does with the answers.
``python benchmarks/planning.py --partitions 10000 --brokers 100`` prints a table. With ``--idle-stores 400``
the table is about an idle stream on an embedded server in another process: requests per store and second, and
the share of a core that the driver takes.
"""

import argparse
import collections
import contextlib
import functools
import json
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from rich.console import Console
from rich.table import Table

from tubemq_spark.model import Endpoint, OffsetBounds, StoreBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.net.connection import Call, Connection
from tubemq_spark.options import OptionSet
from tubemq_spark.source import planner
from tubemq_spark.source.stream_driver import StreamDriver

TOPIC = "big"


class ScriptedCluster:
    """Answers at once: so many partitions, in stores of so many, dealt out to brokers."""

    def __init__(self, partitions: int, brokers: int, partitions_per_store: int) -> None:
        self.endpoints = {number: Endpoint(f"10.0.0.{number}", 8123) for number in range(1, brokers + 1)}
        stores = [
            (1 + number % brokers, number // brokers) for number in range(partitions // partitions_per_store)
        ]
        self.partitions = {
            TopicPartition(TOPIC, broker_id, store * 10_000 + index): self.endpoints[broker_id]
            for broker_id, store in sorted(stores)
            for index in range(partitions_per_store)
        }
        self.rows = 1_000
        self.grow()

    def layout(self, topics: Iterable[str], *, missing_ok: bool = False) -> TopicsLayout:  # noqa: ARG002
        return TopicsLayout(self.partitions, 1)

    def bounds(
        self,
        layout: TopicsLayout,
        stores: Collection[StoreId] | None = None,
        *,
        timeout_ms: int | None = None,  # noqa: ARG002
    ) -> StoreBounds:
        assert stores is None or len(stores) == len(layout.stores)
        return self.answer

    def first_readable(
        self,
        layout: TopicsLayout,  # noqa: ARG002
        begins: Mapping[TopicPartition, OffsetBounds],
    ) -> dict[TopicPartition, int]:
        return {partition: held.earliest for partition, held in begins.items()}

    def grow(self) -> None:
        """Give every store ten rows more."""
        self.rows += 10
        held = OffsetBounds(0, 28 * self.rows)
        self.answer = StoreBounds(dict.fromkeys((one.store_id for one in self.partitions), held), {})


def cpu_ms(ask: Callable[[], object]) -> float:
    begin = time.process_time()
    ask()
    return (time.process_time() - begin) * 1000


def questions(partitions: int, brokers: int, partitions_per_store: int, rounds: int) -> dict[str, float]:
    """Return the median CPU of each question in milliseconds, and the sizes of what travels in bytes."""
    cluster = ScriptedCluster(partitions, brokers, partitions_per_store)
    planner.open_cluster = lambda _: cluster  # type: ignore[attr-defined]
    options = {"tubemq.master.servers": "master:8715", "subscribe": TOPIC, "startingOffsets": "earliest"}
    driver = StreamDriver(OptionSet.parse(options).for_stream_read(), ["value"])
    took: dict[str, list[float]] = collections.defaultdict(list)
    end = driver.latest_offset({"v": 1, "start": "earliest"}, None)
    tasks: list[object] = []
    for _ in range(rounds):
        start = json.loads(json.dumps(end))
        ask = functools.partial(driver.latest_offset, start, None)
        took["latestOffset, answer still good"].append(cpu_ms(ask))
        time.sleep(2.05)
        took["latestOffset, looked and nothing new"].append(cpu_ms(ask))
        took["reportLatestOffset, nothing new"].append(cpu_ms(driver.report))
        cluster.grow()
        time.sleep(2.05)

        def plan(start: dict[str, object] = start) -> None:
            nonlocal end, tasks
            end = driver.latest_offset(start, None)
            tasks = driver.partitions(start, json.loads(json.dumps(end)))

        took["micro-batch of all: latestOffset and partitions"].append(cpu_ms(plan))
        took["reportLatestOffset, new"].append(cpu_ms(driver.report))
        took["offset to JSON"].append(cpu_ms(lambda: json.dumps(end)))
        took["tasks to pickles"].append(cpu_ms(lambda: [pickle.dumps(task) for task in tasks]))
    figures = {name: statistics.median(values) for name, values in took.items()}
    figures["offset JSON, bytes"] = len(json.dumps(end))
    figures["tasks"] = len(tasks)
    figures["pickles of all tasks, bytes"] = sum(len(pickle.dumps(task)) for task in tasks)
    return figures


_SERVER = """
import sys
from tubemq_spark.embedded.server import EmbeddedTubeMQ
with EmbeddedTubeMQ(topics={sys.argv[1]: (int(sys.argv[2]), 1)}) as server:
    print(server.master, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def server_process(stores: int) -> Iterator[str]:
    """Run an embedded server in a process of its own; give its master's address."""
    command = [sys.executable, "-c", _SERVER, TOPIC, str(stores)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def idle(stores: int, seconds: float) -> dict[str, float]:
    """Return what an idle stream of so many stores costs the driver, asked as often as Spark asks."""
    requests = 0
    start = Connection.start

    def counted(*arguments: object, **more: object) -> Call:
        nonlocal requests
        requests += 1
        return start(*arguments, **more)  # type: ignore[arg-type]

    Connection.start = counted  # type: ignore[method-assign, assignment]
    with server_process(stores) as master:
        options = {"tubemq.master.servers": master, "subscribe": TOPIC}
        driver = StreamDriver(OptionSet.parse(options).for_stream_read(), ["value"])
        end = driver.latest_offset({"v": 1, "start": "latest"}, None)

        def ask_for(duration: float) -> None:
            deadline = time.monotonic() + duration
            while time.monotonic() < deadline:
                driver.latest_offset(end, None)
                time.sleep(0.015)

        ask_for(25)  # until it asks as seldom as it will
        requests = 0
        cpu, began = time.process_time(), time.monotonic()
        ask_for(seconds)
        cpu, took = time.process_time() - cpu, time.monotonic() - began
    return {"requests per store and second": requests / stores / took, "share of a core": cpu / took}


def show(title: str, figures: Mapping[str, float]) -> None:
    table = Table(title=title)
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}" if value < 1000 else f"{value:,.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions-per-store", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-stores", type=int, default=0)
    parser.add_argument("--idle-seconds", type=float, default=20)
    arguments = parser.parse_args()
    if arguments.idle_stores:
        figures = idle(arguments.idle_stores, arguments.idle_seconds)
        show(f"an idle stream of {arguments.idle_stores} stores", figures)
        return
    shape = (arguments.partitions, arguments.brokers, arguments.partitions_per_store)
    figures = questions(*shape, arguments.rounds)
    show(f"{shape[0]} partitions on {shape[1]} brokers, {shape[2]} per store; CPU in ms", figures)


if __name__ == "__main__":
    main()
