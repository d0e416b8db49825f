"""Times become offsets, partition by partition."""

import datetime
import zoneinfo

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


def searching(cluster, zone="UTC"):
    layout = cluster.layout(["demo"])
    return TimeSearch(cluster, layout, cluster.bounds(layout).by_store, zone, advice="do this")


def resolve(cluster, spec, *, zone="UTC", **if_absent):
    if_absent = {"if_none": None, **if_absent}
    return searching(cluster, zone).begin(spec, option="startingTimestamp", **if_absent)


def end(cluster, spec, **if_absent):
    return searching(cluster).end(spec, option="endingTimestamp", **if_absent)


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
    text = str(refused.value)
    assert "'startingTimestamp' needs messages that carry a time, but no message of demo/1:0" in text
    assert "other clients if they are told to" in text
    with pytest.raises(OptionError, match="TUBEMQ_NO_MESSAGE_TIME"):
        end(cluster, at(3))
    # The user has said what a partition without them is.
    latest = {FIRST: Edge.LATEST, SECOND: 0}
    assert resolve(cluster, at(3), if_untimed=Edge.LATEST) == Specific({"demo": latest})
    assert end(cluster, at(3), if_untimed=Edge.LATEST) == Specific({"demo": latest})


def test_a_range_ends_where_earlier_messages_end(cluster):
    assert end(cluster, at(55)) == Specific({"demo": {FIRST: 28 * 55, SECOND: 28 * 5}})
    assert end(cluster, at(500)) == Specific({"demo": {FIRST: 28 * 100, SECOND: 28 * 10}})


def test_all_messages_of_a_minute_that_an_end_divides_are_before_it(cluster):
    """A message has no seconds: it may be older than the time."""
    assert end(cluster, at(55, seconds=1)) == end(cluster, at(56))


def test_a_stretch_without_times_is_passed_over(cluster):
    """As when one of several producers sets none: records before and behind have times."""
    cluster.per_fetch = 10
    cluster.logs[FIRST.store_id][20:80] = [(FIRST, (b"value", None))] * 60
    spec = Specific({"demo": {FIRST: at(95), SECOND: Edge.LATEST}})
    assert resolve(cluster, spec) == Specific({"demo": {FIRST: 28 * 95, SECOND: Edge.LATEST}})


def test_the_second_search_knows_what_the_first_has_seen(cluster):
    log = [(FIRST, (b"value", text(minute // 100))) for minute in range(10_000)]
    cluster.logs[FIRST.store_id], cluster.per_fetch = log, 100
    spec = Specific({"demo": {FIRST: at(55), SECOND: Edge.LATEST}})
    search = searching(cluster)
    assert search.begin(spec, option="startingTimestamp", if_none=None) == Specific(
        {"demo": {FIRST: 28 * 5_500, SECOND: Edge.LATEST}}
    )
    first = cluster.fetches
    search.end(spec, option="endingTimestamp")
    assert (first, cluster.fetches - first) <= (19, 3)


def test_partitions_without_messages_are_searched_once(cluster):
    """A look for one passes over the store no further than the next look."""
    cluster = MemoryCluster(demo=(1, 2))
    other = TopicPartition("demo", 1, 1)
    cluster.logs[FIRST.store_id] = [(FIRST, (b"value", text(minute))) for minute in range(1_000)]
    cluster.per_fetch = 10
    with pytest.raises(OptionError) as refused:
        resolve(cluster, Specific({"demo": {FIRST: Edge.LATEST, other: at(5)}}))
    assert refused.value.condition == "TUBEMQ_NO_RECORD_OF_TIME"
    assert cluster.fetches <= 2 * 100


def test_one_warning_tells_how_far_times_go_back_and_what_to_do(cluster, caplog):
    minutes = [*range(120, 180), *range(60), *range(60, 120)]
    cluster.logs[FIRST.store_id] = [(FIRST, (b"value", text(minute))) for minute in minutes]
    cluster.logs[SECOND.store_id] += [(SECOND, (b"value", text(59 - minute))) for minute in range(2)]
    cluster.per_fetch = 10
    search, spec = searching(cluster), Specific({"demo": {FIRST: at(60), SECOND: at(55)}})
    begin = search.begin(spec, option="startingTimestamp", if_none=None)
    fetches = cluster.fetches
    finish = search.end(spec, option="endingTimestamp")

    assert begin == Specific({"demo": {FIRST: 0, SECOND: 28 * 5}})
    assert finish == Specific({"demo": {FIRST: 28 * 180, SECOND: 28 * 5}})
    (warning,) = caplog.messages
    assert (
        "'startingTimestamp': in demo/1:0, times go back by up to 165 minutes, so the range has 330"
        in warning
    )
    assert f"That is what {fetches} fetches have shown" in warning
    assert warning.endswith("farther out of order: do this")


def test_an_empty_partition_is_no_reason_for_a_warning(cluster, caplog):
    cluster.logs[SECOND.store_id].clear()
    assert resolve(cluster, at(5), if_none=Edge.LATEST) == Specific(
        {"demo": {FIRST: 28 * 5, SECOND: Edge.LATEST}}
    )
    assert end(cluster, at(5)) == Specific({"demo": {FIRST: 28 * 5, SECOND: 0}})
    assert not caplog.records


def test_messages_without_times_where_a_range_begins_are_told(cluster, caplog):
    log = cluster.logs[FIRST.store_id]
    log[50:] = [(FIRST, (b"value", None))] * 10_000
    cluster.per_fetch = 5
    found = resolve(cluster, Specific({"demo": {FIRST: at(70), SECOND: Edge.LATEST}}))
    assert 28 * 50 <= found.topics["demo"][FIRST] < 28 * 55
    (warning,) = caplog.messages
    assert "in demo/1:0, many messages carry no time, so the range has them all" in warning


@pytest.mark.parametrize(("hour", "earliest"), [(4, 0), (5, 60), (6, 60), (7, 180)])
def test_in_the_hour_that_a_zone_shows_twice_nothing_is_missed(cluster, hour, earliest):
    """New York sets its clocks back at 06:00 UTC; a text of 01:xx means two times."""
    zone, midnight = (
        zoneinfo.ZoneInfo("America/New_York"),
        datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
    )
    moments = [midnight + datetime.timedelta(minutes=minute) for minute in range(4 * 60, 8 * 60)]
    texts = [f"$msgTime$={moment.astimezone(zone):%Y%m%d%H%M}" for moment in moments]
    cluster.logs[FIRST.store_id] = [(FIRST, (b"value", made)) for made in texts]
    wanted = Timestamp(int((midnight + datetime.timedelta(hours=hour)).timestamp() * 1000))
    spec = Specific({"demo": {FIRST: wanted, SECOND: Edge.LATEST}})
    assert resolve(cluster, spec, zone=zone.key) == Specific(
        {"demo": {FIRST: 28 * earliest, SECOND: Edge.LATEST}}
    )
    latest = 180 if hour == 6 else earliest
    search = searching(cluster, zone.key)
    assert search.end(spec, option="endingTimestamp") == Specific(
        {"demo": {FIRST: 28 * latest, SECOND: Edge.LATEST}}
    )
