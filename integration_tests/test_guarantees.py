"""The table of ``docs/guarantees/guarantees.md`` through Spark: a few cells always, all of them nightly.

The same cells below Spark are in ``tests/guarantees``. What a test expects is what the cell says.
"""

import concurrent.futures
import contextlib
import json
import time

import pytest

from integration_tests.rig.queries import to_topic
from testkit.cells import Lasting, assert_hit, assert_once, ends_as, parametrized, repeats_of
from testkit.guarantees import GOES_ON, LOSES, SKIPS
from testkit.troubles import AWAY, CHANGING, TOPIC, Scene, partition_of

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 90
TOLERANT = {"failOnDataLoss": "false"}
IMPATIENT = {"fetchOffset.numRetries": "3", "tubemq.fetchTimeoutMs": "400"}
ALWAYS = {
    ("stream", "A broker is killed and restarted-first"),
    ("stream", "A topic is removed-second"),
    ("available_now", "A broker is frozen for a while-first"),
    ("batch_read", "A broker does not come back-first"),
    ("planned_task", "A broker is killed and restarted-first"),
    ("batch_write", "A broker does not come back-second"),
    ("stream_write", "A broker is killed and restarted-second"),
    ("sending_task", "Connections break in the middle of a frame-first"),
}
"""The cells that do not wait for the night."""
SEEN = set()
"""All cells."""


def cell_of(use, first, second):
    """Return the parameters of a column, all but a few of them marked as nightly."""
    name = {"AvailableNow": "available_now"}.get(use, use.lower().replace(" ", "_"))
    parametrize = parametrized(use, first, second)
    names, parameters = parametrize.args
    SEEN.update((name, one.id) for one in parameters)
    marked = [
        one if (name, one.id) in ALWAYS else pytest.param(*one.values, id=one.id, marks=pytest.mark.nightly)
        for one in parameters
    ]
    return pytest.mark.parametrize(names, marked)


@pytest.fixture
def scene():
    with Scene() as made:
        yield made


def options_of(scene, outcome, **more):
    return {
        "tubemq.master.servers": scene.masters,
        "subscribe": f"{TOPIC},{CHANGING}",
        "startingOffsets": "earliest",
        "tubemq.rpcTimeoutMs": "2000",
        "tubemq.fetchTimeoutMs": "60000",
        "fetchOffset.numRetries": "600",
        "fetchOffset.retryIntervalMs": "100",
        **(IMPATIENT if outcome.is_error else {}),
        **more,
    }


def values(frame):
    return [bytes(row.value) for row in frame.select("value").collect()]


class Query:
    """A streaming query that collects its rows."""

    def __init__(self, spark, scene, outcome, checkpoint, options, before_batch=lambda: None, **trigger):
        self.rows = []
        self.batches = 0
        self._before_batch = before_batch
        frame = spark.readStream.format("tubemq").options(**options_of(scene, outcome, **options)).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def _take(self, frame, _):
        self._before_batch()
        self.rows += values(frame)
        self.batches += 1

    def await_rows(self, wanted):
        """Wait until all of these rows were there."""
        deadline = time.monotonic() + PATIENCE_S
        while missing := wanted - set(self.rows):
            if self.query.exception() is not None:
                raise self.query.exception()
            assert time.monotonic() < deadline, f"rows that did not come: {sorted(missing)}"
            time.sleep(0.05)

    def finish(self):
        self.query.awaitTermination()

    def finish_rows(self, wanted):
        """Stop when all of these rows were there."""
        self.await_rows(wanted)
        self.stop()

    def stop(self):
        """Stop when what was read is committed."""
        self.query.processAllAvailable()
        self.query.stop()


@cell_of("Stream", {}, TOLERANT)
def test_stream(spark, scene, tmp_path, trouble, outcome, variant):
    query = Query(spark, scene, outcome, tmp_path, variant)
    before = scene.produce()
    query.await_rows(before)
    if trouble.loses:
        query.stop()
        unread = scene.produce()
        before |= {value for value in unread if trouble.spares(partition_of(value))}
    trouble.begin(scene)
    if trouble.loses:
        rows, query = query.rows, Query(spark, scene, outcome, tmp_path, variant)
        query.rows += rows

    with ends_as(outcome):
        meanwhile = scene.produce(trouble.spares)
        query.await_rows(before | meanwhile)
    if outcome.is_error:
        return
    if trouble.end is not None:
        trouble.end(scene)
    after = scene.produce(trouble.spares if outcome.word == SKIPS else trouble.is_writable)
    query.await_rows(after)
    assert outcome.word in {GOES_ON, SKIPS}
    assert_once(query.rows, before | meanwhile | after)
    assert_hit(scene)


@cell_of("AvailableNow", {}, TOLERANT)
def test_available_now(spark, scene, tmp_path, trouble, outcome, variant):
    first = Query(spark, scene, outcome, tmp_path, variant, availableNow=True)
    first.finish()
    before = scene.produce()
    first = Query(spark, scene, outcome, tmp_path, variant, availableNow=True)
    first.finish()
    assert_once(first.rows, before)
    unread = scene.produce()
    trouble.begin(scene)

    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        query = Query(spark, scene, outcome, tmp_path, variant, availableNow=True)
        query.finish()
        assert not outcome.waits or lasting.is_over
    if not outcome.is_error:
        assert_once(query.rows, spared_of(unread, trouble))
    assert_hit(scene)


