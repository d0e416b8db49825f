"""A look at the first records of a range: how it reads, and when it is given up."""

import pytest

from tests.memory_cluster import MemoryCluster
from tubemq_spark.cluster.peek import peek, waiting_at_most
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.model import OffsetRange, TopicPartition

FIRST = TopicPartition("demo", 1, 0)


@pytest.mark.parametrize(("partitions", "alone"), [(1, True), (2, False)])
def test_a_partition_that_shares_its_store_is_not_read_as_if_it_were_alone(monkeypatch, partitions, alone):
    cluster, asked = MemoryCluster(demo=(1, partitions)), []
    read = cluster.read_range
    monkeypatch.setattr(
        cluster, "read_range", lambda request, *how: (asked.append(request.own_store), read(request, *how))[1]
    )
    cluster.logs[FIRST.store_id] = [(FIRST, (b"value", None))] * 3
    with peek(cluster, cluster.layout(["demo"]), OffsetRange(FIRST, 0, 84)) as batches:
        assert len(next(batches).columns) == 3
    assert asked == [alone]


def test_a_look_waits_no_longer_than_its_patience():
    span = OffsetRange(FIRST, 28, 84)
    waiting_at_most(None, span).pause(0)
    waiting_at_most(86_400_000, span).check()
    waiting_at_most(0, span).check()
    over = waiting_at_most(-1_000, span)
    for wait in (over.check, lambda: over.pause(86_400)):
        with pytest.raises(TubeMQTimeoutError, match="TUBEMQ_NO_PROGRESS"):
            wait()
    assert waiting_at_most(1, span).pause(86_400) is None
