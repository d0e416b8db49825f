"""The streaming source's answers to Spark, over a cluster without servers."""

import json
import pickle
import threading

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.source.fake_cluster import NO_ANSWER, partition
from tests.waiting import wait_until
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import (
    DataLossError,
    LocalProtocolError,
    OptionError,
    RpcError,
    TubeMQConnectionError,
)
from tubemq_spark.protocol.errcodes import rpc_error
from tubemq_spark.source import stream_driver
from tubemq_spark.source.schema import default_schema

NOT_HERE = rpc_error(403, "no such topic here", peer="broker", during="testing")
SCHEMA = default_schema(include_attributes=False)
EVERYTHING = ReadAllAvailable()


def reader(schema=SCHEMA, **options):
    """Return a stream reader, made and copied as Spark does."""
    given = {"tubemq.master.servers": "master:8715", "subscribe": "demo", "startingoffsets": "earliest"}
    wanted = {name: value for name, value in (given | options).items() if value is not None}
    made = TubeMQDataSource(wanted).streamReader(schema)
    return pickle.loads(pickle.dumps(made))


def begun(**options):
    """Return a stream reader, and where its first micro-batch ends."""
    stream = reader(**options)
    return stream, stream.latestOffset(stream.initialOffset(), EVERYTHING)


def text(offset):
    """Return an offset as Spark compares and keeps it."""
    return json.dumps(offset)


def planned(stream, start, end):
    """Return what the tasks of a micro-batch read."""
    return [work for task in stream.partitions(start, end) for work in task.requests]


def rows(stream, start, end):
    """Return how many rows of the stores a micro-batch has, counting shared stores for each partition."""
    return {
        work.range.partition.partition_id: (work.range.end - work.range.start) // 28
        for work in planned(stream, start, end)
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


def test_few_rows_wait_for_others(cluster, clock):
    """The first micro-batch takes what is there, whatever the minimum."""
    stream = reader(minoffsetspertrigger="4", maxtriggerdelay="10s")
    limit = stream.getDefaultReadLimit()
    begin = stream.initialOffset()

    end = stream.latestOffset(begin, limit)
    assert rows(stream, begin, end) == {0: 5, 10_000: 7, 20_000: 9, 20_001: 9}
    cluster.rows[0] += 3
    clock[0] += 5
    assert text(stream.latestOffset(end, limit)) == text(end)
    cluster.rows[1] += 1
    clock[0] += 1
    later = stream.latestOffset(end, limit)
    assert rows(stream, end, later) == {0: 3, 10_000: 1}


def test_few_rows_wait_for_the_longest_delay_only(cluster, clock):
    stream = reader(minoffsetspertrigger="100", maxtriggerdelay="10s")
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(stream.initialOffset(), limit)
    cluster.rows[0] += 1
    clock[0] += 9.75
    assert text(stream.latestOffset(end, limit)) == text(end)

    clock[0] += 0.25
    later = stream.latestOffset(end, limit)

    assert rows(stream, end, later) == {0: 1}
    assert stream.latestOffset(end, limit) == later, "what was told once is not taken back"
    cluster.rows[0] += 1
    clock[0] += 9.9
    assert text(stream.latestOffset(later, limit)) == text(later), "the delay begins anew"


def test_a_partition_that_appears_does_not_make_rows_wait_longer(cluster, clock):
    stream = reader(minoffsetspertrigger="100", maxtriggerdelay="100s")
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(stream.initialOffset(), limit)
    cluster.rows |= {0: 6, 3: 0}
    cluster.partitions.add(partition(30_000))
    clock[0] += 60

    second = stream.latestOffset(first, limit)
    assert text(second) != text(first)
    assert rows(stream, first, second) == {}
    clock[0] += 50
    assert rows(stream, second, stream.latestOffset(second, limit)) == {0: 1}


def test_a_minimum_and_a_maximum_go_together(cluster, clock):
    stream = reader(minoffsetspertrigger="8", maxoffsetspertrigger="10")
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(stream.initialOffset(), limit)
    assert rows(stream, stream.initialOffset(), end) == {0: 2, 10_000: 3, 20_000: 4, 20_001: 4}
    clock[0] += 1
    second = stream.latestOffset(end, limit)
    assert rows(stream, end, second) == {0: 2, 10_000: 3, 20_000: 4, 20_001: 4}
    clock[0] += 1
    assert text(stream.latestOffset(second, limit)) == text(second), "three rows are left"


def test_bytes_limit_a_micro_batch(cluster, clock):
    """Alone, and together with rows; the smaller share counts."""
    cluster.rows, cluster.row_bytes = dict.fromkeys(cluster.rows, 100), {0: 10, 1: 20, 2: 70}
    stream = reader(maxbytespertrigger="1000")
    limit = stream.getDefaultReadLimit()
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, limit)
    assert rows(stream, begin, end) == dict.fromkeys((0, 10_000, 20_000, 20_001), 10)
    clock[0] += 1
    assert rows(stream, end, stream.latestOffset(end, limit)) == dict.fromkeys(
        (0, 10_000, 20_000, 20_001), 10
    )

    both = reader(maxbytespertrigger="1000", maxoffsetspertrigger="15")
    end = both.latestOffset(begin, both.getDefaultReadLimit())
    assert rows(both, begin, end) == dict.fromkeys((0, 10_000, 20_000, 20_001), 5)


