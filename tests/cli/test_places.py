"""Places that arguments name, in partitions whose message times are out of order."""

from tests.memory_cluster import MemoryCluster
from tubemq_spark.cli.places import offsets_at, parse_place
from tubemq_spark.model import TopicPartition

PARTITION = TopicPartition("demo", 1, 0)


def test_an_offset_beyond_all_ends_is_told(capsys):
    """It may be a time in milliseconds, of which nothing would come."""
    cluster = MemoryCluster(demo=(2, 1))
    layout = cluster.layout(["demo"])
    for partition, count in zip(sorted(layout.partitions), (1, 3), strict=True):
        cluster.logs[partition.store_id] = [(partition, (b"value", ""))] * count
    bounds = cluster.bounds(layout).by_store
    ends = {partition: bounds[partition.store_id].latest for partition in layout.partitions}

    def told(place, **how):
        offsets = offsets_at(cluster, layout, bounds, place, "--from", "UTC", **how)
        assert offsets == {partition: min(place, end) for partition, end in ends.items()}
        return capsys.readouterr().err

    assert (
        "--from 1769860800000 is an offset beyond the end of each partition, and counts as the end; offsets "
        "rise by 28 with each message, and a time is 2026-01-31T12:00 or "
    ) in told(1769860800000)
    assert told(84) == ""
    assert told(1769860800000, ending=True) == ""


def test_the_warning_about_times_names_no_argument_that_only_some_commands_have(caplog):
    cluster = MemoryCluster(demo=(1, 1))
    hours = [2] * 60 + [0] * 60 + [1] * 60
    cluster.logs[PARTITION.store_id] = [
        (PARTITION, (b"value", f"$msgTime$=20260101{hour:02}00")) for hour in hours
    ]
    cluster.per_fetch = 10
    layout = cluster.layout(["demo"])
    bounds = cluster.bounds(layout).by_store
    place = parse_place("2026-01-01T01:00")
    assert offsets_at(cluster, layout, bounds, place, "--at", "UTC") == {PARTITION: 0}
    (warning,) = caplog.messages
    assert "option '--at': in demo/1:0, times go back by up to 120 minutes" in warning
    assert "--from" not in warning
    assert "consume --json" in warning
