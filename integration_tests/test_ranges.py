"""Ranges partition a log exactly: between any cut points, while messages arrive, and over a broker's restart.

No Spark here: the client's range reader is what every task of a query runs.
"""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from integration_tests.produce import client_config, produce_numbers
from integration_tests.truth import assert_same_rows
from tubemq_spark.client.range_reader import RangeRequest
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES

READERS = 4


class Log:
    """A topic of two stores with three partitions each, and its ranges."""

    def __init__(self, server):
        self.topic = server.fresh_topic("2x3")
        self.cluster = open_cluster(client_config(server.master))

    def look(self):
        """Return where the topic's stores begin and end now."""
        layout = self.cluster.layout([self.topic])
        return layout, self.cluster.bounds(layout)

    def cuts(self, chance, pieces):
        """Cut every store into pieces at random; return the ranges of all partitions, in no order."""
        layout, bounds = self.look()
        points = {store: random_points(chance, held, pieces) for store, held in bounds.items()}
        works = [
            RangeRequest(OffsetRange(partition, start, end), endpoint, layout.visit_token)
            for partition, endpoint in layout.partitions.items()
            for start, end in pairwise(points[partition.store_id])
        ]
        chance.shuffle(works)
        return works

    def read(self, works):
        """Read ranges, several at once; return the numbers of each in their order."""
        with ThreadPoolExecutor(READERS) as readers:
            return list(readers.map(self.read_one, works))

    def read_one(self, work):
        return [
            int(batch.columns.message(row).value)
            for batch in self.cluster.read_range(work, fail_on_loss)
            for row in range(len(batch.columns))
        ]


def random_points(chance, held, pieces):
    """Return the two ends of a store and points between them; some may be equal."""
    first, last = held.earliest // INDEX_ENTRY_BYTES, held.latest // INDEX_ENTRY_BYTES
    inner = [chance.randint(first, last) for _ in range(pieces - 1)]
    return [INDEX_ENTRY_BYTES * point for point in sorted([first, last, *inner])]


@pytest.fixture
def chance():
    """Chance whose seed a failing test shows."""
    seed = time.time_ns()
    return random.Random(seed)


def test_random_ranges_partition_a_log(server, chance):
    """All ranges together are the log; a range read twice is the same, in the same order."""
    count = server.pick(embedded=6_000, real=30_000)
    log = Log(server)
    produce_numbers(server.master, log.topic, range(count))
    works = log.cuts(chance, pieces=server.pick(embedded=7, real=17))
    assert len(works) >= server.pick(embedded=40, real=100)

    found = log.read(works)

    assert_same_rows([number for numbers in found for number in numbers], range(count))
    again = chance.sample(range(len(works)), len(works) // 4)
    assert log.read([works[n] for n in again]) == [found[n] for n in again]


def test_ranges_while_messages_arrive(server, chance):
    """Rounds of ranges, each from where the last one ended, while a producer goes on."""
    count = server.pick(embedded=5_000, real=20_000)
    log = Log(server)

    def slowly():
        for number in range(count):
            if number % 500 == 0:
                time.sleep(0.05)
            yield number

    producer = threading.Thread(target=produce_numbers, args=(server.master, log.topic, slowly()))
    producer.start()
    found, ends = Counter(), {}
    while producer.is_alive() or sum(ends.values()) < INDEX_ENTRY_BYTES * count:
        layout, bounds = log.look()
        works = [
            RangeRequest(
                OffsetRange(partition, ends.get(partition.store_id, 0), bounds[partition.store_id].latest),
                endpoint,
                layout.visit_token,
            )
            for partition, endpoint in layout.partitions.items()
        ]
        chance.shuffle(works)
        for numbers in log.read(works):
            found.update(numbers)
        ends = {store: held.latest for store, held in bounds.items()}
    producer.join()

    assert_same_rows(found.elements(), range(count))


def test_ranges_while_the_broker_restarts(server, chance):
    """A reader whose broker goes away goes on behind the last record it has."""
    count = server.pick(embedded=4_000, real=20_000)
    log = Log(server)
    # So long that a range takes several fetches.
    produce_numbers(server.master, log.topic, range(count), width=3_000)
    works = sorted(log.cuts(chance, pieces=3), key=lambda work: work.range.start - work.range.end)
    under_way, restarted = threading.Barrier(READERS + 1), threading.Event()

    def read_with_a_break(work):
        batches = []
        for batch in log.cluster.read_range(work, fail_on_loss):
            batches.append([int(batch.columns.message(row).value) for row in range(len(batch.columns))])
            if len(batches) == 1:
                under_way.wait(60)
                assert restarted.wait(120)
        return batches

    with ThreadPoolExecutor(READERS) as readers:
        reading = [readers.submit(read_with_a_break, work) for work in works[:READERS]]
        under_way.wait(60)
        server.restart_broker()
        restarted.set()
        batches = [future.result() for future in reading]

    assert all(len(of_one) > 1 for of_one in batches)
    longest = [[number for numbers in of_one for number in numbers] for of_one in batches]
    others = log.read(works[READERS:])
    assert_same_rows([number for numbers in longest + others for number in numbers], range(count))
    assert log.read(works[:READERS]) == longest