def test_a_minimum_of_rows_goes_with_a_limit_of_bytes(cluster, clock):
    stream = reader(maxbytespertrigger="1000000", minoffsetspertrigger="4")
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(stream.initialOffset(), limit)
    cluster.rows[0] += 3
    clock[0] += 5
    assert text(stream.latestOffset(end, limit)) == text(end)
    cluster.rows[0] += 1
    clock[0] += 1
    assert rows(stream, end, stream.latestOffset(end, limit)) == {0: 4}


def test_triggers_that_take_everything_pay_no_heed_to_bytes(cluster):
    stream = reader(maxbytespertrigger="1")
    begin = stream.initialOffset()
    cluster.reads_fail = dict.fromkeys(cluster.rows, NOT_HERE)
    end = stream.latestOffset(begin, EVERYTHING)
    assert rows(stream, begin, end) == {0: 5, 10_000: 7, 20_000: 9, 20_001: 9}


def test_a_store_whose_rows_cannot_be_looked_at_waits_for_the_next_time(cluster, clock):
    """But not in a run of AvailableNow, which is not over before it has read all stores."""
    stream = reader(maxbytespertrigger="1000000")
    limit = stream.getDefaultReadLimit()
    begin = stream.initialOffset()
    cluster.reads_fail = {0: NOT_HERE}
    end = stream.latestOffset(begin, limit)
    assert rows(stream, begin, end) == {10_000: 7, 20_000: 9, 20_001: 9}
    assert text(stream.latestOffset(end, limit)) == text(end)

    run = reader(maxbytespertrigger="1000000")
    run.prepareForTriggerAvailableNow()
    assert rows(run, end, run.latestOffset(end, limit)) == {0: 5}

    cluster.reads_fail = {}
    assert rows(stream, end, stream.latestOffset(end, limit)) == {0: 5}, "without anything else that is new"


def test_available_now_fails_when_records_before_its_target_are_gone(cluster, clock):
    """Also where losses are tolerated; started again, the query goes on with what there is."""
    options = {"failondataloss": "false", "maxoffsetspertrigger": "4"}
    stream = reader(**options)
    limit = stream.getDefaultReadLimit()
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), limit)
    cluster.rows[1] -= 1
    clock[0] += 10
    with pytest.raises(DataLossError, match=r"AVAILABLE_NOW\.MOVED_BACK\] demo/1:10000"):
        stream.latestOffset(end, limit)
    cluster.partitions.remove(partition(0))
    clock[0] += 60
    again = reader(**options)
    again.prepareForTriggerAvailableNow()
    assert rows(again, end, again.latestOffset(end, EVERYTHING))[10_000] == 5

    stream = reader(**options)
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), limit)
    cluster.partitions.remove(partition(10_000))
    clock[0] += 60
    with pytest.raises(DataLossError, match=r"AVAILABLE_NOW\.PARTITION_LOST\] demo/1:10000"):
        stream.latestOffset(end, limit)


def flushed_reader(**options):
    return reader(visibility="flushed", **options)


def test_a_stream_of_flushed_records_reads_no_other_records(cluster, clock):
    cluster.unflushed = {0: 2, 1: 7}
    stream = flushed_reader()
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, EVERYTHING)
    assert rows(stream, begin, end) == {0: 3, 20_000: 9, 20_001: 9}
    assert stream.reportLatestOffset() == {"v": 1, "topics": end["topics"]}

    cluster.unflushed = {1: 1}
    clock[0] += 10
    assert rows(stream, end, stream.latestOffset(end, EVERYTHING)) == {0: 2, 10_000: 6}


