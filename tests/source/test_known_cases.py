"""Cases of the suites that Spark has for its Kafka source, with their numbers: what users rely on."""

import datetime
import itertools
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.source import query as driving
from tubemq_spark.errors import DataLossError, OptionError
from tubemq_spark.model import TopicPartition

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def cluster(monkeypatch):
    """Topics of one partition, and one of three."""
    return driving.memory_cluster(monkeypatch, big=(1, 1), middle=(1, 1), small=(1, 1), three=(3, 1))


def minute(number):
    """Return the time so many minutes after noon, as messages carry it."""
    return f"{NOON + datetime.timedelta(minutes=number):%Y%m%d%H%M}"


def ms(number):
    """Return that time as options take it."""
    return int((NOON + datetime.timedelta(minutes=number)).timestamp() * 1000)


def send(cluster, topic, numbers, partition=None, time=0):
    with cluster.sender() as sender:
        for number in numbers:
            where = None if partition is None else (1, partition)
            sender.send(topic, b"%d" % number, partition=where, message_time=minute(time))


class Query(driving.Query):
    """A query whose looks at the brokers are far apart: one is good for a moment."""

    def __init__(self, clock, options, checkpoint=None):
        super().__init__(checkpoint, **options)
        self._clock = clock

    def plan(self, limit=None):
        self._clock[0] += 20
        return super().plan(limit)

    def restarted(self, **options):
        return Query(self._clock, {"subscribe": None, **self.options, **options}, self.checkpoint)


def batch_rows(**options):
    return driving.numbers(driving.batch_rows(**options))


# --- how much a micro-batch takes


@pytest.fixture
def three_topics(cluster):
    """101, 11 and 1 rows."""
    for topic, numbers in (("big", range(100, 201)), ("middle", range(10, 21)), ("small", range(1, 2))):
        send(cluster, topic, numbers)
    return {"subscribe": "big,middle,small", "maxoffsetspertrigger": "10"}


def test_a_limit_is_divided_by_backlog_and_small_topics_do_not_starve(clock, three_topics):
    query = Query(clock, three_topics)
    assert query.batch() == [1, 10, *range(100, 108)]
    assert query.batch() == [11, *range(108, 117)]


def test_a_limit_is_divided_so_after_a_restart_too(clock, three_topics):
    query = Query(clock, three_topics)
    query.batch()
    again = query.restarted()
    assert again.batch() == [11, *range(108, 117)]
    assert again.restarted(maxoffsetspertrigger="20").batch() == [12, *range(117, 135)]


def test_once_ignores_the_limit(clock, three_topics):
    """The trigger asks for all there is."""
    everything = [1, *range(10, 21), *range(100, 201)]
    assert Query(clock, three_topics).batch(ReadAllAvailable()) == everything


def test_the_largest_limit_there_is_takes_everything(clock, three_topics):
    assert len(Query(clock, three_topics | {"maxoffsetspertrigger": str(2**63 - 1)}).batch()) == 113


def test_fifteen_rows_in_fives_are_three_micro_batches(cluster, clock):
    send(cluster, "big", range(15))
    query = Query(clock, {"subscribe": "big", "maxoffsetspertrigger": "5"})
    assert query.available_now() == [list(range(5)), list(range(5, 10)), list(range(10, 15))]
    send(cluster, "big", range(15, 20))
    assert query.restarted().available_now() == [list(range(15, 20))]


# --- what happens between runs


def test_a_run_that_failed_is_resumed_though_its_topic_has_grown(cluster, clock):
    """The planned micro-batch does not know the new partitions; the run after it reads them wholly."""
    send(cluster, "three", range(6))
    failed = Query(clock, {"subscribe": "three", "maxoffsetspertrigger": "3"})
    failed.reader.prepareForTriggerAvailableNow()
    start = failed.plan()
    cluster.partitions["three"] += [TopicPartition("three", 1, 30_000), TopicPartition("three", 1, 40_000)]
    send(cluster, "three", range(100, 103), partition=30_000)
    send(cluster, "three", range(200, 203), partition=40_000)

    resumed = failed.restarted()
    replayed = resumed.read(start)
    rest = resumed.available_now()

    assert replayed == [0, 1, 2]
    assert sorted(itertools.chain(*rest)) == [3, 4, 5, *range(100, 103), *range(200, 203)]


def test_offsets_that_went_back_end_a_run_and_are_named(cluster, clock):
    send(cluster, "big", range(15))
    query = Query(clock, {"subscribe": "big", "maxoffsetspertrigger": "5"})
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == list(range(5))
    (store,) = {partition.store_id for partition in cluster.partitions["big"]}
    del cluster.logs[store][10:]
    with pytest.raises(DataLossError, match=r"up to offset 420, .*but its log now ends at 280"):
        query.batch()


