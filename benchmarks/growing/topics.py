"""The topics of the growth benchmark on an embedded server, and how Spark reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.progress import Progress

from benchmarks.turns import screen
from integration_tests.rig.produce import client_config
from tubemq_spark.client import TubeMQClient

ROWS_TOPIC: Final = "rows"
ROW_BYTES: Final = 100


@dataclass(frozen=True)
class Work:
    """How much work there is in each panel."""

    rows: Sequence[int]
    partitions: Sequence[int]
    """Of topics on the embedded server."""
    partitions_rows: int
    """In each of those topics, however many partitions it has."""
    scripted_partitions: Sequence[int]
    """Of a scripted cluster, where only the driver is measured."""
    sizes: Sequence[int]
    """Of messages, in bytes."""
    sized_rows: int
    sized_bytes: int
    """So many messages of a size at most, and so many bytes."""
    queries: Sequence[int]
    query_rows: int
    """What each of several queries on one topic reads."""

    def rows_of_size(self, size: int) -> int:
        """Return how many messages of a size there are."""
        return min(self.sized_rows, self.sized_bytes // size)

    def topics(self) -> Mapping[str, tuple[int, int]]:
        """Return stores, and partitions of each store, by topic."""
        parted = {partitioned_topic(count): (count, 1) for count in self.partitions}
        return {ROWS_TOPIC: (1, 1)} | parted | {sized_topic(size): (1, 1) for size in self.sizes}

    def fill(self, master: str) -> None:
        """Write all messages."""
        orders = [(ROWS_TOPIC, 1, max(self.rows), ROW_BYTES)]
        orders += [(partitioned_topic(n), n, self.partitions_rows, ROW_BYTES) for n in self.partitions]
        orders += [(sized_topic(size), 1, self.rows_of_size(size), size) for size in self.sizes]
        with (
            Progress(console=screen) as progress,
            TubeMQClient(client_config(master, "growth")) as client,
        ):
            task = progress.add_task("filling", total=sum(rows * size for _, _, rows, size in orders))
            for topic, partitions, rows, size in orders:
                value, places = b"x" * size, [(1, 10_000 * store) for store in range(partitions)]
                with client.producer() as producer:
                    for row in range(rows):
                        producer.send(topic, value, partition=places[row % partitions])
                        if row % 10_000 == 0:
                            progress.update(task, description=f"filling {topic}")
                progress.advance(task, rows * size)


FULL: Final = Work(
    rows=(10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    partitions=(1, 3, 10, 30, 100),
    partitions_rows=300_000,
    scripted_partitions=(1, 10, 100, 1_000, 10_000),
    sizes=(10, 100, 1 << 10, 10 << 10, 100 << 10, 1 << 20),
    sized_rows=1_000_000,
    sized_bytes=512 << 20,
    queries=(1, 2, 4, 8, 16),
    query_rows=300_000,
)
QUICK: Final = Work(
    rows=(1_000, 10_000),
    partitions=(1, 4),
    partitions_rows=2_000,
    scripted_partitions=(1, 100),
    sizes=(10, 1 << 10),
    sized_rows=20_000,
    sized_bytes=4 << 20,
    queries=(1, 2),
    query_rows=1_000,
)
"""Too little work for figures that mean anything: it shows that the program runs."""


def partitioned_topic(partitions: int) -> str:
    """Return the name of the topic of so many partitions."""
    return f"partitions_{partitions}"


def sized_topic(size: int) -> str:
    """Return the name of the topic with messages of one size."""
    return f"size_{size}"