def test_latest_is_the_end_of_the_flushed_records(cluster, clock):
    """So a row that a crash may take is read when it can no longer be taken."""
    cluster.unflushed = {0: 2}
    stream = flushed_reader(startingoffsets="latest")
    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    assert rows(stream, stream.initialOffset(), end) == {}
    cluster.unflushed = {}
    clock[0] += 10
    assert rows(stream, end, stream.latestOffset(end, EVERYTHING)) == {0: 2}


def test_a_query_that_has_read_from_memory_waits_for_the_disk(cluster, clock):
    """It neither loses nor repeats a row, and its offsets do not go back."""
    _, end = begun()
    cluster.unflushed = {0: 4, 2: 9}
    clock[0] += 10

    stream = flushed_reader()
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)
    cluster.rows |= {0: 8, 1: 9}
    clock[0] += 10
    later = stream.latestOffset(end, EVERYTHING)
    assert rows(stream, end, later) == {10_000: 2}
    cluster.unflushed = {0: 1}
    clock[0] += 10
    assert rows(stream, later, stream.latestOffset(later, EVERYTHING)) == {0: 2}


def test_a_partition_that_lags_is_not_read_beyond_the_disk_because_another_was(cluster, clock):
    """They share a store, of which one has read more than is on the disk."""
    cluster.unflushed = {2: 4}
    cluster.partitions = {partition(20_000), partition(20_001)}
    offsets = json.dumps({"demo": {"1:20000": 28 * 8, "1:20001": 28 * 2}})
    stream = flushed_reader(startingoffsets=offsets)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, EVERYTHING)
    assert rows(stream, begin, end) == {20_001: 3}
    clock[0] += 10
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)


def test_records_that_are_lost_are_found_although_only_the_disk_is_read(cluster, clock):
    _, end = begun()
    cluster.rows[0], cluster.unflushed = 3, {0: 1}
    clock[0] += 10
    with pytest.raises(DataLossError, match=r"MOVED_BACK\] demo/1:0"):
        flushed_reader().latestOffset(end, EVERYTHING)


def test_available_now_ends_where_the_disk_does(cluster, clock):
    cluster.unflushed = {0: 2}
    stream = flushed_reader(maxoffsetspertrigger="1000")
    stream.prepareForTriggerAvailableNow()
    cluster.unflushed = {}
    clock[0] += 10
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    assert rows(stream, begin, end)[0] == 3
    clock[0] += 10
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)


def test_a_broker_that_goes_between_two_questions_about_one_store_is_away(cluster, clock):
    _, end = begun()
    cluster.unflushed = {0: 2}
    clock[0] += 10
    stream = flushed_reader()
    asked = cluster.bounds

    def go_after_the_first(layout, stores=None, *, flushed=False, timeout_ms=None):
        cluster.failing = {} if flushed else {0: NOT_HERE}
        return asked(layout, stores, flushed=flushed, timeout_ms=timeout_ms)

    cluster.bounds = go_after_the_first
    assert text(stream.latestOffset(end, EVERYTHING)) == text(end)


def test_memory_is_asked_for_only_where_a_query_has_read_beyond_the_disk(cluster, clock):
    stream = flushed_reader()
    end = stream.latestOffset(stream.initialOffset(), EVERYTHING)
    assert cluster.questions == 2
    clock[0] += 10
    stream.latestOffset(end, EVERYTHING)
    assert cluster.questions == 3


def test_triggers_that_take_everything_wait_for_no_other_rows(cluster, clock):
    """``once`` asks for all there is, and ``availableNow`` has to come to its end."""
    stream = reader(minoffsetspertrigger="100")
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    cluster.rows[0] += 1
    clock[0] += 1
    assert rows(stream, end, stream.latestOffset(end, EVERYTHING)) == {0: 1}

    again = reader(minoffsetspertrigger="100")
    again.latestOffset(end, again.getDefaultReadLimit())
    again.prepareForTriggerAvailableNow()
    assert rows(again, end, again.latestOffset(end, again.getDefaultReadLimit())) == {0: 1}


