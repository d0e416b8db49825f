"""The embedded server killed over and over with much in its files and more coming in."""

import contextlib
import dataclasses
import random
import threading
import time
from collections import Counter, defaultdict

import pytest

from integration_tests.rig import store_check
from integration_tests.rig.messages import client_config, cluster_of
from integration_tests.rig.processes import ServerProcess
from integration_tests.rig.runs import chance_of, form
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.log.store import StoreSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss

KILLS = form(short=3, long=20)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FILLER = random.Random(0).randbytes(2 * MIB)
PARTITIONS = (0, 1, 10_000)
"""Two that share a store and one that does not."""
FILLED = form(short=512 * MIB, long=GIB)
"""So much is in the first store before the first kill."""
LARGEST_READ = 28 * MIB
"""What one read from a connection can bring at most, a frame: it is stored as a whole."""
MOST_UNFLUSHED = StoreSettings().wait_bytes + LARGEST_READ
"""A store holds no more than this that a start has to look at."""
MOST_READ_AT_START = 2 * MOST_UNFLUSHED + 40 * MIB
"""What two stores may have to look at, and Python's own files."""


def payload_of(partition_id, run, number):
    """Return the message that a load sends: sizes from a few bytes to a megabyte, small ones more often."""
    draw = random.Random(f"{partition_id}:{run}:{number}")
    size = draw.randint(1, draw.choice([100, 100, 100, 10 * KIB, 10 * KIB, 100 * KIB, MIB]))
    begin = draw.randrange(MIB)
    return b"%d:%d:%d:" % (partition_id, run, number) + FILLER[begin : begin + size]


class Load(threading.Thread):
    """A producer that sends to one partition until a message has failed, as the server is gone."""

    def __init__(self, master, partition_id, run):
        super().__init__(name=f"load-{partition_id}")
        self.partition_id, self.run_number = partition_id, run
        self.begun = threading.Event()
        self.acknowledged = 0
        # It gives up before an answer is overdue and before the server is back, so it sends nothing twice:
        # what is not acknowledged may be stored, but once.
        self._config = dataclasses.replace(client_config(master, "load"), delivery_timeout_ms=3_000)

    def run(self):
        with (
            contextlib.suppress(TubeMQError),
            TubeMQClient(self._config) as client,
            client.producer(stamp_message_time=False) as producer,
        ):
            try:
                self._send(producer)
            finally:
                # A broker answers in order, so these are the first ones.
                self.acknowledged = sum(receipt.count for receipt in producer.receipts())

    def _send(self, producer):
        number = 0
        while not producer.failures:
            value = payload_of(self.partition_id, self.run_number, number)
            producer.send("demo", value, partition=(1, self.partition_id))
            if number == 0:
                producer.flush()
                self.begun.set()
            number += 1


def fill(master):
    """Write much to the first store."""
    with TubeMQClient(client_config(master)) as client, client.producer(stamp_message_time=False) as producer:
        for number in range(FILLED // (64 * KIB)):
            producer.send("demo", FILLER[number : number + 64 * KIB], partition=(1, 0))


def kill_under_load(server, run, chance):
    """Kill the server while producers send; return how much each was acknowledged."""
    loads = [Load(server.master, partition_id, run) for partition_id in PARTITIONS]
    for load in loads:
        load.start()
    for load in loads:
        assert load.begun.wait(30)
    time.sleep(chance.uniform(0.0, 0.5))
    server.kill()
    for load in loads:
        load.join()
    return {load.partition_id: load.acknowledged for load in loads}


def check_run(stored, run, acknowledged):
    """Check what one run left: what was acknowledged and maybe more, each message once and in order."""
    of_partition = defaultdict(list)
    for message in stored:
        of_partition[message.partition_id].append(message.payload)
    for partition_id, count in acknowledged.items():
        there = of_partition.pop(partition_id, [])
        assert len(there) >= count > 0
        for number, payload in enumerate(there):
            assert payload == payload_of(partition_id, run, number)
    assert not of_partition


def ends_of(stores):
    """Return where the index and the data of each store end."""
    return [log.end for store in stores for log in store_check.logs(store)]


def cuts_told(log):
    """Return how often the server said that it cut something."""
    return log.read_text().count(" was not closed properly: cut ")


def count_by_client(master):
    """Read everything as a query does and return how many messages each partition has."""
    config = client_config(master)
    cluster = cluster_of(config)
    layout = cluster.layout(["demo"])
    counts = Counter()
    for partition in layout.partitions:
        asked = OffsetRange(partition, 0, cluster.bounds(layout).by_store[partition.store_id].latest)
        work = layout.request(asked)
        for batch in cluster.read_range(work, fail_on_loss):
            counts[partition.partition_id] += len(batch.columns)
    return counts


@pytest.mark.timeout(600)
def test_kills_lose_and_repeat_nothing(tmp_path):
    """A start looks at little, however much there is; after it index and data agree."""
    chance = chance_of("kills of the embedded server")
    data, log = tmp_path / "data", tmp_path / "stderr"
    stores = [data / "stores" / f"demo-{number}" for number in (0, 1)]
    with ServerProcess(data, {"demo": (2, 2)}, log) as server:
        fill(server.master)
        server.stop()
    ends = [ends_of([store])[0] for store in stores]
    assert ends == [FILLED // (64 * KIB) * 28, 0]

    acknowledged = {}
    for run in range(KILLS + 1):
        if run:
            assert all(store_check.unflushed_bytes(store) <= MOST_UNFLUSHED for store in stores)
        torn, told = ends_of(stores), cuts_told(log)
        with ServerProcess(data, {}, log) as server:
            assert server.bytes_read < MOST_READ_AT_START
            assert (ends_of(stores) != torn) == (cuts_told(log) > told), "what is cut is told"
            if run:
                found = [store_check.messages(*place) for place in zip(stores, ends, strict=True)]
                check_run((message for store in found for message in store), run, acknowledged)
                ends = [ends_of([store])[0] for store in stores]
            if run < KILLS:
                acknowledged = kill_under_load(server, run + 1, chance)
            else:
                read = count_by_client(server.master)

    stored = Counter(message.partition_id for store in stores for message in store_check.messages(store))
    assert read == stored
    assert [28 * (stored[0] + stored[1]), 28 * stored[10_000]] == ends
