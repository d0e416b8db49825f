"""Everything that can change under a stream changes, in random order; ``make stress`` takes the long form.

The seed repeats a run, ``make stress SEED=7``, as far as its choices go: how far the job is at each step is
up to the machine.
"""

import contextlib
import itertools
import os
import time
from collections import Counter

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until
from integration_tests.rig.jobs import batches, end_of_log, kill, rows_written, start_job, stop_job
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, start
from integration_tests.rig.runs import chance_of, form
from integration_tests.rig.servers import await_files
from tubemq_spark.embedded.server import EmbeddedTubeMQ

RECREATION_SECONDS = form(short=8, long=60)
RECREATIONS = 2
"""At least so many, however long they take."""
LONGEST_PAUSE_SECONDS = 1.5
MOST_RECREATED_STORES = form(short=1, long=2)
"""A store that is not there any more is given up after 20 s only."""
PATIENCE_SECONDS = 180
FIRST, MOST_BROKERS, MOST_STORES, MOST_PARTITIONS = "stress_0", 4, 4, 3
DECK = form(
    short=dict.fromkeys(["add_topic", "add_partitions", "add_broker", "kill_broker", "kill_job"], 1),
    long={
        "produce": 3,
        "add_topic": 2,
        "add_partitions": 3,
        "add_broker": 1,
        "restart_broker": 2,
        "kill_broker": 2,
        "restart_master": 1,
        "stop_job": 2,
        "kill_job": 3,
    },
)
"""How often each step comes before all have come: steps are dealt, so that none is left out by chance."""
STEPS = int(os.environ.get("TUBEMQ_STRESS_STEPS", form(short=sum(DECK.values()), long=50)))
KEPT, COMING = "kept", ("coming_0", "coming_1")


@contextlib.contextmanager
def two_brokers(kind, folder, *topics):
    """Start a cluster of two brokers; a Java one has small segments."""
    if kind == "embedded":
        with EmbeddedTubeMQ(folder / "data", topics=dict.fromkeys(topics, (1, 1)), brokers=2) as server:
            yield server
    else:
        require_real_tubemq()
        with RealTubeMQ(dict.fromkeys(topics, TopicSpec()), brokers=2) as cluster:
            yield cluster


def cards(chance):
    """Deal steps for ever."""
    while True:
        deck = list(Counter(DECK).elements())
        chance.shuffle(deck)
        yield from deck


class Stress:
    """A Java cluster, the job that reads it, and how many rows are stored: the numbers from 0 on.

    Each method but the last is a step; whether the job runs while it is done is left to chance.
    """

    def __init__(self, cluster, folder, chance):
        self._cluster = cluster
        self.shapes = {FIRST: (1, 1)}
        """The stores of each topic, and the partitions of each store."""
        self._folder = folder
        self._chance = chance
        self._job = None
        self.stored = 0

    @property
    def is_reading(self):
        return self._job is not None

    @property
    def brokers(self):
        return list(self._cluster.brokers)

    def start_job(self):
        if self._job is None:
            options = {
                "tubemq.master.servers": self._cluster.master,
                "tubemq.master.web": self._cluster.master_web,
                "subscribePattern": "stress_.*",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(self._chance.choice([500, 3_000, 10_000])),
            }
            self._job = start_job(self._folder, options, endless=True)

    def produce(self):
        """Store rows of some size, spread over the partitions of a topic."""
        topic = self._chance.choice(sorted(self.shapes))
        count, width = self._chance.randint(1, 3_000), self._chance.choice([1, 100, 2_000])
        produce_numbers(self._cluster.master, topic, range(self.stored, self.stored + count), width=width)
        self.stored += count

    def add_topic(self):
        name = f"stress_{len(self.shapes)}"
        self.shapes[name] = self._chance.randint(1, 3), self._chance.randint(1, 2)
        self._cluster.add_topic(name, *self.shapes[name])

    def add_partitions(self):
        name, (stores, partitions) = self._chance.choice(sorted(self.shapes.items()))
        more = [(min(stores + 1, MOST_STORES), partitions), (stores, min(partitions + 1, MOST_PARTITIONS))]
        shape = self._chance.choice(more)
        if shape != (stores, partitions):  # the Java master refuses to change nothing
            self.shapes[name] = shape
            self._grow_topic(name, *shape)

    def add_broker(self):
        if len(self.brokers) < MOST_BROKERS:
            self._cluster.add_broker()

    def restart_broker(self):
        self._restart_broker(self._chance.choice(self.brokers))

    def kill_broker(self):
        """Kill a broker that loses nothing by that, and start it."""
        self._kill_broker(self._chance.choice(self.brokers))

    def restart_master(self):
        self._cluster.restart_master()

    def stop_job(self):
        if self._job is not None:
            stop_job(self._job, self._folder)
            self._job = None

    def kill_job(self):
        """Kill it while it starts, or as soon as it has planned one more micro-batch."""
        if self._job is None:
            return
        if self._chance.random() < 0.7:
            planned = len(batches(self._folder, "offsets"))
            self.produce()
            self._await(lambda: len(batches(self._folder, "offsets")) != planned, "a micro-batch")
        self.end()

    def await_rows(self):
        """Wait until the job has read the rest, however many small micro-batches that takes, and stop it."""
        self.start_job()
        while (read := self._rows_read()) < self.stored:
            self._await(lambda read=read: self._rows_read() > read, f"more than {read} of {self.stored} rows")
        self.stop_job()

    def end(self):
        """Kill the job, if it runs."""
        if self._job is not None:
            kill(self._job)
            self._job = None

    def _rows_read(self):
        return len(rows_written(self._folder))

    def _await(self, condition, what):
        """Wait for something that the job does."""

        def is_there_or_dead():
            assert self._job.poll() is None, end_of_log(self._folder)
            return condition()

        wait_until(is_there_or_dead, timeout_s=PATIENCE_SECONDS, what=what)

    def _grow_topic(self, name, stores, partitions):
        self._cluster.grow_topic(name, stores=stores, partitions=partitions)

    def _restart_broker(self, broker_id):
        self._cluster.restart_broker(broker_id)

    def _kill_broker(self, broker_id):
        for topic in self.shapes:
            await_files(self._cluster, broker_id, topic)
        self._cluster.kill_broker(broker_id)
        self._cluster.start_broker(broker_id)