@pytest.mark.parametrize(("available_now", "waited_ms"), [(False, 1000), (True, 10_000)])
def test_available_now_waits_for_brokers_and_other_triggers_do_not(cluster, clock, available_now, waited_ms):
    stream, end = begun()
    if available_now:
        stream.prepareForTriggerAvailableNow()
    cluster.hanging = {1}
    clock[0] += 1
    stream.latestOffset(end, EVERYTHING)
    assert cluster.waited_ms == waited_ms


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
    stream, first = begun()
    cluster.partitions.add(partition(30_000))
    cluster.rows[3] = 4
    clock[0] += 20

    second = stream.latestOffset(first, EVERYTHING)

    assert rows(stream, first, second) == {30_000: 4}
    assert text(stream.latestOffset(second, EVERYTHING)) == text(second)


def test_a_micro_batch_ends_at_offsets(cluster):
    begin = reader().initialOffset()
    with pytest.raises(LocalProtocolError, match="a micro-batch ends at"):
        reader().partitions(begin, begin)


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
def test_a_wrong_option_or_schema_is_refused_at_the_first_question(schema, options, condition):
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


def gone_at_the_beginning(cluster, rows, **options):
    """Return a stream over one store that begins with entries whose data expired before their index."""
    cluster.partitions, cluster.unreadable = {partition(0)}, {0: rows}
    return reader(**options)


def test_a_stream_begins_at_the_first_record_that_can_be_read(cluster, clock):
    """Else the broker passes over what is gone in the middle of a planned range, which looks like a loss."""
    stream = gone_at_the_beginning(cluster, 3)
    begin = stream.initialOffset()

    end = stream.latestOffset(begin, ReadMaxRows(1))

    assert end["from"] == {"demo": {"1:0": 84}}
    assert [str(work.range) for work in planned(stream, begin, end)] == ["demo/1:0 [84, 112)"]
    clock[0] += 1
    later = stream.latestOffset(end, ReadMaxRows(1))
    assert [str(work.range) for work in planned(stream, end, later)] == ["demo/1:0 [112, 140)"]


def test_the_replay_of_a_micro_batch_is_the_same_in_a_new_driver(cluster, clock):
    """Spark asks for a repeated batch's partitions before anything else, whatever has changed since."""
    stream = gone_at_the_beginning(cluster, 3)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadMaxRows(1))
    before = planned(stream, begin, end)
    cluster.partitions.add(partition(1))

    again = planned(reader(), begin, end)

    assert [(work.range, work.own_store) for work in again] == [
        (work.range, work.own_store) for work in before
    ]


def test_a_partition_behind_retention_goes_on_at_the_first_readable_record(cluster, clock):
    stream = gone_at_the_beginning(cluster, 4, failondataloss="false")
    cluster.earliest = 56
    behind = {"v": 1, "topics": {"demo": {"1:0": 28}}}

    end = stream.latestOffset(behind, ReadMaxRows(1))

    assert end["topics"] == {"demo": {"1:0": 140}}


def test_a_partition_added_to_a_busy_store_does_not_starve_it(cluster, clock):
    """It used to begin at the store's earliest offset, and old rows of others took most of every trigger."""
    cluster.partitions, cluster.rows = {partition(0)}, {0: 1_000_000}
    stream, first = begun()
    cluster.partitions.add(partition(1))
    cluster.rows[0] += 10
    clock[0] += 11

    second = stream.latestOffset(first, ReadMaxRows(10))

    assert rows(stream, first, second) == {0: 10, 1: 10}


def test_a_partition_added_while_records_come_is_planned_with_them(cluster, clock):
    """Its store is not the first partition's own any more, and records of both are in the range."""
    cluster.partitions, cluster.rows = {partition(0)}, {0: 5}
    stream, first = begun()
    cluster.rows[0] += 4
    clock[0] += 1
    cluster.before_layout = [lambda: cluster.partitions.add(partition(1))]

    second = stream.latestOffset(first, EVERYTHING)

    work = planned(stream, first, second)
    assert {one.range.partition for one in work} == {partition(0), partition(1)}
    assert not any(one.own_store for one in work)


