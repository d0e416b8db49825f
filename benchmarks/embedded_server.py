"""What the embedded server takes and gives: messages and MB a second, memory, its start after a kill.

    make bench-embedded-server
    make bench-embedded-server ARGS="--server embedded real"   # beside the Java TubeMQ (needs Maven)

The server is a process of its own; one producer or one reader in this process uses it. Best of
``--repeat`` runs; JSON is the last line.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.bare_fetch import body_of, fetching, only_partition
from integration_tests.real import load
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.rig.produce import client_config
from integration_tests.rig.server_process import ServerProcess
from testkit.connections import opened_connections
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.reader.blocking import read_in_thread
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetRange, RangeRequest, Route
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SEND_SIZES: Final = {"100 B": 100, "1 KiB": KIB}
READ_SIZES: Final = {"1 KiB": KIB, "10 KiB": 10 * KIB, "200 KiB": 200 * KIB}
READ_BYTES: Final = 256 * MIB
RECOVERY_KILLS: Final = 5
POLL_S: Final = 0.02
JAVA_PROPERTIES: Final = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 200}
"""Room in the Java broker's memory, so that it refuses nothing."""

Figures = dict[str, float]
screen = Console(stderr=True)


class Bench:
    """One server of either kind, used by one client."""

    def __init__(self, master: str, process: ServerProcess | None) -> None:
        """Use a running server; ``process`` is where its figures can be read, of the embedded one only."""
        self.config = client_config(master, "bench")
        self.process = process

    def send(self, topic: str, size: int, count: int) -> float:
        """Send equal messages and return how many the server accepted in a second."""
        value = os.urandom(size)
        with TubeMQClient(self.config) as client, client.producer() as producer:
            producer.send(topic, value)
            producer.flush()
            start = time.perf_counter()
            for _ in range(count):
                producer.send(topic, value)
            producer.flush()
            return count / (time.perf_counter() - start)

    def send_by_java(self, topic: str, size: int, count: int) -> float:
        """Send with the distribution's load generator; return how many the server accepted in a second.

        Its 32 clients each wait for an answer before they send the next message.
        """
        cluster = open_cluster(ClusterConfig(self.config))
        layout = cluster.layout([topic])

        def stored() -> int:
            return (
                sum(bounds.latest for bounds in cluster.bounds(layout).complete().values())
                // INDEX_ENTRY_BYTES
            )

        before = stored()
        master = str(self.config.masters[0])
        sender = threading.Thread(target=load.produce, args=(master, topic, count), kwargs={"size": size})
        sender.start()
        while (first := stored()) == before and sender.is_alive():
            time.sleep(POLL_S)
        began = time.perf_counter()
        while (now := stored()) < before + count and sender.is_alive():
            time.sleep(POLL_S)
        seconds = time.perf_counter() - began
        sender.join()
        return (now - first) / seconds

    @contextlib.contextmanager
    def cpu(self) -> Iterator[list[float]]:
        """Put the processor time that the server uses into a list, in seconds; 0 where it cannot be read."""
        used: list[float] = []
        before = self.process.cpu_s if self.process else 0.0
        yield used
        used.append(self.process.cpu_s - before if self.process else 0.0)

    def fetch_all(self, topic: str, size: int) -> float:
        """Fetch and commit in turn; return MB of values a second."""
        only = only_partition(self.config, topic)

        async def fetch() -> float:
            async with fetching(self.config, only) as (start, commit):
                position, began = 0, time.perf_counter()
                while position < only.end:
                    await body_of(start())
                    position = await commit()
                return time.perf_counter() - began

        return only.end // INDEX_ENTRY_BYTES * size / asyncio.run(fetch()) / 1e6

    def fetch_ahead(self, topic: str, size: int) -> float:
        """Keep the next fetch under way, which confirms the one before; return MB of values a second.

        A connection's requests are served in turn here; the Java broker may serve them in another order.
        """
        only = only_partition(self.config, topic)

        async def fetch() -> float:
            async with fetching(self.config, only) as (start, _):
                began = time.perf_counter()
                current, following = start(), start()
                while len(await body_of(current)) > size:  # the answer at the end carries no message
                    current, following = following, start()
                following.forget()
                return time.perf_counter() - began

        return only.end // INDEX_ENTRY_BYTES * size / asyncio.run(fetch()) / 1e6

    def read_all(self, topic: str, size: int) -> float:
        """Read as the source does, checks and all; return MB of values a second."""
        only = only_partition(self.config, topic)
        asked = OffsetRange(only.partition, 0, only.end)
        work = RangeRequest(asked, Route(only.endpoint, only.visit_token), own_store=True)
        with opened_connections(self.config.connect_timeout_ms) as connections:
            start = time.perf_counter()
            read = read_in_thread(read_range(self.config, connections, work), work.range, fail_on_loss)
            rows = sum(len(batch.columns) for batch in read)
            return rows * size / (time.perf_counter() - start) / 1e6


