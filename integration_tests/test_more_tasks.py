"""Ranges cut for more tasks: the rows are the same, whatever the cut."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from integration_tests.rig.messages import assert_same_rows, client_config, cluster_of, produce_numbers
from integration_tests.rig.queries import Collected, read, read_stream, run
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.offsets.ranges import split_ranges

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

SPLITS = 32
"""Twice as many as there are reader groups by default."""

SHAPES = pytest.mark.parametrize("shape", ["1x1", "2x3"])
"""One partition alone in its store, and stores that partitions share."""


def rows(frame):
    return sorted((row.brokerId, row.partition, int(row.value)) for row in frame.collect())


def tasks(frame):
    return frame.rdd.getNumPartitions()


@SHAPES
def test_a_batch_read_has_the_same_rows_with_more_tasks(spark, server, shape):
    topic = server.fresh_topic(shape)
    produce_numbers(server.master, topic, range(3_000))
    whole = read(spark, server, topic)

    split = read(spark, server, topic, minPartitions="18")
    limited = read(spark, server, topic, maxRecordsPerPartition="170")

    assert tasks(whole) < 18 <= tasks(split)
    assert tasks(limited) >= 3_000 / 170
    assert rows(split) == rows(limited) == rows(whole)
    assert len(rows(whole)) == 3_000


def test_no_task_has_more_rows_than_the_limit(spark, server):
    topic = server.fresh_topic("1x1")
    produce_numbers(server.master, topic, range(1_000))

    found = read(spark, server, topic, maxRecordsPerPartition="70").rdd.glom().map(len).collect()

    assert max(found) <= 70
    assert sum(found) == 1_000


@pytest.mark.any_server
@SHAPES
def test_a_stream_has_the_same_rows_with_more_tasks(spark, server, shape, tmp_path):
    topic = server.fresh_topic(shape)
    produce_numbers(server.master, topic, range(1_500))
    sink = Collected()

    options = {"minPartitions": "10", "maxOffsetsPerTrigger": "700"}
    run(read_stream(spark, server, topic, **options), sink, tmp_path)

    assert_same_rows(sink.rows, range(1_500))


def test_small_ranges_share_a_task_unless_the_user_says_otherwise(spark, server):
    topic = server.fresh_topic("2x3")
    produce_numbers(server.master, topic, range(600))

    assert tasks(read(spark, server, topic)) == 1
    assert tasks(read(spark, server, topic, maxRangesPerTask="4")) == 2
    assert tasks(read(spark, server, topic, maxRangesPerTask="1")) == 6


def test_more_parts_of_one_partition_than_reader_groups_are_read_at_once(server):
    """The others wait until a group is free; none starves."""
    topic = server.fresh_topic("1x1")
    produce_numbers(server.master, topic, range(6_400))
    config = client_config(server.master)
    assert len(config.reader_groups) < SPLITS
    cluster = cluster_of(config)
    layout = cluster.layout([topic])
    [partition] = layout.partitions
    held = cluster.bounds(layout).complete()[partition.store_id]
    parts = split_ranges([OffsetRange(partition, *held)], min_partitions=SPLITS)
    assert len(parts) == SPLITS

    def read_part(part):
        batches = cluster.read_range(layout.request(part, own_store=True), fail_on_loss)
        return [
            int(batch.columns.message(row).value) for batch in batches for row in range(len(batch.columns))
        ]

    with ThreadPoolExecutor(SPLITS) as readers:
        found = list(readers.map(read_part, parts))

    assert [number for numbers in found for number in numbers] == list(range(6_400))