def test_a_topic_that_was_removed_is_a_loss(cluster, clock):
    stream = reader(subscribe="demo,other")
    cluster.partitions = {partition(0), partition(0, "other")}
    cluster.rows = {0: 5}
    start = {"v": 1, "topics": {"demo": {"1:0": 0}, "other": {"1:0": 28}}}
    cluster.removed = {"other"}

    with pytest.raises(DataLossError) as lost:
        stream.latestOffset(start, EVERYTHING)
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"
    assert "other" in str(lost.value)

    tolerant = reader(subscribe="demo,other", failondataloss="false")
    end = tolerant.latestOffset(start, EVERYTHING)
    assert end["topics"] == {"demo": {"1:0": 140}}
    assert rows(tolerant, start, end) == {0: 5}


@pytest.mark.parametrize(("is_removed", "loss"), [(True, "TOPIC_REMOVED"), (False, "MOVED_BACK")])
def test_a_topic_that_its_broker_has_deleted_before_the_master_counts_as_removed(
    cluster, clock, is_removed, loss
):
    """Until the master has deleted it too, it looks like one that was created again."""
    stream = reader(subscribe="demo,other")
    cluster.partitions = {partition(0), partition(0, "other")}
    cluster.rows = {0: 0}
    if is_removed:
        cluster.before_layout = [*[lambda: None] * 5, lambda: cluster.removed.add("demo")]
    start = {"v": 1, "topics": {"demo": {"1:0": 28}, "other": {"1:0": 28}}}

    with pytest.raises(DataLossError) as lost:
        stream.latestOffset(start, EVERYTHING)
    assert lost.value.condition == f"TUBEMQ_DATA_LOSS.{loss}"
    assert "demo" in str(lost.value)


def test_a_topic_that_is_unlisted_and_empty_before_it_is_missing_counts_as_removed(cluster, clock):
    """The last steps of a removal: the master drops the partitions first, then the topic."""
    stream = reader(subscribe="demo,other")
    cluster.partitions = {partition(0), partition(0, "other")}
    cluster.rows = {0: 0}
    cluster.before_layout = [lambda: None, lambda: cluster.partitions.discard(partition(0))]
    start = {"v": 1, "topics": {"demo": {"1:0": 28}, "other": {"1:0": 0}}}

    with pytest.raises(DataLossError) as lost:
        stream.latestOffset(start, EVERYTHING)
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"


def test_a_checkpoint_with_a_topic_that_is_not_subscribed_to_is_no_data_loss(cluster):
    """The topic exists, and advice to ignore losses would be bad advice."""
    start = {"v": 1, "topics": {"demo": {"1:0": 0}, "other": {"1:0": 28}}}
    end = {"v": 1, "topics": {"demo": {"1:0": 28}, "other": {"1:0": 56}}}

    for question in (
        lambda stream: stream.latestOffset(start, EVERYTHING),
        lambda stream: stream.partitions(start, end),
    ):
        with pytest.raises(OptionError) as refused:
            question(reader())
        assert refused.value.condition == "TUBEMQ_CHECKPOINT_TOPICS"
        assert "also read other, which the option 'subscribe' no longer names" in str(refused.value)


def test_a_topic_is_dropped_from_a_query_when_that_is_allowed(cluster, caplog):
    start = {"v": 1, "topics": {"demo": {"1:0": 0}, "other": {"1:0": 28}}}
    end = {"v": 1, "topics": {"demo": {"1:0": 28}, "other": {"1:0": 56}}}
    cluster.partitions = {partition(0)}
    stream = reader(failondataloss="false")

    assert "other" not in stream.latestOffset(start, EVERYTHING)["topics"]
    assert rows(stream, start, end) == {0: 1}
    assert [record.getMessage() for record in caplog.records] == [
        "what the checkpoint has and the query no longer reads: other"
    ]


def assigned(*keys, **options):
    text = json.dumps({"demo": list(keys)})
    return reader(subscribe=None, assign=text, **options)


def test_only_assigned_partitions_are_read(cluster):
    stream = assigned("1:0", "1:20001")
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, EVERYTHING)
    assert rows(stream, begin, end) == {0: 5, 20_001: 9}
    own_store = {
        request.range.partition.partition_id: request.own_store
        for task in stream.partitions(begin, end)
        for request in task.requests
    }
    assert own_store == {0: True, 20_001: False}, "another partition is in its store"


def test_a_partition_added_to_an_assignment_is_read_from_its_beginning(cluster, clock):
    start = assigned("1:20000").latestOffset(assigned("1:20000").initialOffset(), EVERYTHING)
    more = assigned("1:20000", "1:20001")
    assert rows(more, start, more.latestOffset(start, EVERYTHING)) == {20_001: 9}