def measure(bench: Bench, rows: int, repeat: int, *, java: bool) -> Figures:
    """Return accepted messages a second and MB a second to one reader; ``java``: of a Java producer, too."""
    figures: Figures = {}
    for label, size in SEND_SIZES.items():
        with bench.cpu() as used:
            rates = [bench.send(f"send_{size}", size, rows) for _ in range(repeat)]
        figures[f"sent, {label}: messages/s"] = max(rates)
        if bench.process:
            figures[f"sent, {label}: server's CPU us/message"] = used[0] / (rows * repeat) * 1e6
    if java:
        with bench.cpu() as used:
            figures["sent by Java, 100 B: messages/s"] = bench.send_by_java("send_100", 100, rows)
        if bench.process:
            figures["sent by Java, 100 B: server's CPU us/message"] = used[0] / rows * 1e6
    for label, size in READ_SIZES.items():
        topic = f"read_{size}"
        bench.send(topic, size, READ_BYTES // size)
        readers = {"fetched": bench.fetch_all, "read and checked": bench.read_all}
        if bench.process:
            readers["fetched ahead"] = bench.fetch_ahead
        for name, read in readers.items():
            with bench.cpu() as used:
                rates = [read(topic, size) for _ in range(repeat)]
            figures[f"{name}, {label}: MB/s"] = max(rates)
            if bench.process:
                figures[f"{name}, {label}: MB/CPU s of the server"] = READ_BYTES * repeat / used[0] / 1e6
    return figures


def topics() -> dict[str, tuple[int, int]]:
    """Return the topics that ``measure`` uses; all have one store of one partition."""
    names = [f"send_{size}" for size in SEND_SIZES.values()] + [
        f"read_{size}" for size in READ_SIZES.values()
    ]
    return dict.fromkeys(names, (1, 1))


def measure_memory(folder: Path) -> Figures:
    """Write 2 GiB through a fresh server and read them; return its peak memory in MB."""
    with ServerProcess(folder / "memory", {"big": (1, 1)}, folder / "log") as process:
        idle = process.peak_mb
        bench = Bench(process.master, process)
        bench.send("big", 64 * KIB, 2 * GIB // (64 * KIB))
        written = process.peak_mb
        bench.fetch_all("big", 64 * KIB)
        return {
            "memory when idle: MB": idle,
            "peak memory after 2 GiB written: MB": written,
            "peak memory after they were read: MB": process.peak_mb,
        }


def measure_recovery(folder: Path) -> Figures:
    """Write 1 GiB, then kill the server under load; return how long it takes to be back."""
    data, log = folder / "killed", folder / "log"
    with ServerProcess(folder / "empty", {"big": (1, 1)}, log) as process:
        usual_s = process.start_s
    with ServerProcess(data, {"big": (1, 1)}, log) as process:
        Bench(process.master, process).send("big", 64 * KIB, GIB // (64 * KIB))
    seconds = []
    for _ in range(RECOVERY_KILLS):
        with ServerProcess(data, {}, log) as process:
            seconds.append(process.start_s - usual_s)
            sender = threading.Thread(target=_send_until_killed, args=(process.master,))
            sender.start()
            time.sleep(0.5 + random.random())
            process.kill()
            sender.join()
    return {
        "start of an empty server: s": usual_s,
        "more for 1 GiB after a kill, median: s": sorted(seconds)[len(seconds) // 2],
        "more for 1 GiB after a kill, longest: s": max(seconds),
    }


def _send_until_killed(master: str) -> None:
    values = [os.urandom(size) for size in (100, KIB, 10 * KIB, 200 * KIB)]
    impatient = dataclasses.replace(client_config(master, "load"), delivery_timeout_ms=3_000)
    with (
        contextlib.suppress(TubeMQError),
        TubeMQClient(impatient) as client,
        client.producer() as producer,
    ):
        while True:
            producer.send("big", random.choice(values))


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[Bench]:
    """Start a server of a kind with the topics of ``measure``."""
    if kind == "embedded":
        with ServerProcess(folder / "embedded", topics(), folder / "log") as process:
            yield Bench(process.master, process)
    else:
        specs = {name: TopicSpec(*shape, properties=JAVA_PROPERTIES) for name, shape in topics().items()}
        with RealTubeMQ(specs) as cluster:
            yield Bench(cluster.master, None)


def show(results: Mapping[str, Figures]) -> None:
    """Draw the table, with the ratio of the first server to the second."""
    kinds = list(results)
    table = Table("figure", *kinds, *(["ratio"] if len(kinds) > 1 else []))
    for name in results[kinds[0]]:
        values = [results[kind].get(name) for kind in kinds]
        cells = [
            "" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values
        ]
        if len(values) > 1 and values[0] and values[1]:
            cells.append(f"{values[0] / values[1]:.2f}")
        table.add_row(name, *cells)
    screen.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", nargs="+", choices=["embedded", "real"], default=["embedded"])
    parser.add_argument("--rows", type=int, default=200_000, help="messages of each size that are sent")
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    results: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in arguments.server:
            screen.print(f"{kind}: sending and reading")
            with running(kind, folder) as bench:
                results[kind] = measure(
                    bench, arguments.rows, arguments.repeat, java="real" in arguments.server
                )
            if kind == "embedded":
                screen.print("embedded: memory and recovery")
                results[kind] |= measure_memory(folder) | measure_recovery(folder)
    show(results)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
