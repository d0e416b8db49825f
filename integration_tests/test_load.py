"""Hundreds of thousands of messages from TubeMQ's own load generators, counted and checked.

Batch read and stream read must agree with each other and with the broker's own count. The producer's
count bounds it: a message without an answer may be stored or not.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from integration_tests.rig.queries import read, read_stream, to_files
from integration_tests.rig.runs import form
from integration_tests.rig.servers import SHAPES, partitions

pytestmark = pytest.mark.timeout(300)

SIZE = 100
PARTS = ["partition", "offset", "messageId", "length(value) as size", "xxhash64(value) as body"]


AGGREGATES = {
    "rows": "count(*)",
    "ids": "count(distinct messageId)",
    "shortest": "min(size)",
    "longest": "max(size)",
    "offsets": "count(distinct offset)",
    "first": "min(offset)",
    "last": "max(offset)",
    "content": "bit_xor(xxhash64(offset, messageId, body))",
}


def facts(frame):
    """Return what is compared of the rows of each partition."""
    from pyspark.sql.functions import expr

    columns = [expr(text).alias(name) for name, text in AGGREGATES.items()]
    return {row.partition: row for row in frame.groupBy("partition").agg(*columns).collect()}


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
def test_every_message_of_the_load_producer_is_read(spark, server, java_load, shape, tmp_path):
    topic = server.load_topic(shape)
    bulk = form(short=40_000, long=500_000)
    count = server.pick(embedded=20_000, real=bulk)
    produced = java_load.produce(server.master, topic, count, size=SIZE)
    stored = server.stored(topic)
    assert produced.accepted <= stored <= produced.accepted + produced.unanswered
    assert produced.accepted > 0.9 * count

    batch = facts(read(spark, server, topic).selectExpr(*PARTS))
    to_files(
        read_stream(spark, server, topic, maxOffsetsPerTrigger=str(stored // 2 + 1)).selectExpr(*PARTS),
        tmp_path / "rows",
        tmp_path / "checkpoint",
    )
    stream = facts(spark.read.parquet(str(tmp_path / "rows")))

    assert batch == stream
    assert sum(of_one.rows for of_one in batch.values()) == stored
    assert {f"1:{partition}" for partition in batch} == set(partitions(shape))
    for of_one in batch.values():
        assert of_one.ids == of_one.rows
        assert (of_one.shortest, of_one.longest) == (SIZE, SIZE)
        if shape != "2x3":
            assert (of_one.offsets, of_one.first, of_one.last) == (of_one.rows, 0, 28 * (of_one.rows - 1))


@pytest.mark.nightly
def test_load_consumers_read_every_message(server, java_load):
    """The pull and the push consumer of the load consumer, each alone in its group, get all there is."""
    topic = server.fresh_topic("3x1")
    produced = java_load.produce(server.master, topic, 10_000, size=SIZE)
    stored = server.stored(topic)
    assert produced.accepted <= stored <= produced.accepted + produced.unanswered

    # Both at once: they wait most of their time, for the balancing and to look at their counters.
    with ThreadPoolExecutor() as pool:
        pull = pool.submit(java_load.consume, server.master, topic, "load_pull", stored)
        push = pool.submit(java_load.consume, server.master, topic, "load_push", stored, push=True)
        assert (pull.result(), push.result()) == (stored, stored)
