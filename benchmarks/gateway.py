"""What the way through a gateway costs one task, in turns with the direct way.

    make bench-gateway
    python benchmarks/gateway.py --only read

It reads as the source does and writes as the sink does: rows per second, and the gateway's own processor time
per row. What many clients cost a gateway is ``gateway_scale.py``.

The server and the gateway are processes of their own. Rates are the best of ``--repeat`` runs; JSON is the
last line.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from integration_tests.rig.messages import client_config
from integration_tests.rig.processes import ServerProcess
from testkit.gateway_caller import GatewayProcess
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint, OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.source.arrow import BatchBuilder
from tubemq_spark.source.schema import arrow_schema, default_schema

KIB: Final = 1 << 10
SIZES: Final = {"100 B": 100, "1 KiB": KIB}
PARTS: Final = ("read", "write")
_BATCH: Final = 500
"""Rows of each batch that is written."""

Figures = dict[str, float]
Work = Callable[[Cluster], int]
"""What a task does with a cluster; returns how many rows went through."""
screen = Console(stderr=True)


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


def measure_part(
    part: str, server: ServerProcess, gateway: GatewayProcess, repeat: int, megabytes: int
) -> Figures:
    """Read or write small and larger messages."""
    figures: Figures = {}
    for label, size in SIZES.items():
        topic = f"{part}_{size}"
        count = megabytes * (1 << 20) // max(size, 400) // _BATCH * _BATCH
        if part == "read":
            fill(server.master, topic, size, count)
            work = functools.partial(read_as_a_task, topic=topic)
        else:
            batch = SendBatch.of(topic, [os.urandom(size) for _ in range(_BATCH)])
            work = functools.partial(write_as_a_task, batch=batch, count=count)
        figures |= measure_ways(server, gateway, repeat, count, f"{part} {label}", work)
    return figures


def fill(master: str, topic: str, size: int, count: int) -> None:
    """Send messages of a size."""
    value = os.urandom(size)
    with TubeMQClient(client_config(master, "bench")) as client, client.producer() as producer:
        for _ in range(count):
            producer.send(topic, value)


def show(figures: Figures) -> None:
    """Print figures for people, and as JSON in the last line."""
    table = Table("figure", "value")
    for figure, value in figures.items():
        table.add_row(figure, f"{value:,.2f}" if value < 100 else f"{value:,.0f}")
    screen.print(table)
    sys.stdout.write(json.dumps(figures) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=128, help="how much is read each time")
    arguments = parser.parse_args()
    results: Figures = {}
    topics = {f"{part}_{size}": (1, 1) for size in SIZES.values() for part in PARTS}
    with (
        tempfile.TemporaryDirectory() as name,
        ServerProcess(Path(name, "data"), topics, Path(name, "log")) as server,
        GatewayProcess(server.master, "--log-level=WARNING") as gateway,
    ):
        for part in arguments.only:
            screen.print(part)
            results |= measure_part(part, server, gateway, arguments.repeat, arguments.megabytes)
    show(results)


if __name__ == "__main__":
    main()
