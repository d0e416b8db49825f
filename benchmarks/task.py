"""What a row costs a task of a batch read without Spark: CPU from the answer of a broker to the record batch.

Each figure is of a process of its own that reads one partition of an embedded server several times; the
server is another process. With ``--beside`` the same is measured for another checkout, in turns with this.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

# Behind those of PYTHONPATH, which name the checkout to be measured.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.turns import Figures, in_turns
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.ledger import batch_read
from tubemq_spark.options import OptionSet
from tubemq_spark.source.arrow import schema_of
from tubemq_spark.source.columns import default_columns
from tubemq_spark.source.task import read_rows

_ROOT: Final = Path(__file__).resolve().parent.parent
SIZES: Final = {"100 B": 100, "1 KiB": 1024}
WAYS: Final = {"compiled": "0", "Python": "1"}


def topic_of(size: int) -> str:
    return f"rows_{size}"


def serve(rows: int) -> None:
    """Run a server with messages until its input ends; print its master's address."""
    with EmbeddedTubeMQ(topics={topic_of(size): (1, 1) for size in SIZES.values()}) as server:
        with TubeMQClient.connect(server.master) as client, client.producer() as producer:
            for size in SIZES.values():
                for _ in range(rows * 100 // size):
                    producer.send(topic_of(size), os.urandom(size))
        print(server.master, flush=True)
        sys.stdin.read()


def read(master: str, topic: str, times: int) -> dict[str, float]:
    """Read a topic; return the least and the middle CPU per row, and what it took besides."""
    options = OptionSet.parse({"tubemq.master.servers": master, "subscribe": topic}).for_batch_read()
    with TubeMQClient.connect(master) as client:
        layout = client.layout(topic)
        ((store, span),) = client.bounds(layout).by_store.items()
        request = layout.request(OffsetRange(layout.alone_in_store[store], *span), own_store=True)
    schema = schema_of(default_columns(include_attributes=False, payload=options.payload))
    used, took = [], []
    for _ in range(times):
        cpu_s, began = time.process_time(), time.perf_counter()
        rows = sum(batch.num_rows for batch in read_rows([request], options, schema, batch_read("g", "x")))
        used.append((time.process_time() - cpu_s) / rows * 1e6)
        took.append(rows / (time.perf_counter() - began))
    return {
        "CPU us/row, best": min(used),
        "CPU us/row, median": statistics.median(used),
        "rows/s, best": max(took),
        "most memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_process(checkout: Path, pure: str, master: str, topic: str, times: int) -> Figures:
    """Return what ``read`` returns in a process that uses a checkout."""
    command = [sys.executable, __file__, "--read", master, topic, "--times", str(times)]
    environment = {**os.environ, "TUBEMQ_SPARK_PURE": pure, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def show(rounds_of: Mapping[tuple[str, ...], list[Figures]]) -> None:
    names = list(next(iter(rounds_of.values()))[0])
    table = Table("checkout", "twin", "size", *names)
    for key, rounds in rounds_of.items():
        middle = (statistics.median(figures[name] for figures in rounds) for name in names)
        table.add_row(*key, *(f"{value:,.3f}" if value < 1000 else f"{value:,.0f}" for value in middle))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 B; as many bytes of the others")
    parser.add_argument("--times", type=int, default=5, help="that a process reads its partition")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout, with its compiled twin built")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    if arguments.read:
        print(json.dumps(read(*arguments.read, arguments.times)))
        return
    checkouts = {"this": _ROOT} | ({"other": arguments.beside.resolve()} if arguments.beside else {})
    command = [sys.executable, __file__, "--serve", str(arguments.rows)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        master = server.stdout.readline().strip()
        ways = {
            (name, way, label): partial(in_process, path, pure, master, topic_of(size), arguments.times)
            for label, size in SIZES.items()
            for way, pure in WAYS.items()
            for name, path in checkouts.items()
        }
        show(in_turns(ways, warm_ups=0, rounds=arguments.rounds, title="a task's reading"))
        server.communicate()


if __name__ == "__main__":
    main()
