"""What the way through a gateway costs, and how many clients one gateway carries.

    make bench-gateway                       # everything, in about five minutes
    python benchmarks/gateway.py --only read idle

- *read*: rows per second of one task that reads as the source does, directly and through a gateway in turns,
  and the gateway's own processor time per row;
- *write*: the same of one task that writes as the sink does;
- *idle*: processor time and memory of sessions that do nothing: those that send heartbeats, and those that
  have a stream of events instead;
- *parked*: how long heartbeats take while thousands of fetches wait for messages, and how much processor time
  that waiting takes;
- *sessions*: connections upstream of sessions that read at the same time, and how evenly they are served.

The server and the gateway are processes of their own. Rates are the best of ``--repeat`` runs; JSON is the
last line.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
import grpc.aio
from rich.console import Console
from rich.table import Table

from integration_tests.rig.produce import client_config
from integration_tests.rig.server_process import ServerProcess
from testkit.gateway_caller import AsyncCaller
from testkit.gateway_process import GatewayProcess
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint, OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.source.arrow import BatchBuilder
from tubemq_spark.source.schema import arrow_schema, default_schema

KIB: Final = 1 << 10
SIZES: Final = {"100 B": 100, "1 KiB": KIB}
PARTS: Final = ("read", "write", "idle", "parked", "sessions")
_CHANNELS: Final = 8
_ROWS_OF_SESSIONS: Final = 2_000
"""Of the range that each of many sessions reads."""
_WARM_S: Final = 5.0
"""How long they read before that counts."""

_BATCH: Final = 500
"""Rows of each batch that is written."""

Figures = dict[str, float]
Work = Callable[[Cluster], int]
"""What a task does with a cluster; returns how many rows went through."""
screen = Console(stderr=True)


# Reading.


def read_as_a_task(cluster: Cluster, topic: str) -> int:
    """Read all of a topic's only partition into record batches; return how many rows there were."""
    layout = cluster.layout([topic])
    (partition,) = layout.partitions
    end = cluster.bounds(layout).complete()[partition.store_id].latest
    work = layout.request(OffsetRange(partition, 0, end), own_store=True)
    builder = BatchBuilder(arrow_schema(default_schema(include_attributes=False)), zoneinfo.ZoneInfo("UTC"))
    rows = 0
    for batch in cluster.read_range(work, fail_on_loss):
        rows += sum(int(part.num_rows) for part in builder.add(batch, exact_offsets=True))
    return rows + sum(int(part.num_rows) for part in builder.finish())


