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

from integration_tests.rig.messages import assert_same_rows, client_config, cluster_of, produce_numbers
from integration_tests.rig.runs import chance_of
from integration_tests.rig.servers import SHAPES
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.errors import DataLossError, RpcError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange
from tubemq_spark.net import loop
from tubemq_spark.net.connections import process_connections
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.errcodes import ErrCode

READERS = 4
BOTH_WAYS = pytest.mark.parametrize("shape", ["2x3", "3x1"])
"""In a store with one partition the next fetch ends a step, in a shared one a commit does."""


class Log:
    """A topic, by default of two stores with three partitions each, and its ranges."""

    def __init__(self, server, shape="2x3"):
        self.topic = server.fresh_topic(shape)
        self.own_store = SHAPES[shape][1] == 1
        self.cluster = cluster_of(client_config(server.master))

    def look(self):
        """Return where the topic's stores begin and end now."""
        layout = self.cluster.layout([self.topic])
        return layout, self.cluster.bounds(layout).complete()

    def cuts(self, chance, pieces):
        """Cut every store into pieces at random; return the ranges of all partitions, in no order."""
        layout, bounds = self.look()
        points = {store: random_points(chance, held, pieces) for store, held in bounds.items()}
        works = [
            layout.request(OffsetRange(partition, start, end), own_store=self.own_store)
            for partition in layout.partitions
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
def chance(request):
    """Chance that the run's seed repeats."""
    return chance_of(request.node.name)


@BOTH_WAYS
def test_random_ranges_partition_a_log(server, chance, shape):
    """All ranges together are the log; a range read twice is the same, in the same order."""
    count = server.pick(embedded=6_000, real=30_000)
    log = Log(server, shape)
    produce_numbers(server.master, log.topic, range(count))
    works = log.cuts(chance, pieces=server.pick(embedded=7, real=17))
    assert len(works) >= (40 if shape == "2x3" else 20)

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
            layout.request(
                OffsetRange(partition, ends.get(partition.store_id, 0), bounds[partition.store_id].latest)
            )
            for partition in layout.partitions
        ]
        chance.shuffle(works)
        for numbers in log.read(works):
            found.update(numbers)
        ends = {store: held.latest for store, held in bounds.items()}
    producer.join()

    assert_same_rows(found.elements(), range(count))


@pytest.mark.slow_on_java
@pytest.mark.timeout(400)
@BOTH_WAYS
def test_ranges_while_the_broker_restarts(server, chance, shape):
    """A reader whose broker goes away goes on behind the last record it has."""
    count = server.pick(embedded=4_000, real=20_000)
    log = Log(server, shape)
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


@pytest.mark.slow_on_java
@pytest.mark.timeout(400)
@BOTH_WAYS
def test_a_closed_topic_is_read_and_a_removed_one_is_a_loss(server, shape):
    """The first step of a removal refuses commits, but neither fetches nor registers."""
    log = Log(server, shape)
    produce_numbers(server.master, log.topic, range(3_000), width=1_000)
    works = log.cuts(random.Random(1), pieces=2)
    server.forget_topic(log.topic)
    server.admin.delete_topic(log.topic, [1])
    while not refuses_commits(log, works[0]):
        time.sleep(0.5)

    found = log.read(works)
    assert_same_rows([number for numbers in found for number in numbers], range(3_000))

    server.admin.remove_topic(log.topic, [1])
    while server.broker_admin.knows_topic(log.topic) or server.admin.topic_brokers(log.topic):
        time.sleep(0.5)
    for work in works:
        if work.range.start < work.range.end:
            with pytest.raises(DataLossError) as caught:
                log.read_one(work)
            assert caught.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"


def refuses_commits(log, work):
    """Tell whether the broker has heard that the topic is closed."""

    async def ask():
        session = await session_at(work)
        claim = Claim(work.range.partition, "it_group_r00", "it_group_closed-1")
        await session.start_register(claim, work.range.start)
        try:
            await session.start_commit(claim, consumed=True)
        except RpcError as error:
            return error.code == ErrCode.FORBIDDEN
        finally:
            await session.start_unregister(claim)
        return False

    return loop.run(ask())


async def session_at(work):
    connection = await process_connections().get(work.route.endpoint)
    return BrokerSession(connection, client_config("nobody:1"), work.route.visit_token)


def test_a_cluster_that_shows_only_what_is_on_disk_is_read_to_the_end_all_the_same(server):
    """The end of a range is that of the memory, whatever priority the cluster gives its readers."""
    log = Log(server, "3x1")
    produce_numbers(server.master, log.topic, range(3))
    set_priority(server, 101)
    try:
        total = 3
        while reads_memory(log, total):
            produce_numbers(server.master, log.topic, [total])
            total += 1
            time.sleep(0.2)
        found = log.read(log.cuts(random.Random(1), pieces=1))
    finally:
        set_priority(server, 301)
    assert_same_rows([number for numbers in found for number in numbers], range(total))


def set_priority(server, priority):
    server.admin.call(
        "admin_set_cluster_default_setting",
        confModAuthToken="abc",
        createUser="it",
        modifyUser="it",
        qryPriorityId=priority,
    )


def reads_memory(log, total):
    """Tell whether readers without a priority of their own get every message."""

    async def count(work):
        session = await session_at(work)
        claim = Claim(work.range.partition, "it_group_r00", "it_group_memory-1")
        await session.start_register(claim, work.range.start)
        fetched = await session.start_fetch(claim)
        rows = fetched.count
        while fetched.count:
            fetched = await session.start_fetch(claim, consumed=True)
            rows += fetched.count
        await session.start_unregister(claim)
        return rows

    return sum(loop.run(count(work)) for work in log.cuts(random.Random(1), pieces=1)) == total
