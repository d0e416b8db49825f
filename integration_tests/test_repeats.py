"""Repeats are told apart: a pipeline that is killed over and over gives each row once in the end."""

import contextlib
import sys
import threading
import time
from pathlib import Path

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.rig.jobs import batches, end_of_log, kill, running_job, wait_for_batch
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, run
from integration_tests.rig.runs import chance_of, form
from integration_tests.rig.servers import await_files
from integration_tests.wheel.environment import Environment
from integration_tests.wheel.servers import spark_cluster
from tubemq_spark.embedded.server import EmbeddedTubeMQ

PROGRAM = Path(__file__).parent / "programs" / "copy_with_repeats.py"
INPUT, OUTPUT = "input", "output"
KILLS = form(short=2, long=5)
MANY_KILLS = form(short=2, long=20)
"""Where everything comes together: the Java server, tasks that fail, and tasks that run twice."""
BROKER_KILLS = form(short=1, long=2)
KILLED_BROKER = 1
ROWS_PER_KILL = form(short=600, long=1_500)
"""So many come before the job starts: enough for it to have something to do until it is killed."""
ROWS_PER_TRIGGER = ROWS_PER_KILL // 5
LAST_TRIGGERS = 8
BROKER_AWAY_SECONDS = 3
SETTINGS = {"spark.task.maxFailures": "4", "spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
SPECULATION = {
    "spark.executor.memory": "600m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
}


class EmbeddedBrokers:
    """Three brokers, one of which is killed under load: it keeps all that it has acknowledged."""

    dies_under_load = True

    def __init__(self, server):
        self.master = server.master
        self._faults = server.faults

    def kill(self):
        self._faults.stop_broker(KILLED_BROKER)

    def start(self):
        self._faults.start_broker(KILLED_BROKER)


class JavaBrokers:
    """Two brokers, one of which is killed while no row is written.

    What it has acknowledged and not yet written to its files is lost, which is not what is tried here. It is
    away when the next driver starts.
    """

    dies_under_load = False

    def __init__(self, cluster):
        self.master = cluster.master
        self._cluster = cluster

    def kill(self):
        for topic in (INPUT, OUTPUT):
            await_files(self._cluster, KILLED_BROKER, topic)
        self._cluster.kill_broker(KILLED_BROKER)

    def start(self):
        self._cluster.start_broker(KILLED_BROKER)


@contextlib.contextmanager
def started(kind, folder):
    if kind == "embedded":
        topics = {INPUT: (2, 1), OUTPUT: (1, 1)}
        with EmbeddedTubeMQ(folder / "data", topics=topics, brokers=3) as server:
            yield EmbeddedBrokers(server)
    else:
        require_real_tubemq()
        with RealTubeMQ({INPUT: TopicSpec(2), OUTPUT: TopicSpec()}, brokers=2) as cluster:
            yield JavaBrokers(cluster)


class Pipeline:
    """The job that copies the input to the output, and what kills it and a broker."""

    def __init__(self, brokers, folder, chance, settings):
        self._brokers = brokers
        self._folder = folder
        self._chance = chance
        self._options = {
            "tubemq.master.servers": brokers.master,
            "subscribe": INPUT,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(ROWS_PER_TRIGGER),
        }
        self._plan = {
            "settings": SETTINGS | settings,
            "program": PROGRAM,
            "slow": "spark.speculation" in settings,
            "sink": {
                "tubemq.master.servers": brokers.master,
                "topic": OUTPUT,
                "receiptsPath": str(folder / "receipts"),
            },
        }

    def run_and_kill(self, *, with_broker):
        """Run the job until a random moment; meanwhile, or before, the broker goes away and comes back."""
        if with_broker and not self._brokers.dies_under_load:
            self._brokers.kill()
        done = {log: max(batches(self._folder, log), default=-1) for log in ("offsets", "commits")}
        with running_job(self._folder, self._options, endless=True, **self._plan) as job:
            if not with_broker:
                self._wait(job, done)
            elif self._brokers.dies_under_load:
                self._wait(job, done)
                self._brokers.kill()
                time.sleep(self._chance.uniform(0, BROKER_AWAY_SECONDS))
                self._brokers.start()
            else:
                starting = threading.Thread(target=self._brokers.start)
                starting.start()
                self._wait(job, done)
                starting.join()
            kill(job)

    def finish(self, rows):
        """Run the job to the end of so many rows, most of which are left, in larger micro-batches."""
        options = self._options | {"maxOffsetsPerTrigger": str(rows // LAST_TRIGGERS)}
        with running_job(self._folder, options, **self._plan) as job:
            assert job.wait(timeout=900) == 0, end_of_log(self._folder)

    def _wait(self, job, done):
        """Wait until some time after a new micro-batch was planned or done, or while the job starts."""
        if self._chance.random() < 0.1:
            time.sleep(self._chance.uniform(0, 10))
            return
        log = self._chance.choice(sorted(done))
        wait_for_batch(job, self._folder, log, done[log] + self._chance.randint(1, 2))
        time.sleep(self._chance.uniform(0, 1))


def read_without_repeats(spark, master, checkpoint, rows):
    """Return the output's values, after Spark has dropped what it has seen before."""
    sink = Collected()
    stream = (
        spark.readStream.format("tubemq")
        .schema("value binary, messageUid string")
        .option("tubemq.master.servers", master)
        .option("subscribe", OUTPUT)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(rows // 3))
        .load()
        .selectExpr("*", "current_timestamp() as seenAt")
        .withWatermark("seenAt", "1 day")
        .dropDuplicatesWithinWatermark(["messageUid"])
    )
    run(stream, sink, checkpoint)
    assert len(sink.batches) > 1
    return sink.rows


def stored_rows(spark, master):
    """Return values and ids of all that is stored."""
    frame = spark.read.format("tubemq").schema("value binary, messageUid string")
    stored = frame.option("tubemq.master.servers", master).option("subscribe", OUTPUT).load()
    return [(int(row.value), row.messageUid) for row in stored.collect()]


def assert_killed_pipeline_gives_its_input(spark, kind, folder, settings, record_property, kills=KILLS):
    """Kill driver and broker; numbers come in pairs, so rows of equal content must not be taken for one."""
    chance = chance_of(f"repeats on {kind}")
    broken = set(chance.sample(range(kills), BROKER_KILLS))
    rows = kills * ROWS_PER_KILL
    sent = [number // 2 for number in range(rows)]
    with started(kind, folder) as brokers:
        pipeline = Pipeline(brokers, folder, chance, settings)
        for number in range(kills):
            first = number * ROWS_PER_KILL
            produce_numbers(brokers.master, INPUT, sent[first : first + ROWS_PER_KILL])
            pipeline.run_and_kill(with_broker=number in broken)
            print(f"kill {number + 1}/{kills}: {len(batches(folder, 'commits'))} micro-batches", flush=True)
        pipeline.finish(rows)
        stored = stored_rows(spark, brokers.master)
        kept = read_without_repeats(spark, brokers.master, folder / "reading", rows)

    repeats = len(stored) - len(set(stored))
    print(f"{len(stored)} rows stored, {repeats} of them repeats, for {rows} rows of input")
    record_property("rows", rows)
    record_property("repeats before", repeats)
    assert None not in {uid for _, uid in stored}
    assert repeats > 0
    assert_same_rows(kept, sent)


@pytest.mark.parametrize("kind", ["embedded", pytest.param("real", marks=pytest.mark.real)])
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_pipeline_that_is_killed_gives_its_input(spark, kind, tmp_path, record_property):
    """Tasks fail up to three times after they have stored rows; then the driver and a broker are killed."""
    settings = {"spark.master": "local[2,4]"}
    assert_killed_pipeline_gives_its_input(spark, kind, tmp_path, settings, record_property)


@pytest.mark.parametrize("kind", ["embedded", pytest.param("real", marks=pytest.mark.real)])
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_pipeline_that_is_killed_and_speculates_gives_its_input(spark, kind, tmp_path, record_property):
    """Besides, slow tasks run twice, and executors of a killed driver may write for a moment longer."""
    with spark_cluster(Environment(Path(sys.prefix)), tmp_path, workers=2) as cluster:
        settings = SPECULATION | {"spark.master": cluster.url}
        kills = MANY_KILLS if kind == "real" else KILLS
        assert_killed_pipeline_gives_its_input(spark, kind, tmp_path, settings, record_property, kills)