def test_a_partition_that_goes_during_a_run_ends_it(cluster, clock):
    send(cluster, "three", range(15))
    query = Query(clock, {"subscribe": "three", "maxoffsetspertrigger": "6"})
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 6
    del cluster.partitions["three"][2]
    with pytest.raises(DataLossError, match=r"three/1:20000 .*no longer exists"):
        query.batch()


def test_a_topic_that_was_created_again_is_told_with_both_offsets(cluster, clock):
    send(cluster, "big", range(2))
    query = Query(clock, {"subscribe": "big"})
    assert query.batch() == [0, 1]
    (store,) = {partition.store_id for partition in cluster.partitions["big"]}
    cluster.logs[store] = cluster.logs[store][:1]
    with pytest.raises(DataLossError, match="to be read from offset 56 on, but its log ends at 28") as lost:
        query.batch()
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.MOVED_BACK"


def test_a_topic_is_deleted_and_another_one_that_matches_is_created(cluster, clock):
    send(cluster, "big", range(3))
    options = {"subscribe": None, "subscribepattern": "b.*", "failondataloss": "false"}
    query = Query(clock, options)
    assert query.batch() == [0, 1, 2]
    del cluster.partitions["big"]
    cluster.partitions["better"] = [TopicPartition("better", 1, 0)]
    send(cluster, "better", range(10, 13))
    assert query.batch() == [10, 11, 12]
    assert query.restarted().batch() == []


# --- times


def timed(cluster, topic="big"):
    """Ten minutes with ten rows each."""
    for number in range(10):
        send(cluster, topic, range(10 * number, 10 * number + 10), time=number)


NO_MATCH = {"startingtimestamp": str(ms(10))}


@pytest.mark.parametrize(
    "strategy", [{}, {"startingoffsetsbytimestampstrategy": "error"}], ids=["default", "error"]
)
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingTimestamp", str(ms(10))),
        ("startingOffsetsByTimestamp", json.dumps({"big": {"1:0": ms(10)}})),
    ],
)
def test_without_a_record_of_the_time_a_stream_does_not_start(cluster, clock, strategy, option, text):
    timed(cluster)
    query = Query(clock, {"subscribe": "big", option.lower(): text, **strategy})
    with pytest.raises(OptionError) as refused:
        query.plan()
    assert str(refused.value) == (
        f"[TUBEMQ_NO_RECORD_OF_TIME] Option '{option}': no record of big/1:0 is of the time {ms(10)} "
        "(milliseconds since 1970) or later; choose an earlier time, or set "
        "startingOffsetsByTimestampStrategy=latest."
    )


def test_a_query_without_a_matching_time_may_begin_at_the_end(cluster, clock):
    timed(cluster)
    query = Query(clock, {"subscribe": "big", **NO_MATCH, "startingoffsetsbytimestampstrategy": "latest"})
    assert query.batch() == []
    send(cluster, "big", range(100, 105), time=3)
    assert query.batch() == list(range(100, 105))


def offsets(number):
    return json.dumps({"big": {"1:0": 28 * number}})


def by_partition(number):
    return json.dumps({"big": {"1:0": ms(number)}})


STARTS = {
    "no option": ({}, 0),
    "offsets": ({"startingoffsets": offsets(25)}, 25),
    "a time": ({"startingtimestamp": str(ms(3))}, 30),
    "times": ({"startingoffsetsbytimestamp": by_partition(4)}, 40),
    "a time before times and offsets": (
        {
            "startingtimestamp": str(ms(3)),
            "startingoffsetsbytimestamp": by_partition(4),
            "startingoffsets": offsets(25),
        },
        30,
    ),
    "times before offsets": (
        {"startingoffsetsbytimestamp": by_partition(4), "startingoffsets": offsets(25)},
        40,
    ),
}
ENDS = {
    "no option": ({}, 100),
    "offsets": ({"endingoffsets": offsets(77)}, 77),
    "a time": ({"endingtimestamp": str(ms(6))}, 60),
    "times": ({"endingoffsetsbytimestamp": by_partition(7)}, 70),
    "a time that no record has": ({"endingtimestamp": str(ms(99))}, 100),
    "a time before times and offsets": (
        {
            "endingtimestamp": str(ms(6)),
            "endingoffsetsbytimestamp": by_partition(7),
            "endingoffsets": offsets(77),
        },
        60,
    ),
    "times before offsets": ({"endingoffsetsbytimestamp": by_partition(7), "endingoffsets": offsets(77)}, 70),
}


