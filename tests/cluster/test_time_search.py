"""Times become offsets, partition by partition."""

import datetime

import pytest

from tests.memory_cluster import MemoryCluster
from tubemq_spark.cluster.time_search import TimeSearch
from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.offset_spec import Edge, Specific, Timestamp

FIRST, SECOND = TopicPartition("demo", 1, 0), TopicPartition("demo", 1, 10_000)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def text(minute):
    """Return the attributes of a message made so many minutes after the start."""
    made = START + datetime.timedelta(minutes=minute)
    return f"$msgTime$={made:%Y%m%d%H%M}"


def at(minute, seconds=0):
    return Timestamp(int((START + datetime.timedelta(minutes=minute, seconds=seconds)).timestamp() * 1000))


@pytest.fixture
def cluster():
    """Messages of minutes 0 to 99 in one partition, of minutes 50 to 59 in the other."""
    cluster = MemoryCluster(demo=(2, 1))
    for partition, minutes in ((FIRST, range(100)), (SECOND, range(50, 60))):
        log = cluster.logs[partition.store_id]
        log += [(partition, (b"value", text(minute))) for minute in minutes]
    return cluster


def resolve(cluster, spec, *, if_none=None, zone="UTC"):
    layout = cluster.layout(["demo"])
    search = TimeSearch(cluster, layout, cluster.bounds(layout).by_store, zone)
    return search.resolve(spec, option="startingTimestamp", if_none=if_none)


def test_a_time_for_all_becomes_an_offset_for_each(cluster):
    assert resolve(cluster, at(55)) == Specific({"demo": {FIRST: 28 * 55, SECOND: 28 * 5}})
    assert resolve(cluster, at(-1)) == Specific({"demo": {FIRST: 0, SECOND: 0}})


def test_records_of_the_same_minute_count(cluster):
    """A message has no seconds: the one of the minute may be younger than the time."""
    assert resolve(cluster, at(55, seconds=59)) == resolve(cluster, at(55))


def test_only_partitions_that_begin_at_a_time_are_searched(cluster):
    spec = Specific({"demo": {FIRST: at(3), SECOND: Edge.LATEST}, "other": Edge.EARLIEST})
    assert resolve(cluster, spec) == Specific(
        {"demo": {FIRST: 28 * 3, SECOND: Edge.LATEST}, "other": Edge.EARLIEST}
    )
    for unchanged in (Edge.LATEST, Specific({"demo": {FIRST: 28, SECOND: Edge.EARLIEST}})):
        assert resolve(cluster, unchanged) is unchanged


def test_the_user_decides_what_a_time_without_records_means(cluster):
    with pytest.raises(OptionError) as refused:
        resolve(cluster, at(60))
    assert refused.value.condition == "TUBEMQ_NO_RECORD_OF_TIME"
    assert "demo/1:10000" in str(refused.value)
    assert resolve(cluster, at(60), if_none=Edge.LATEST) == Specific(
        {"demo": {FIRST: 28 * 60, SECOND: Edge.LATEST}}
    )


def test_times_are_of_the_zone_of_the_messages(cluster):
    """The same minutes, read as those of Shanghai, are eight hours earlier."""
    shanghai = resolve(cluster, Timestamp(at(55).ms - 8 * 3_600_000), zone="Asia/Shanghai")
    assert shanghai == resolve(cluster, at(55))


def test_messages_without_a_usable_time_are_passed_over(cluster):
    log = cluster.logs[FIRST.store_id]
    log[54] = (FIRST, (b"value", None))
    log[55] = (FIRST, (b"value", "$msgTime$=soon"))
    spec = Specific({"demo": {FIRST: at(54), SECOND: Edge.LATEST}})
    assert resolve(cluster, spec) == Specific({"demo": {FIRST: 28 * 56, SECOND: Edge.LATEST}})


def test_messages_that_carry_no_time_are_an_error(cluster):
    cluster.logs[FIRST.store_id] = [(FIRST, (b"value", None))] * 10
    with pytest.raises(OptionError) as refused:
        resolve(cluster, at(3))
    assert refused.value.condition == "TUBEMQ_NO_MESSAGE_TIME"
    assert "'startingTimestamp' needs messages that carry a time, but those of demo/1:0" in str(refused.value)