def test_a_subscription_reads_what_an_assignment_left_out(cluster, clock):
    """The store's other partition was there all the time; it is not one that has just been created."""
    start = assigned("1:20000").latestOffset(assigned("1:20000").initialOffset(), EVERYTHING)
    everything = reader()

    end = everything.latestOffset(start, EVERYTHING)

    assert rows(everything, start, end) == {0: 5, 10_000: 7, 20_001: 9}
    cluster.partitions.add(partition(20_002))
    cluster.rows[2] += 1
    clock[0] += 20
    later = everything.latestOffset(end, EVERYTHING)
    assert rows(everything, end, later) == {20_000: 1, 20_001: 1, 20_002: 1}, "this one has been created"


def test_a_subscription_repeats_a_micro_batch_of_an_assignment_as_it_was(cluster):
    """A store with a partition that was left out is a shared one for both."""
    first = assigned("1:20000")
    begin = first.initialOffset()
    end = first.latestOffset(begin, EVERYTHING)

    assert [work.own_store for work in planned(first, begin, end)] == [False]
    assert [work.own_store for work in planned(reader(), begin, end)] == [False]


def test_a_partition_left_out_of_an_assignment_is_named(cluster, clock):
    first = assigned("1:0", "1:10000")
    start = first.latestOffset(first.initialOffset(), EVERYTHING)
    with pytest.raises(OptionError, match="also read demo/1:10000, which the option 'assign'"):
        assigned("1:0").latestOffset(start, EVERYTHING)
    less = assigned("1:0", failondataloss="false")
    assert set(less.latestOffset(start, EVERYTHING)["topics"]["demo"]) == {"1:0"}
    assert clock == [1000.0], "it is there, and is not waited for as one that is being removed"


def test_a_topic_that_is_waited_for_is_read_from_its_beginning(cluster, clock):
    cluster.removed = {"demo"}
    with pytest.raises(RpcError):
        reader().latestOffset(reader().initialOffset(), EVERYTHING)
    stream, first = begun(waitfortopics="true", startingoffsets="latest")
    assert first["topics"] == {}
    cluster.removed = set()
    clock[0] += 20

    assert rows(stream, first, stream.latestOffset(first, EVERYTHING)) == {
        0: 5,
        10_000: 7,
        20_000: 9,
        20_001: 9,
    }


def test_a_topic_that_begins_to_match_is_read_from_its_beginning(cluster, clock):
    cluster.removed = {"demo"}
    stream, first = begun(subscribe=None, subscribepattern="de.*", startingoffsets="latest")
    cluster.removed = set()
    clock[0] += 20

    assert rows(stream, first, stream.latestOffset(first, EVERYTHING)) == {
        0: 5,
        10_000: 7,
        20_000: 9,
        20_001: 9,
    }


def test_a_stream_may_begin_where_the_group_stands(cluster):
    cluster.group = {partition(0): 28 * 4, partition(20_000): 28 * 9}
    stream = reader(startingoffsets="group", **{"tubemq.group": "mine"})
    begin = stream.initialOffset()
    assert begin == {"v": 1, "start": "group"}
    assert rows(stream, begin, stream.latestOffset(begin, EVERYTHING)) == {0: 1, 10_000: 7, 20_001: 9}
    assert cluster.moves == []


def test_the_group_follows_finished_micro_batches(cluster, clock):
    stream, first = begun(commitoffsetstogroup="true", **{"tubemq.group": "mine"})
    assert cluster.moves == []
    stream.commit(first)
    assert cluster.group == {
        partition(0): 28 * 5,
        partition(10_000): 28 * 7,
        partition(20_000): 28 * 9,
        partition(20_001): 28 * 9,
    }
    cluster.rows[0] += 1
    clock[0] += 1
    stream.commit(stream.latestOffset(first, EVERYTHING))
    assert cluster.moves[1:] == [{partition(0): 28 * 6}], "the others stand there already"