@pytest.mark.parametrize(("start", "first"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(("end", "last"), ENDS.values(), ids=ENDS)
def test_every_way_to_begin_goes_with_every_way_to_end(cluster, start, first, end, last):
    timed(cluster)
    assert batch_rows(subscribe="big", **start, **end) == list(range(first, last))


def write_files(cluster, topic="big"):
    """Two tasks write 20 files of 12 minutes each, in no order: 4 hours, 40 rows a minute.

    Return the rows of an hour.
    """
    order = [13, 2, 7, 18, 0, 11, 16, 5, 9, 14, 3, 19, 8, 1, 12, 6, 17, 10, 4, 15]
    tasks = [
        [480 * file + row for file in files for row in range(480)] for files in (order[::2], order[1::2])
    ]
    with cluster.sender() as sender:
        for number in itertools.chain(*zip(*tasks, strict=True)):
            sender.send(topic, b"%d" % number, message_time=minute(number // 40))
    cluster.per_fetch = 100
    return range(2_400, 4_800)


@pytest.mark.parametrize("topic", ["big", "three", "shared"])
def test_an_exact_range_has_the_rows_of_its_times_whatever_their_order(cluster, caplog, topic):
    cluster.partitions["shared"] = [TopicPartition("shared", 1, 0), TopicPartition("shared", 1, 1)]
    hour = list(write_files(cluster, topic))
    between = {"startingtimestamp": str(ms(60)), "endingtimestamp": str(ms(120))}
    given = {"subscribe": topic, **between}

    assert batch_rows(**given, timestampsearch="exact", minpartitions="7") == hour
    assert not [message for message in caplog.messages if "times" in message]

    assert set(hour) <= set(batch_rows(**given))
    (warning,) = [message for message in caplog.messages if "times go back by up to" in message]
    assert "set timestampSearch=exact in a batch read" in warning

    assert set(range(2_400, 9_600)) <= set(batch_rows(subscribe=topic, startingtimestamp=str(ms(60))))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({"startingtimestamp": str(ms(3))}, {}, range(30, 100)),
        ({"startingtimestamp": str(ms(3) + 59_999)}, {"endingtimestamp": str(ms(5) + 1)}, range(30, 60)),
        ({"startingoffsets": offsets(25)}, {"endingoffsetsbytimestamp": by_partition(7)}, range(25, 70)),
        ({"startingoffsetsbytimestamp": by_partition(4)}, {"endingoffsets": offsets(77)}, range(40, 77)),
        ({"startingtimestamp": str(ms(60))}, {}, range(0)),
    ],
)
def test_an_exact_range_may_have_an_offset_at_one_end(cluster, start, end, expected):
    timed(cluster)
    exact = {"timestampsearch": "exact"}
    assert batch_rows(subscribe="big", **start, **end, **exact) == list(expected)


def test_an_exact_range_leaves_out_rows_without_a_time_and_says_so(cluster, caplog):
    timed(cluster)
    with cluster.sender() as sender:
        sender.send("big", b"1000")
        sender.send("big", b"1001", attributes={"a": "b"})
    between = {"startingtimestamp": str(ms(0)), "endingtimestamp": str(ms(99)), "timestampsearch": "exact"}
    assert batch_rows(subscribe="big", **between) == list(range(100))
    assert caplog.messages[-1].startswith("2 messages carry no time")


def test_a_range_of_times_that_no_row_has_is_empty(cluster):
    """Also where rows without times, or those of others, lie between what is before it and what is behind."""
    cluster.partitions["shared"] = [TopicPartition("shared", 1, 0), TopicPartition("shared", 1, 1)]
    cluster.per_fetch = 7
    for topic in ("big", "shared"):
        send(cluster, topic, range(50), time=0)
        with cluster.sender() as sender:
            for _ in range(10):
                sender.send(topic, b"1000")
        send(cluster, topic, range(50, 100), time=9)
        between = {"startingtimestamp": str(ms(3)), "endingtimestamp": str(ms(6))}
        assert set(batch_rows(subscribe=topic, **between)) <= {1000}


@pytest.mark.parametrize("end", [{"endingtimestamp": str(ms(2))}, {"endingoffsets": offsets(20)}])
def test_a_time_to_begin_at_that_is_after_the_end_is_refused(cluster, end):
    timed(cluster)
    start = {"startingtimestamp": str(ms(3))}
    with pytest.raises(OptionError, match="big/1:0 would start at offset 840 and end before it, at 560"):
        batch_rows(subscribe="big", **start, **end)