class EmbeddedStress(Stress):
    """The same with the embedded TubeMQ, whose master is in its brokers' process and never goes alone."""

    def add_broker(self):
        if len(self.brokers) < MOST_BROKERS:
            added = self._cluster.add_broker()
            for name, shape in self.shapes.items():
                self._cluster.add_topic(name, *shape, brokers=[added])

    def restart_master(self):
        self._cluster.faults.forget_clients()

    def _grow_topic(self, name, stores, partitions):
        self._cluster.add_topic(name, stores, partitions)

    def _restart_broker(self, broker_id):
        self._cluster.faults.stop_broker(broker_id, graceful=True)
        self._cluster.faults.start_broker(broker_id)

    def _kill_broker(self, broker_id):
        # Not crash_broker, which cuts the power: what is not flushed to the disk would be lost.
        self._cluster.faults.stop_broker(broker_id)
        self._cluster.faults.start_broker(broker_id)


@pytest.mark.parametrize(
    "kind",
    [pytest.param("embedded", marks=pytest.mark.nightly), pytest.param("real", marks=pytest.mark.real)],
)
@pytest.mark.nightly  # make stress
@pytest.mark.spark
@pytest.mark.timeout(3_600)
def test_every_row_is_read_once_whatever_changes(kind, tmp_path, record_property):
    """Topics, partitions and brokers come; brokers, the master and the job itself stop and are killed."""
    chance = chance_of("stress")
    done = Counter()
    with two_brokers(kind, tmp_path, FIRST) as cluster:
        stress = (EmbeddedStress if kind == "embedded" else Stress)(cluster, tmp_path, chance)
        stress.start_job()
        try:
            for number, step in zip(range(1, STEPS + 1), cards(chance), strict=False):
                began = time.monotonic()
                getattr(stress, step)()
                stress.produce()
                done[step] += 1
                reads = "the job reads" if stress.is_reading else "no job"
                print(
                    f"step {number}/{STEPS}: {step}, {time.monotonic() - began:.1f} s; {stress.stored} rows,"
                    f" {len(stress.shapes)} topics, {len(stress.brokers)} brokers, {reads}",
                    flush=True,
                )
                if chance.random() < 0.5:
                    stress.start_job()
            stress.await_rows()
        finally:
            stress.end()

    record_property("steps", dict(done))
    record_property("rows", stress.stored)
    record_property("micro-batches", len(batches(tmp_path, "commits")))
    assert_same_rows(rows_written(tmp_path), range(stress.stored))
    assert len(done) == len(DECK) or sum(DECK.values()) > STEPS


@pytest.mark.parametrize("kind", ["embedded", pytest.param("real", marks=pytest.mark.real)])
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_query_lives_while_topics_come_and_go(spark, kind, tmp_path, record_property):
    """No row comes twice, and a topic that was created again is read on."""
    chance = chance_of("topics that come and go")
    numbers = itertools.count()
    there, kept, times = set(), [], Counter()
    sink = Collected()
    with two_brokers(kind, tmp_path, KEPT) as cluster:

        def produce(topic, count):
            new = list(itertools.islice(numbers, count))
            produce_numbers(cluster.master, topic, new)
            return new

        frame = (
            spark.readStream.format("tubemq")
            .option("tubemq.master.servers", cluster.master)
            .option("tubemq.master.web", cluster.master_web)
            .option("subscribePattern", "kept|coming_.*")
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
            .load()
        )
        query = start(frame, sink, tmp_path / "checkpoint", processingTime="200 milliseconds")
        kept += produce(KEPT, 1)
        wait_until(lambda: bool(sink.rows), timeout_s=PATIENCE_SECONDS, what="the first row")
        deadline = time.monotonic() + RECREATION_SECONDS
        while time.monotonic() < deadline or min(times[topic] for topic in COMING) < RECREATIONS:
            topic = chance.choice(COMING)
            if topic in there:
                cluster.remove_topic(topic)
                there.remove(topic)
            else:
                cluster.add_topic(topic, chance.randint(1, MOST_RECREATED_STORES), 1)
                there.add(topic)
                times[topic] += 1
            kept += produce(KEPT, chance.randint(1, 50))
            for each in sorted(there):
                produce(each, chance.randint(0, 50))
            print(f"{topic} {'comes' if topic in there else 'goes'}; {len(sink.rows)} rows read", flush=True)
            assert query.isActive, query.exception()
            time.sleep(chance.uniform(0, LONGEST_PAUSE_SECONDS))

        for topic in COMING:
            if topic not in there:
                cluster.add_topic(topic, 1, 1)
            fresh = []

            def is_read(topic=topic, fresh=fresh):
                fresh.extend(produce(topic, 5))
                return bool(set(fresh) & set(sink.rows))

            wait_until(is_read, timeout_s=PATIENCE_SECONDS, what=f"a row of {topic}", poll_s=1)
        wait_until(lambda: set(kept) <= set(sink.rows), timeout_s=PATIENCE_SECONDS, what="the rows of kept")
        assert query.isActive, query.exception()
        query.stop()

    record_property("times", dict(times))
    assert_same_rows(sink.rows, set(sink.rows))
