"""The streaming source's answers to Spark, over a cluster without servers."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.source.fake_cluster import partition
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)
EVERYTHING = ReadAllAvailable()


def reader(schema=SCHEMA, **options):
    """Return a stream reader, made and copied as Spark does."""
    given = {"tubemq.master.servers": "master:8715", "subscribe": "demo", "startingoffsets": "earliest"}
    made = TubeMQDataSource(given | options).streamReader(schema)
    return pickle.loads(pickle.dumps(made))


def text(offset):
    """Return an offset as Spark compares and keeps it."""
    return json.dumps(offset)


def rows(stream, start, end):
    """Return how many rows of the stores a micro-batch has, counting shared stores for each partition."""
    return {
        task.request.range.partition.partition_id: (task.request.range.end - task.request.range.start) // 28
        for task in stream.partitions(start, end)
    }


def test_the_begin_is_a_constant(cluster):
    stream = reader()
    before = text(stream.initialOffset())
    stream.latestOffset(stream.initialOffset(), EVERYTHING)
    cluster.rows = dict.fromkeys(cluster.rows, 100)

    assert text(stream.initialOffset()) == before
    assert cluster.questions == 1


def test_a_micro_batch_has_all_rows_and_the_next_has_none(cluster):
    stream = reader()
    begin = stream.initialOffset()

    end = stream.latestOffset(begin, EVERYTHING)

    assert rows(stream, begin, end) == {0: 5, 10_000: 7, 20_000: 9, 20_001: 9}
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)
    assert rows(stream, end, end) == {}


def test_a_limit_is_the_option_s(cluster, clock):
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    stream = reader(maxoffsetspertrigger="10")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)

    begin = stream.initialOffset()
    end = stream.latestOffset(begin, limit)
    assert rows(stream, begin, end) == {0: 2, 10_000: 3, 20_000: 4, 20_001: 4}
    clock[0] += 1
    assert rows(stream, end, stream.latestOffset(end, limit)) == {0: 2, 10_000: 3, 20_000: 4, 20_001: 4}


def test_available_now_ends_where_the_topic_ended_at_its_start(cluster, clock):
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    cluster.rows = dict.fromkeys(cluster.rows, 100)
    clock[0] += 1

    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)

    assert rows(stream, stream.initialOffset(), end) == {0: 5, 10_000: 7, 20_000: 9, 20_001: 9}
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)


def test_progress_tells_where_the_topic_ends(cluster):
    """Without asking for it: Spark wants it after every question for offsets."""
    stream = reader(maxoffsetspertrigger="1")
    assert stream.reportLatestOffset() is None
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))

    latest = stream.reportLatestOffset()

    assert latest["topics"] == {"demo": {"1:0": 140, "1:10000": 196, "1:20000": 252, "1:20001": 252}}
    assert cluster.questions == 1


def test_a_partition_that_appears_is_read_from_its_begin(cluster, clock):
    stream = reader()
    first = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    cluster.partitions.add(partition(30_000))
    cluster.rows[3] = 4
    clock[0] += 20

    second = stream.latestOffset(first, EVERYTHING)

    assert rows(stream, first, second) == {30_000: 4}
    assert text(stream.latestOffset(second, EVERYTHING)) == text(second)


def test_a_micro_batch_without_tasks_reads_nothing(cluster):
    """Spark reads a bare value then."""
    assert list(reader().read(None)) == []


def test_courtesies_do_nothing(cluster):
    stream = reader()
    stream.commit({})
    stream.stop()

    assert cluster.layouts == 0


@pytest.mark.parametrize(
    ("schema", "options", "condition"),
    [
        (SCHEMA, {"endingoffsets": "latest"}, "TUBEMQ_ENDING_IN_STREAM"),
        (StructType([StructField("body", BinaryType())]), {}, "TUBEMQ_SCHEMA_UNKNOWN_COLUMN"),
    ],
)
def test_what_is_wrong_is_told_at_the_first_question(schema, options, condition):
    """Whatever that is; PySpark would hide what the making of a reader raises."""
    stream = reader(schema, **options)

    for question in (
        stream.initialOffset,
        lambda: stream.latestOffset({}, EVERYTHING),
        lambda: stream.partitions({}, {}),
        lambda: stream.read(None),
    ):
        with pytest.raises(OptionError) as refused:
            question()
        assert refused.value.condition == condition
    stream.stop()
