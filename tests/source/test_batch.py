"""The batch source plans exactly the records between two positions."""

import json
import pickle

import pytest

from tests.source.fake_cluster import NO_ANSWER, partition
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.source.schema import default_schema


def plan(**options):
    """Return the planned ranges, as texts, of a reader that was made and copied as Spark does."""
    given = {"tubemq.master.servers": "master:8715", "subscribe": "demo"}
    reader = TubeMQDataSource(given | options).reader(default_schema(include_attributes=False))
    tasks = pickle.loads(pickle.dumps(reader)).partitions()
    return [str(work.range) for task in tasks for work in task.requests]


def offsets(**changes):
    return json.dumps({"demo": {"1:0": 56, "1:10000": -2, "1:20000": 84, "1:20001": -1} | changes})


def test_all_records_are_read_by_default(cluster):
    assert plan() == [
        "demo/1:0 [0, 140)",
        "demo/1:10000 [0, 196)",
        "demo/1:20000 [0, 252)",
        "demo/1:20001 [0, 252)",
    ]


def test_the_words_in_offsets_are_the_ends_of_the_log(cluster):
    assert plan(startingoffsets=offsets(**{"1:20001": 28})) == [
        "demo/1:0 [56, 140)",
        "demo/1:10000 [0, 196)",
        "demo/1:20000 [84, 252)",
        "demo/1:20001 [28, 252)",
    ]
    ends = offsets(**{"1:10000": 28})
    assert plan(endingoffsets=ends) == [
        "demo/1:0 [0, 56)",
        "demo/1:10000 [0, 28)",
        "demo/1:20000 [0, 84)",
        "demo/1:20001 [0, 252)",
    ]


def test_a_start_behind_the_end_is_a_mistake_also_at_the_end_of_the_log(cluster):
    cluster.partitions, cluster.earliest = {partition(0)}, 28
    ends = json.dumps({"demo": {"1:0": 56}})
    for start in ({"1:0": 84}, {"1:0": 140}):
        with pytest.raises(OptionError) as refused:
            plan(startingoffsets=json.dumps({"demo": start}), endingoffsets=ends)
        assert refused.value.condition == "TUBEMQ_START_AFTER_END"


def test_an_empty_range_is_no_task(cluster):
    everywhere = dict.fromkeys(("1:0", "1:10000", "1:20000", "1:20001"), 28)
    same = json.dumps({"demo": everywhere})

    assert plan(startingoffsets=same, endingoffsets=same) == []


def test_a_batch_read_may_be_limited_to_flushed_records(cluster):
    cluster.partitions, cluster.unflushed = {partition(0)}, {0: 2}
    assert plan(visibility="flushed") == ["demo/1:0 [0, 84)"]

    def at(offset):
        return json.dumps({"demo": {"1:0": offset}})

    assert plan(visibility="flushed", startingoffsets=at(56), endingoffsets=at(84)) == ["demo/1:0 [56, 84)"]
    assert plan(visibility="flushed", startingoffsets=at(112)) == [], "it is there, and not visible"
    with pytest.raises(OptionError, match=r"OFFSET_NOT_FLUSHED\] .* offset 112 .* before 84 "):
        plan(visibility="flushed", endingoffsets=at(112))
    with pytest.raises(OptionError, match="OFFSET_BEYOND_LOG"):
        plan(visibility="flushed", startingoffsets=at(168))
    assert plan(visibility="memory", endingoffsets=at(112)) == ["demo/1:0 [0, 112)"]


def test_records_that_retention_removed_are_a_loss_or_skipped(cluster):
    cluster.partitions, cluster.earliest = {partition(0)}, 84
    start = json.dumps({"demo": {"1:0": 28}})

    with pytest.raises(TubeMQError) as lost:
        plan(startingoffsets=start)
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.EXPIRED"
    assert plan(startingoffsets=start, failondataloss="false") == ["demo/1:0 [84, 140)"]


def test_spark_s_bare_partition_has_no_rows():
    """It sends one when nothing was planned."""
    given = {"tubemq.master.servers": "master:8715", "subscribe": "demo"}

    assert list(TubeMQDataSource(given).reader(default_schema(include_attributes=False)).read(None)) == []


def test_a_batch_read_from_earliest_begins_at_the_first_record_that_can_be_read(cluster):
    cluster.partitions, cluster.unreadable = {partition(0)}, {0: 3}

    assert plan() == ["demo/1:0 [84, 140)"]
    assert plan(startingoffsets=json.dumps({"demo": {"1:0": 28}})) == ["demo/1:0 [28, 140)"]
    assert plan(endingoffsets=json.dumps({"demo": {"1:0": 56}})) == []


def test_a_batch_read_asks_again_for_the_first_record_that_can_be_read(cluster, clock):
    cluster.partitions, cluster.unreadable = {partition(0)}, {0: 3}
    cluster.first_readable_fails = [NO_ANSWER]

    assert plan() == ["demo/1:0 [84, 140)"]


def test_a_batch_read_whose_offsets_will_be_null_says_so(cluster, caplog):
    plan()
    assert "column 'offset' is null in rows of topic demo" in caplog.text
    caplog.clear()
    cluster.partitions = {partition(0)}
    plan()
    assert caplog.text == ""
