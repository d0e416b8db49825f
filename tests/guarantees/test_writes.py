"""The writing half of docs/guarantees/guarantees.md: each cell done to three brokers, below Spark.

What a test expects is what the cell says, nothing else. By night all cells are done, by day every third.
"""

import collections
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from testkit.cells import Lasting, assert_hit, ends_as, parametrized, repeats_of
from testkit.guarantees import GOES_ON, LOSES, MAY_REPEAT, Outcome
from testkit.troubles import AWAY, TROUBLES, partition_of
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ProduceError

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("brokerId", IntegerType()),
        StructField("partition", IntegerType()),
    ]
)
COLUMNS = {"Batch write", "Stream write", "Sending task"}
IMPATIENT = {"deliverytimeoutms": "1500"}
COUNT = 120
"""Enough for each broker's turn: rows that name no partition go to one broker 32 at a time."""


class Batches:
    """Rows as Spark hands them over: each has a value of its own, and names a partition or does not."""

    def __init__(self, named):
        self._named = named
        self.values = []

    def make(self):
        """Return some more rows."""
        values = [b"row %d" % (len(self.values) + number) for number in range(COUNT)]
        self.values += values
        brokers = [1 + number % 3 if self._named else None for number in range(COUNT)]
        partitions = [0 if self._named else None] * COUNT
        arrays = [
            pa.array(values, pa.binary()),
            pa.array(brokers, pa.int32()),
            pa.array(partitions, pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(arrays, names=SCHEMA.fieldNames())


def cell_of(use):
    return parametrized(use, False, True)


def writer_of(scene, trouble, outcome, *, streaming):
    """Return a copy of a new writer, as a task has it."""
    options = {
        "tubemq.master.servers": scene.masters,
        "topic": trouble.topic,
        # Where nothing may be sent twice, no answer may be given up on a busy machine.
        "tubemq.rpctimeoutms": "10000" if outcome.word == GOES_ON else "500",
        "deliverytimeoutms": "60000",
        **(IMPATIENT if outcome.is_error else {}),
    }
    source = TubeMQDataSource(options)
    made = source.streamWriter(SCHEMA, False) if streaming else source.writer(SCHEMA, False)
    return pickle.loads(pickle.dumps(made))


def assert_told(scene, sent, outcome, message, perhaps=()):
    """Every row is there, and no more copies than the commit message tells of."""
    repeats = repeats_of(scene, outcome, sent, perhaps)
    assert repeats <= sum(receipt.unanswered for receipt in message.receipts)


def starts_while(scene, trouble, outcome, named, *, streaming):
    """Write while things go wrong already."""
    rows = Batches(named)
    trouble.begin(scene)
    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        writer = writer_of(scene, trouble, outcome, streaming=streaming)
        message = writer.write(iter([rows.make()]))
        assert lasting.is_over == outcome.waits
    if not outcome.is_error:
        assert_told(scene, rows.values, outcome, message)
    assert_hit(scene)


@pytest.mark.sampled
@cell_of("Batch write")
def test_batch_write(scene, trouble, outcome, variant):
    starts_while(scene, trouble, outcome, variant, streaming=False)


@pytest.mark.sampled
@cell_of("Stream write")
def test_stream_write(scene, trouble, outcome, variant):
    starts_while(scene, trouble, outcome, variant, streaming=True)


@pytest.mark.sampled
@cell_of("Sending task")
def test_sending_task(scene, trouble, outcome, variant):
    """The trouble comes while rows are under way."""
    rows = Batches(named=variant)
    before = scene.produce()
    writer = writer_of(scene, trouble, outcome, streaming=False)

    def batches():
        yield rows.make()
        trouble.begin(scene)
        yield rows.make()

    with Lasting(scene, trouble, outcome) as lasting, ends_as(outcome):
        message = writer.write(batches())
        assert lasting.is_over == outcome.waits
    if not outcome.is_error:
        lost = rows.values[:COUNT] if trouble.loses else []
        assert_told(scene, set(rows.values) - set(lost), outcome, message, lost)
    if outcome.word == LOSES:
        there = set(scene.stored())
        assert {value for value in before if partition_of(value).broker_id == AWAY}.isdisjoint(there)
    assert_hit(scene)


def test_a_write_that_fails_leaves_what_it_sent_and_its_repetition_sends_all_again(scene):
    trouble, rows = TROUBLES["Connections break in the middle of a frame"], Batches(named=False)
    outcome = Outcome(MAY_REPEAT)
    first = rows.make()

    def failing():
        yield first
        yield pa.RecordBatch.from_pylist([{"value": None, "brokerId": None, "partition": None}], first.schema)

    writer = writer_of(scene, trouble, outcome, streaming=True)
    with pytest.raises(ProduceError, match="NULL_VALUE"):
        writer.write(failing())
    sent_before = collections.Counter(scene.stored())
    writer.write(iter([first]))

    assert collections.Counter(scene.stored()) == sent_before + collections.Counter(rows.values)
