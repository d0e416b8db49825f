"""What two Java brokers do to those who read and write, below Spark: they restart, freeze, close and grow.

Triggers, plans and tasks are asked for as Spark asks for them, without a JVM of Spark.
"""

import concurrent.futures
import contextlib
import itertools
import time
from collections import Counter

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from integration_tests.rig.messages import assert_same_rows, client_config
from integration_tests.rig.servers import await_files, server_of
from testkit.readers import Stream, read_task
from testkit.views import read_view
from tubemq_spark.client import TubeMQClient
from tubemq_spark.errors import DataLossError

pytestmark = pytest.mark.timeout(300)

SCHEMA = StructType(
    [
        StructField("brokerId", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)
STAYS, GOES = 1, 2
"""The brokers."""
FROZEN_SECONDS = 20
ROWS = 50
PATIENCE_SECONDS = 60


class Topic:
    """A topic with rows that all differ."""

    def __init__(self, cluster, name):
        self.name = name
        self.values = []
        self._master = cluster.master
        self._numbers = itertools.count()

    def produce(self, *partitions):
        """Store rows in each of these partitions; by default in the first one of both brokers."""
        values = [
            b"%d:%d %d" % (*partition, next(self._numbers))
            for partition in partitions or ((STAYS, 0), (GOES, 0))
            for _ in range(ROWS)
        ]
        with TubeMQClient(client_config(self._master)) as client, client.producer() as producer:
            for value in values:
                place = value.split()[0].split(b":")
                producer.send(self.name, value, partition=(int(place[0]), int(place[1])))
        self.values += values
        return values


class Query(Stream):
    """A streaming query with all rows that it has read."""

    def __init__(self, cluster, topic, **options):
        wanted = {"subscribe": topic.name, "startingoffsets": "earliest", **options}
        super().__init__(server_of(cluster).options(**wanted), SCHEMA)
        self._rows = []

    def plan_something(self):
        """Plan a micro-batch of the rows that are there; a look at the brokers is good for a moment."""
        while not (tasks := self.plan()):
            time.sleep(0.1)
        return tasks

    def skip(self):
        """Plan a micro-batch in which nothing is to be read, but the position has moved."""
        before = self.checkpoint
        while self.checkpoint == before:
            assert self.plan() == []
            time.sleep(0.1)

    def run(self, tasks):
        """Run the tasks of a micro-batch."""
        for task in tasks:
            self._rows += read_task(self.pickled_reader, task)

    def read(self, values):
        """Run micro-batches until all these rows were there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while missing := set(values) - set(self.values):
            assert time.monotonic() < deadline, f"{len(missing)} rows did not come, such as {min(missing)}"
            self.run(self.plan())
            time.sleep(0.1)

    @property
    def values(self):
        """The values of all rows read."""
        return [value for *_, value in self._rows]

    def assert_has_once(self, values, *, maybe_stored_twice=()):
        """Check that every record was read once, and every row is among them."""
        assert_same_rows(self._rows, set(self._rows))
        found = Counter(self.values)
        assert_same_rows(found.keys(), values)
        assert {value for value, count in found.items() if count > 1} <= set(maybe_stored_twice)


def is_waiting(future):
    """Tell whether something has not ended after a moment."""
    return not concurrent.futures.wait([future], timeout=1).done


@contextlib.contextmanager
def stopped(cluster, _):
    """Stop a broker in good order and start it again."""
    cluster.stop_broker(GOES)
    try:
        yield
    finally:
        cluster.start_broker(GOES)


@contextlib.contextmanager
def killed(cluster, topic):
    """Kill a broker that has everything on its disk, and start it again."""
    await_files(cluster, GOES, topic)
    cluster.kill_broker(GOES)
    try:
        yield
    finally:
        cluster.start_broker(GOES)


@contextlib.contextmanager
def frozen(cluster, _):
    """Pause a broker during the block, and for a while after it."""
    cluster.pause_broker(GOES)
    try:
        yield
        time.sleep(FROZEN_SECONDS)
    finally:
        cluster.resume_broker(GOES)


def assert_seen_as_away(cluster, topic):
    """What can be known of one broker is known, and nothing of the other one is."""
    options = server_of(cluster).options(view="partitions", subscribe=topic.name)
    stays, goes = read_view(options)
    assert (stays["brokerId"], stays["state"], stays["error"]) == (STAYS, "answers", None)
    assert 0 <= stays["flushedLatest"] <= stays["latest"] == 28 * stays["rows"]
    assert (goes["brokerId"], goes["state"], goes["broker"]) == (GOES, "away", cluster.brokers[GOES].address)
    assert {goes[column] for column in ("earliest", "latest", "flushedLatest", "rows")} == {None}
    assert goes["error"]


@pytest.mark.parametrize(
    "trouble",
    [stopped, killed, pytest.param(frozen, marks=pytest.mark.nightly)],
    ids=lambda trouble: trouble.__name__,
)
def test_only_what_needs_the_broker_waits_for_it(real_brokers, trouble):
    """A task that is planned and a row that names a partition wait; the other broker's rows go on."""
    topic = Topic(real_brokers, f"cell_{trouble.__name__}")
    stream, interrupted = Query(real_brokers, topic), Query(real_brokers, topic)
    for each in (stream, interrupted):
        each.read(topic.produce())
    topic.produce()
    planned = interrupted.plan_something()

    with concurrent.futures.ThreadPoolExecutor(2) as others:
        with trouble(real_brokers, topic.name):
            reading = others.submit(interrupted.run, planned)
            writing = others.submit(topic.produce, (GOES, 0))
            stream.read(topic.produce((STAYS, 0)))
            assert is_waiting(reading)
            assert is_waiting(writing)
            assert_seen_as_away(real_brokers, topic)
        reading.result()
        written = writing.result()

    topic.produce()
    for each in (stream, interrupted):
        each.read(topic.values)
        each.assert_has_once(topic.values, maybe_stored_twice=written)


def test_a_topic_is_read_while_it_is_closed_and_opened_again(real_brokers):
    """A closed topic takes no rows, but what it has is read."""
    topic = Topic(real_brokers, "closed")
    stream, late = Query(real_brokers, topic), Query(real_brokers, topic)
    stream.read(topic.produce())
    topic.produce()

    real_brokers.close_topic(topic.name)
    stream.read(topic.values)
    late.read(topic.values)
    real_brokers.open_topic(topic.name)

    topic.produce()
    for each in (stream, late):
        each.read(topic.values)
        each.assert_has_once(topic.values)


def test_a_store_and_a_partition_are_added_under_a_stream(real_brokers):
    """New ones are read from their first row on, and rows of the old ones go on."""
    topic = Topic(real_brokers, "grown")
    stream = Query(real_brokers, topic)
    stream.read(topic.produce())

    real_brokers.grow_topic(topic.name, stores=2, partitions=1)
    stream.read(topic.produce((STAYS, 0), (GOES, 0), (STAYS, 10_000), (GOES, 10_000)))
    real_brokers.grow_topic(topic.name, stores=2, partitions=2)
    everywhere = itertools.product((STAYS, GOES), (0, 1, 10_000, 10_001))
    stream.read(topic.produce(*everywhere))

    assert_same_rows(stream.values, topic.values)


def test_a_broker_joins_a_topic_under_a_stream(real_brokers):
    """Its rows are read from the first one on."""
    topic = Topic(real_brokers, "joined")
    stream = Query(real_brokers, topic)
    stream.read(topic.produce())

    joined = real_brokers.add_broker([topic.name])
    stream.read(topic.produce((STAYS, 0), (GOES, 0), (joined, 0)))

    stream.assert_has_once(topic.values)


def test_a_topic_is_removed_and_made_again(real_brokers):
    """A log that is shorter than what was read: a strict stream ends, a tolerant one goes on at its end."""
    topic = Topic(real_brokers, "remade")
    strict, tolerant = Query(real_brokers, topic), Query(real_brokers, topic, failondataloss="false")
    topic.produce()
    topic.produce()
    for stream in (strict, tolerant):
        stream.read(topic.values)

    real_brokers.remove_topic(topic.name)
    real_brokers.add_topic(topic.name)
    topic.produce()

    with pytest.raises(DataLossError) as caught:
        strict.read(topic.values)
    assert caught.value.condition == "TUBEMQ_DATA_LOSS.MOVED_BACK"
    assert topic.name in str(caught.value)
    tolerant.skip()
    tolerant.read(topic.produce())