@pytest.mark.parametrize("error", [NO_ANSWER, ValueError("of a server that is not TubeMQ")])
def test_a_group_that_cannot_be_moved_is_logged_once(error, cluster, clock, caplog, monkeypatch):
    def refuse(*_):
        raise error

    stream, first = begun(commitoffsetstogroup="true", **{"tubemq.group": "mine"})
    cluster.group_fails = NOT_HERE
    stream.commit(first)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "move_group", refuse)
        stream.commit(first)
    cluster.group_fails = None
    stream.commit(first)
    assert len(cluster.group) == 4
    told = [record.getMessage() for record in caplog.records if record.name.endswith("background")]
    failed, again = told
    assert failed.startswith("the group's position is not moved in 4 partitions; the first: [TUBEMQ_RPC]")
    assert again == "the group's position is moved in all partitions again"


def test_no_micro_batch_waits_for_the_group_and_the_newest_position_is_shown(cluster, monkeypatch):
    """A thread moves it; what becomes old while that waits for a broker is not shown any more."""
    asked, answers, moves = threading.Event(), threading.Event(), []

    def move_group(_, positions):
        moves.append(positions[partition(0)])
        asked.set()
        assert answers.wait(20)
        return {}

    monkeypatch.setattr(cluster, "move_group", move_group)
    stream, first = begun(commitoffsetstogroup="true", **{"tubemq.group": "mine"})
    stream.commit(first)
    assert asked.wait(20)
    for rows_done in (1, 2, 3):
        stream.commit(first | {"topics": {"demo": {"1:0": 28 * rows_done}}, "from": {}})
    answers.set()
    wait_until(lambda: moves[-1] == 28 * 3)
    wait_until(lambda: not any(thread.name == "tubemq-group" for thread in threading.enumerate()))

    assert moves == [28 * 5, 28 * 3]


def test_the_group_is_not_moved_at_brokers_that_are_away(cluster, clock):
    """A courtesy does not ask whom no look asks; it is moved there when they are back."""
    cluster.add_broker()
    stream, end = begun(commitoffsetstogroup="true", **{"tubemq.group": "mine"})
    cluster.failing = {3: NO_ANSWER}
    clock[0] += 1
    stream.latestOffset(end, EVERYTHING)
    stream.commit(end)
    assert len(cluster.group) == 4
    cluster.failing = {}
    clock[0] += 10
    stream.latestOffset(end, EVERYTHING)
    stream.commit(end)
    assert cluster.group[partition(30_000, broker_id=2)] == 28 * 6


def test_no_trigger_waits_for_the_first_record_of_a_store_again_and_again(cluster, clock):
    """Other stores go on; where this one can be read is taken over when it is known."""
    stream, end = begun()
    cluster.partitions.add(partition(40_000))
    cluster.rows[4] = 3
    cluster.first_readable_hangs = True
    began = clock[0] = clock[0] + 20
    for number in range(10):
        cluster.rows[0] += 1
        clock[0] += 1
        later = stream.latestOffset(end, EVERYTHING)
        assert rows(stream, end, later) == {0: 1}, number
        end = later
    assert clock[0] - began == 10 + 1
    cluster.first_readable_hangs = False
    clock[0] += 1
    assert rows(stream, end, stream.latestOffset(end, EVERYTHING)) == {40_000: 3}


def test_no_trigger_waits_for_the_size_of_rows_again_and_again(cluster, clock):
    stream = reader(maxbytespertrigger="1g")
    limit = stream.getDefaultReadLimit()
    end = stream.latestOffset(stream.initialOffset(), limit)
    cluster.reads_hang = {2}
    began = clock[0] = clock[0] + 20
    for _ in range(10):
        cluster.rows[0] += 1
        cluster.rows[2] += 1
        clock[0] += 1
        later = stream.latestOffset(end, limit)
        assert rows(stream, end, later) == {0: 1, 20_000: 1, 20_001: 1}, "the last size counts"
        end = later
    assert clock[0] - began == 10 + 1


def test_a_partition_that_no_master_told_of_in_time_is_read_from_its_beginning(cluster, clock):
    """The stream had gone on in its store, and has to come back for it."""
    stream, end = begun()
    cluster.masters_hang = True
    cluster.partitions.add(partition(20_002))
    cluster.rows[2] += 2
    clock[0] += 1
    later = stream.latestOffset(end, EVERYTHING)
    assert rows(stream, end, later) == {20_000: 2, 20_001: 2}
    assert later["partial"]
    cluster.masters_hang = False
    clock[0] += 20
    last = stream.latestOffset(later, EVERYTHING)
    assert rows(stream, later, last) == {20_002: 11}
    assert "partial" not in last