def write_as_a_task(cluster: Cluster, batch: SendBatch, count: int) -> int:
    """Send a batch so often that it makes so many rows; return how many are stored."""
    with cluster.sender("bench") as sender:
        for _ in range(count // len(batch)):
            sender.send_batch(batch)
        sender.flush()
        return sum(receipt.count for receipt in sender.receipts())


def measure_ways(
    server: ServerProcess, gateway: GatewayProcess, repeat: int, count: int, label: str, work: Work
) -> Figures:
    """Do the work of a task in both ways, in turns; a ratio is that of two runs, one after the other."""
    config = client_config(server.master, "bench")
    through = ClusterConfig(ClientConfig((), "bench"), (Endpoint.parse(gateway.address),))
    direct = open_cluster(ClusterConfig(config).validate(), for_task=True)
    remote = open_cluster(through.validate())
    rates: dict[str, list[float]] = {"directly": [], "through a gateway": []}
    cpu_us = []
    for turn in range(repeat):
        ways = [("directly", direct), ("through a gateway", remote)]
        for name, cluster in ways[:: -1 if turn % 2 else 1]:
            cpu, began = gateway.cpu_s, time.perf_counter()
            rows = work(cluster)
            rates[name].append(rows / (time.perf_counter() - began))
            if rows != count:
                raise RuntimeError(f"{rows} rows of {count} came {name}")
            if cluster is remote:
                cpu_us.append((gateway.cpu_s - cpu) / rows * 1e6)
    ratios = [100 * through / direct for direct, through in zip(*rates.values(), strict=True)]
    return {
        **{f"{label}: rows/s {name}": max(best) for name, best in rates.items()},
        f"{label}: through a gateway, % of directly, median": statistics.median(ratios),
        f"{label}: through a gateway, % of directly, best runs": 100
        * max(rates["through a gateway"])
        / max(rates["directly"]),
        f"{label}: gateway's CPU us/row": min(cpu_us),
    }


def measure_reading(server: ServerProcess, gateway: GatewayProcess, repeat: int, megabytes: int) -> Figures:
    """Read topics of small and of larger messages."""
    figures: Figures = {}
    for label, size in SIZES.items():
        topic, count = f"read_{size}", megabytes * (1 << 20) // max(size, 400)
        fill(server.master, topic, size, count)
        figures |= measure_ways(
            server,
            gateway,
            repeat,
            count,
            f"read {label}",
            lambda cluster, topic=topic: read_as_a_task(cluster, topic),
        )
    return figures


def measure_writing(server: ServerProcess, gateway: GatewayProcess, repeat: int, megabytes: int) -> Figures:
    """Write small and larger messages."""
    figures: Figures = {}
    for label, size in SIZES.items():
        batch = SendBatch.of(f"write_{size}", [os.urandom(size) for _ in range(_BATCH)])
        count = megabytes * (1 << 20) // max(size, 400) // _BATCH * _BATCH
        figures |= measure_ways(
            server,
            gateway,
            repeat,
            count,
            f"write {label}",
            lambda cluster, batch=batch, count=count: write_as_a_task(cluster, batch, count),
        )
    return figures


def fill(master: str, topic: str, size: int, count: int) -> None:
    """Send messages of a size."""
    value = os.urandom(size)
    with TubeMQClient(client_config(master, "bench")) as client, client.producer() as producer:
        for _ in range(count):
            producer.send(topic, value)


# Many clients, by one event loop.


class Clients:
    """Sessions of one gateway over a few connections."""

    def __init__(self, address: str) -> None:
        """Connect."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options) for _ in range(_CHANNELS)]
        self._turn = itertools.cycle(self._channels)

    async def open(self, number: int, group: str = "bench") -> AsyncCaller:
        """Open a session."""
        client = AsyncCaller(next(self._turn), f"client_{os.getpid()}_{number}")
        await client.open(group)
        return client

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()


async def measure_idle(gateway: GatewayProcess, count: int, seconds: float) -> Figures:
    """Keep sessions open in both ways, and look what that takes."""
    clients = Clients(gateway.address)
    before = gateway.memory_bytes
    sessions = [await clients.open(number) for number in range(count)]
    await asyncio.sleep(1)
    cpu, began = gateway.cpu_s, time.perf_counter()
    # Each of them every 10 s, one after the other.
    for number in range(int(seconds * count / 10)):
        await asyncio.sleep(max(0.0, began + number * 10 / count - time.perf_counter()))
        await sessions[number % count]("Heartbeat")
    heartbeats = 100 * (gateway.cpu_s - cpu) / (time.perf_counter() - began)
    streams = [client("SessionEvents", timeout=600) for client in sessions]
    for stream in streams:
        await stream.initial_metadata()
    await asyncio.sleep(1)
    cpu, began = gateway.cpu_s, time.perf_counter()
    await asyncio.sleep(seconds)
    figures = {
        f"{count} idle sessions with heartbeats: % of a core": heartbeats,
        f"{count} idle sessions with streams of events: % of a core": 100
        * (gateway.cpu_s - cpu)
        / (time.perf_counter() - began),
        f"{count} idle sessions: MB more": (gateway.memory_bytes - before) / 1e6,
        "gateway: MB in all": gateway.memory_bytes / 1e6,
    }
    for client in sessions:
        await client("CloseSession")
    await clients.close()
    return figures


async def measure_parked(gateway: GatewayProcess, polls: int, consumers: int, seconds: float) -> Figures:
    """Measure heartbeats of a client while fetches of some consumers wait."""
    clients = Clients(gateway.address)
    readers = [await clients.open(number, f"bench_{number}") for number in range(consumers)]
    place = pb.AttachPartitionsRequest.Wanted(
        partition=pb.Partition(topic="parked", broker_id=1, partition_id=0)
    )
    for reader in readers:
        answer = await reader("AttachPartitions", partitions=[place])
        if answer.partitions[0].HasField("error"):
            raise RuntimeError(answer.partitions[0].error.text)
    each = polls // consumers
    waiting = [
        asyncio.ensure_future(reader("Fetch", wait_ms=20_000)) for reader in readers for _ in range(each)
    ]
    beating = await clients.open(consumers)
    await asyncio.sleep(1)
    took, cpu, began = [], gateway.cpu_s, time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        await beating("Heartbeat")
        took.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0.02)
    spent = time.perf_counter() - began
    still = sum(not fetch.done() for fetch in waiting)
    figures = {
        "parked fetches": float(still),
        "heartbeat beside them, median ms": statistics.median(took),
        "heartbeat beside them, p99 ms": statistics.quantiles(took, n=100)[98],
        "waiting: % of a core": 100 * (gateway.cpu_s - cpu) / spent,
    }
    for fetch in waiting:
        fetch.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for reader in readers:
        await reader("CloseSession")
    await clients.close()
    return figures


async def measure_sessions(
    server: ServerProcess, gateway: GatewayProcess, count: int, seconds: float
) -> Figures:
    """Read the same messages in many sessions again and again; compare what each gets while all read."""
    clients = Clients(gateway.address)
    # Readers of one group would wait for each other's leases.
    sessions = [await clients.open(number, f"bench_{number}") for number in range(count)]
    request = {
        "partition": pb.Partition(topic="read_1024", broker_id=1, partition_id=0),
        "start": 0,
        "end": _ROWS_OF_SESSIONS * INDEX_ENTRY_BYTES,
        "own_store": True,
    }
    begin = time.perf_counter() + _WARM_S
    end = begin + seconds

    async def read(client: AsyncCaller) -> int:
        rows = 0
        while time.perf_counter() < end:
            call = client("ReadRange", timeout=300, **request)
            async for event in call:
                now = time.perf_counter()
                if begin <= now < end:
                    rows += event.batch.count
                elif now >= end:
                    call.cancel()
                    break
        return rows

    async def look() -> int:
        await asyncio.sleep(_WARM_S + seconds / 2)
        return gateway.upstream(server.master)

    connections, *rows = await asyncio.gather(look(), *map(read, sessions))
    await clients.close()
    usual = statistics.median(rows)
    return {
        f"{count} sessions that read: connections upstream": float(connections),
        f"{count} sessions that read: rows/s of all": sum(rows) / seconds,
        f"{count} sessions that read: slowest, % of the median": 100 * min(rows) / usual,
        f"{count} sessions that read: quickest, % of the median": 100 * max(rows) / usual,
    }


def measure(parts: list[str], arguments: argparse.Namespace, folder: Path) -> Iterator[Figures]:
    """Measure some parts."""
    topics = {"parked": (1, 1)}
    topics |= {f"{work}_{size}": (1, 1) for size in SIZES.values() for work in ("read", "write")}
    with (
        ServerProcess(folder / "data", topics, folder / "log") as server,
        GatewayProcess(server.master, "--log-level=WARNING") as gateway,
    ):
        for part in parts:
            screen.print(part)
            if part == "read":
                yield measure_reading(server, gateway, arguments.repeat, arguments.megabytes)
            elif part == "write":
                yield measure_writing(server, gateway, arguments.repeat, arguments.megabytes)
            elif part == "idle":
                yield asyncio.run(measure_idle(gateway, arguments.idle, arguments.seconds))
            elif part == "parked":
                work = measure_parked(gateway, arguments.polls, arguments.consumers, arguments.seconds)
                yield asyncio.run(work)
            else:
                if "read" not in parts:
                    fill(server.master, "read_1024", KIB, _ROWS_OF_SESSIONS)
                yield asyncio.run(
                    measure_sessions(server, gateway, arguments.sessions, 2 * arguments.seconds)
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=128, help="how much is read each time")
    parser.add_argument("--idle", type=int, default=1_000, help="idle sessions")
    parser.add_argument("--polls", type=int, default=5_000, help="fetches that wait")
    parser.add_argument("--consumers", type=int, default=50, help="sessions that they belong to")
    parser.add_argument("--sessions", type=int, default=200, help="sessions that read at the same time")
    parser.add_argument("--seconds", type=float, default=10, help="how long to look at those that wait")
    arguments = parser.parse_args()
    results: Figures = {}
    with tempfile.TemporaryDirectory() as name:
        for figures in measure(arguments.only, arguments, Path(name)):
            results |= figures
    table = Table("figure", "value")
    for figure, value in results.items():
        table.add_row(figure, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    screen.print(table)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