@cell_of("Batch read", {}, TOLERANT)
def test_batch_read(spark, scene, trouble, outcome, variant):
    before = scene.produce()
    # From `earliest` on nothing is missing.
    options = {**variant, "startingOffsets": scene.beginning()} if trouble.loses else variant
    trouble.begin(scene)

    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        frame = spark.read.format("tubemq").options(**options_of(scene, outcome, **options)).load()
        rows = values(frame)
        assert not outcome.waits or lasting.is_over
    if not outcome.is_error:
        assert_once(rows, spared_of(before, trouble))
    assert_hit(scene)


@cell_of("Planned task", {}, TOLERANT)
def test_planned_task(spark, scene, tmp_path, trouble, outcome, variant):
    """The trouble comes when a micro-batch's offsets are fixed, and its tasks do not run yet.

    A run of AvailableNow that cannot reach its end fails when it has read the rest, so it shows no skipping.
    """
    before = scene.produce()
    trigger = {} if outcome.word == SKIPS else {"availableNow": True}
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        began = concurrent.futures.Future()

        def begin():
            if not began.done():
                trouble.begin(scene)
                began.set_result(None)

        with ends_as(outcome):
            query = Query(spark, scene, outcome, tmp_path, variant, begin, **trigger)
            end = query.finish if trigger else lambda: query.finish_rows(spared_of(before, trouble))
            running = executor.submit(end)
            concurrent.futures.wait([began, running], PATIENCE_S, concurrent.futures.FIRST_COMPLETED)
            with Lasting(scene, trouble, outcome):
                running.result(PATIENCE_S)
    if not outcome.is_error:
        assert_once(query.rows, spared_of(before, trouble))
    assert_hit(scene)


def spared_of(rows, trouble):
    return {row for row in rows if not trouble.loses or trouble.spares(partition_of(row))}


FREE, NAMED = False, True
COUNT = 160
"""Rows without key take turns of 32, and each of three brokers has to get some."""
MANY = 500
COLUMNS = "value string, brokerId int, partition int"


def rows_of(named, count=COUNT, padding=0):
    return [
        (f"row {number} {'.' * padding}", 1 + number % 3 if named else None, 0 if named else None)
        for number in range(count)
    ]


def sent_by(rows):
    return {value.encode() for value, _, _ in rows}


def write_options(scene, trouble, outcome):
    return {
        "tubemq.master.servers": scene.masters,
        "topic": trouble.topic,
        "tubemq.rpcTimeoutMs": "1000",
        "deliveryTimeoutMs": "1500" if outcome.is_error else "60000",
    }


def save(frame, scene, trouble, outcome):
    frame.write.format("tubemq").options(**write_options(scene, trouble, outcome)).mode("append").save()


@cell_of("Batch write", FREE, NAMED)
def test_batch_write(spark, scene, trouble, outcome, variant):
    rows = rows_of(variant)
    frame = spark.createDataFrame(rows, COLUMNS).coalesce(1)
    trouble.begin(scene)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        save(frame, scene, trouble, outcome)
        assert not outcome.waits or lasting.is_over
    if not outcome.is_error:
        repeats_of(scene, outcome, sent_by(rows))
    assert_hit(scene)


@cell_of("Stream write", FREE, NAMED)
def test_stream_write(spark, scene, tmp_path, trouble, outcome, variant):
    rows, folder = rows_of(variant), tmp_path / "rows"
    folder.mkdir()
    texts = [json.dumps(dict(zip(("value", "brokerId", "partition"), row, strict=True))) for row in rows]
    (folder / "some.json").write_text("\n".join(texts))
    trouble.begin(scene)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        lines = spark.readStream.schema(COLUMNS).json(str(folder))
        to_topic(lines, tmp_path / "checkpoint", write_options(scene, trouble, outcome))
        assert not outcome.waits or lasting.is_over
    if not outcome.is_error:
        repeats_of(scene, outcome, sent_by(rows))
    assert_hit(scene)


@cell_of("Sending task", FREE, NAMED)
def test_sending_task(spark, scene, tmp_path, small_batches, trouble, outcome, variant):
    """The trouble comes while rows flow; the last of them come after that."""
    rows = rows_of(variant, count=MANY, padding=1_000)
    go_on = tmp_path / "go on"
    before = scene.produce()
    stored = scene.server.stats().messages_in

    def one_by_one(part):
        for number, row in enumerate(part):
            if number == MANY - COUNT:
                wait_for(go_on.exists)
            time.sleep(0.002)
            yield row

    flowing = spark.sparkContext.parallelize(rows, 1).mapPartitions(one_by_one)
    frame = spark.createDataFrame(flowing, COLUMNS)
    with contextlib.ExitStack() as lasting:

        def disturb():
            wait_for(lambda: scene.server.stats().messages_in > stored + COUNT)
            trouble.begin(scene)
            lasting.enter_context(Lasting(scene, trouble, outcome))
            go_on.touch()

        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            disturbed = executor.submit(disturb)
            with ends_as(outcome):
                save(frame, scene, trouble, outcome)
            disturbed.result()
    if not outcome.is_error:
        lost = sent_by(rows[:-COUNT]) if trouble.loses else set()
        repeats_of(scene, outcome, sent_by(rows) - lost, lost)
    if outcome.word == LOSES:
        there = set(scene.stored())
        assert {value for value in before if partition_of(value).broker_id == AWAY}.isdisjoint(there)
    assert_hit(scene)


@pytest.fixture
def small_batches(spark):
    """A task's rows reach the sink a few at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(name)
    spark.conf.set(name, "10")
    yield
    spark.conf.set(name, usual)


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_cells_that_do_not_wait_for_the_night_exist():
    assert ALWAYS <= SEEN