def test_the_group_is_left_alone_by_default(cluster):
    stream = reader()
    stream.commit(stream.latestOffset(stream.initialOffset(), EVERYTHING))
    assert cluster.moves == []


def large_backlog(caplog):
    return [record.args[0] for record in caplog.records if "first micro-batch" in record.getMessage()]


def test_a_large_backlog_without_a_limit_is_named_once(cluster, clock, caplog):
    """With the rows of a store counted once, whatever partitions share it."""
    cluster.rows = {0: 4_000_000, 1: 3_000_000, 2: 3_000_000}
    stream, first = begun()
    assert large_backlog(caplog) == [10_000_000]
    cluster.rows[0] += 20_000_000
    clock[0] += 1
    stream.latestOffset(first, EVERYTHING)
    assert len(large_backlog(caplog)) == 1

    resumed = reader()
    resumed.latestOffset(first, EVERYTHING)
    assert large_backlog(caplog) == [10_000_000, 20_000_000]


def test_a_backlog_that_is_divided_or_small_is_not_worth_a_word(cluster, caplog):
    small = reader()
    small.latestOffset(small.initialOffset(), EVERYTHING)
    cluster.rows[0] = 20_000_000
    limited = reader(maxoffsetspertrigger="100")
    limited.latestOffset(limited.initialOffset(), limited.getDefaultReadLimit())
    assert large_backlog(caplog) == []


def test_the_offset_of_an_idle_query_is_not_computed_again(cluster, clock, monkeypatch):
    """Spark asks an idle query all the time, and working it out for 10 000 partitions takes a while."""
    worked_out = []
    next_offset = stream_driver.next_offset

    def counted(*arguments, **named):
        worked_out.append(1)
        return next_offset(*arguments, **named)

    monkeypatch.setattr(stream_driver, "next_offset", counted)
    stream, end = begun()
    for _ in range(100):
        clock[0] += 0.1
        assert text(stream.latestOffset(json.loads(text(end)), EVERYTHING)) == text(end)
    assert len(worked_out) == 1

    cluster.rows[0] += 1
    clock[0] += 5
    assert text(stream.latestOffset(end, EVERYTHING)) != text(end)
    assert text(stream.latestOffset(end, ReadMaxRows(1))) != text(end)
    assert len(worked_out) == 3


def test_progress_goes_on_to_tell_the_last_known_end_of_a_store_whose_broker_is_away(cluster, clock):
    stream, end = begun()
    cluster.failing = {
        1: TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")
    }
    cluster.rows[0] += 1
    clock[0] += 1
    stream.latestOffset(end, EVERYTHING)

    assert stream.reportLatestOffset()["topics"]["demo"] == {
        "1:0": 168,
        "1:10000": 196,
        "1:20000": 252,
        "1:20001": 252,
    }


def test_a_stream_whose_offsets_will_be_null_says_so_once(cluster, clock, caplog):
    stream, end = begun()
    cluster.rows[0] += 1
    clock[0] += 1
    stream.latestOffset(end, EVERYTHING)

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "column 'offset' is null in rows of topic demo" in told[0]


def test_a_broker_that_goes_while_it_is_asked_for_its_first_record_ends_no_stream(cluster, clock):
    stream, first = begun()
    cluster.partitions.add(partition(30_000))
    cluster.rows[3] = 4
    clock[0] += 20
    cluster.first_readable_fails = [
        TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")
    ]

    assert text(stream.latestOffset(first, EVERYTHING)) == text(first)
    assert rows(stream, first, stream.latestOffset(first, EVERYTHING)) == {30_000: 4}


def test_progress_tells_which_brokers_are_away_and_how_often_one_went(cluster, clock):
    stream, end = begun()
    assert "brokers" not in stream.reportLatestOffset(), "a listener of an older release reads the rest"
    seen = []
    for _ in range(2):
        away = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")
        for failing in (dict.fromkeys(cluster.rows, away), {}):
            cluster.failing = failing
            clock[0] += 600
            stream.latestOffset(end, EVERYTHING)
            clock[0] += 600
            stream.latestOffset(end, EVERYTHING)
            seen.append(stream.reportLatestOffset()["brokers"])

    assert seen == [
        {"away": [1], "outages": 1},
        {"away": [], "outages": 1},
        {"away": [1], "outages": 2},
        {"away": [], "outages": 2},
    ]
