"""Offsets and times that do not fit the topic are refused when a read is planned, with what there is."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.source.fake_cluster import partition
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError
from tubemq_spark.source.schema import default_schema

SCHEMA = default_schema(include_attributes=False)
THESE = "demo/1:0, demo/1:10000, demo/1:20000, demo/1:20001"
EVERYWHERE = {"1:0": 0, "1:10000": 0, "1:20000": 0, "1:20001": 0}


def plan_batch(options):
    TubeMQDataSource(options).reader(SCHEMA).partitions()


def plan_stream(options):
    reader = TubeMQDataSource(options).streamReader(SCHEMA)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


PLANS = {"batch": plan_batch, "stream": plan_stream}


def refusal(plan, **options):
    given = {"tubemq.master.servers": "master:8715", "subscribe": "demo"} | options
    with pytest.raises(OptionError) as refused:
        plan({name.lower(): text for name, text in given.items()})
    return str(refused.value)


def demo(**offsets):
    return json.dumps({"demo": EVERYWHERE | offsets})


def without(name):
    return json.dumps({"demo": {key: value for key, value in EVERYWHERE.items() if key != name}})


OFFSETS_AND_TIMES = ("startingOffsets", "startingOffsetsByTimestamp")


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("option", OFFSETS_AND_TIMES)
@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        (demo(**{"1:9": 0}), "demo/1:9"),
        (demo(**{"7:0": 0}), "demo/7:0"),
        (json.dumps({"demo": EVERYWHERE, "orders": {"1:0": 0}}), "topic orders"),
    ],
    ids=["partition", "broker", "topic"],
)
def test_partitions_that_do_not_exist(cluster, plan, option, text, unknown):
    assert refusal(plan, **{option: text}) == (
        f"[TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS] Option '{option}' names partitions that do not exist: "
        f"{unknown}; these exist: {THESE}. Name all of these, and no others."
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(
    ("option", "how"),
    [
        ("startingOffsets", "with -2 for earliest or -1 for latest"),
        ("startingOffsetsByTimestamp", "each with its time"),
    ],
)
def test_partitions_that_are_not_named(cluster, plan, option, how):
    assert refusal(plan, **{option: without("1:20000")}) == (
        f"[TUBEMQ_OFFSETS_MISSING_PARTITIONS] Option '{option}' does not name all partitions of the topics; "
        f"add demo/1:20000, {how}."
    )


@pytest.mark.parametrize(
    ("option", "how"),
    [
        ("endingOffsets", "with -1 for latest"),
        ("endingOffsetsByTimestamp", "each with its time"),
    ],
)
def test_an_end_names_the_same_partitions(cluster, option, how):
    assert refusal(plan_batch, **{option: without("1:0")}) == (
        f"[TUBEMQ_OFFSETS_MISSING_PARTITIONS] Option '{option}' does not name all partitions of the topics; "
        f"add demo/1:0, {how}."
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_an_offset_beyond_the_log(cluster, plan):
    assert refusal(plan, startingOffsets=demo(**{"1:10000": 28 * 8})) == (
        "[TUBEMQ_OFFSET_BEYOND_LOG] Option 'startingOffsets' asks for offset 224 of demo/1:10000, but "
        "its log has offsets from 0 to 196; choose one of these."
    )


def test_an_end_beyond_the_log(cluster):
    assert "'endingOffsets' asks for offset 168 of demo/1:0" in refusal(
        plan_batch, endingOffsets=demo(**{"1:0": 28 * 6})
    )


def test_a_start_after_the_end(cluster):
    starts, ends = demo(**{"1:0": 56, "1:10000": 84}), demo(**{"1:0": 84, "1:10000": 28})
    assert refusal(plan_batch, startingOffsets=starts, endingOffsets=ends) == (
        "[TUBEMQ_START_AFTER_END] demo/1:10000 would start at offset 84 and end before it, at 28; "
        "choose an earlier start or a later end."
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_partition_that_is_assigned_and_does_not_exist(cluster, plan):
    cluster.partitions = {partition(0), partition(10_000)}
    options = {
        "tubemq.master.servers": "master:8715",
        "assign": '{"demo":["1:0","1:1"]}',
        "startingoffsets": "earliest",
    }
    with pytest.raises(OptionError) as refused:
        plan(options)
    assert str(refused.value) == (
        "[TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS] Option 'assign' names partitions that do not exist: demo/1:1; "
        "these exist: demo/1:0, demo/1:10000. Leave the others out."
    )
