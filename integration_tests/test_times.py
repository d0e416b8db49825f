"""Reads that begin and end at times: messages carry the minute in which they were made."""

import datetime
import json
import zlib

import pytest

from integration_tests.rig.messages import Sample, assert_same_rows, produce, produce_numbers
from integration_tests.rig.queries import collected, numbers, read, read_stream, refusal, write

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ROWS = 6_000
PER_MINUTE = 100


def at(minute):
    """Return a time as users write it."""
    return str(int((START + datetime.timedelta(minutes=minute)).timestamp() * 1000))


@pytest.fixture
def timed(server):
    """A topic of an hour, and the numbers of its messages from one minute to another."""

    def made(shape):
        topic = server.fresh_topic(shape)
        produce(
            server.master,
            topic,
            (
                # Long enough for many fetches.
                Sample(
                    b"%200d" % number,
                    message_time=f"{START + datetime.timedelta(minutes=number // PER_MINUTE):%Y%m%d%H%M}",
                )
                for number in range(ROWS)
            ),
        )
        return topic

    return made


def between(first, last):
    return range(PER_MINUTE * first, PER_MINUTE * last)


@pytest.mark.parametrize("shape", ["1x1", "2x3"])
def test_a_batch_read_has_the_messages_between_two_times(spark, server, timed, shape):
    topic = timed(shape)

    part = read(spark, server, topic, startingTimestamp=at(20), endingTimestamp=at(30))
    # The messages of the last minute are not in every partition.
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    rest = read(spark, server, topic, startingTimestamp=at(59), **latest)

    assert_same_rows(numbers(part), between(20, 30))
    assert_same_rows(numbers(rest), between(59, 60))


def test_a_stream_begins_at_a_time(spark, server, timed, tmp_path):
    topic = timed("1x1")
    sink = collected(read_stream(spark, server, topic, startingTimestamp=at(40)), tmp_path)
    assert_same_rows(sink.rows, between(40, 60))


def test_a_partition_begins_at_a_time_and_ends_at_an_offset(spark, server, timed):
    topic = timed("1x1")
    times = json.dumps({topic: {"1:0": int(at(10))}})
    offsets = json.dumps({topic: {"1:0": 28 * PER_MINUTE * 12}})
    part = read(spark, server, topic, startingOffsetsByTimestamp=times, endingOffsets=offsets)
    assert_same_rows(numbers(part), between(10, 12))


def test_where_no_message_is_of_the_time_the_user_decides(spark, server, timed):
    topic = timed("1x1")
    condition, sentence = refusal(lambda: read(spark, server, topic, startingTimestamp=at(60)).collect())
    assert condition == "TUBEMQ_NO_RECORD_OF_TIME"
    assert f"{topic}/1:0" in sentence
    latest = {"startingTimestamp": at(60), "startingOffsetsByTimestampStrategy": "latest"}
    assert numbers(read(spark, server, topic, **latest)) == []
    assert_same_rows(
        numbers(read(spark, server, topic, startingTimestamp=at(58), endingTimestamp=at(99))), between(58, 60)
    )


def test_messages_without_a_time_are_named(spark, server):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(10))
    condition, sentence = refusal(lambda: read(spark, server, topic, startingTimestamp=at(0)).collect())
    assert condition == "TUBEMQ_NO_MESSAGE_TIME"
    assert f"no message of {topic}/1:0 that was looked at carries one. Producers set it" in sentence


MIXED_ROWS, FILES, HOURS = 200_000, 20, 4
PER_HOUR = MIXED_ROWS // HOURS


@pytest.fixture
def written_by_two_tasks(spark, server, tmp_path):
    """A topic to which two tasks wrote 20 files of four hours in no order."""
    topic, per_file = server.fresh_topic("3x1"), MIXED_ROWS // FILES
    for number in range(FILES):
        rows = range(per_file * number, per_file * (number + 1))
        # Spark deals files out by size, the largest first: a name and a size that say nothing of the time.
        padding = "x" * (7 * number % FILES)
        lines = (f"{row},{'p' * 60}{padding}\n" for row in rows)
        (tmp_path / f"{zlib.crc32(b'%d' % number):08x}.csv").write_text("".join(lines))
    step = HOURS * 3_600_000_000 // MIXED_ROWS
    made = f"timestamp_micros({int(START.timestamp()) * 1_000_000} + value * {step})"
    rows = spark.read.schema("value long, padding string").csv(str(tmp_path))
    write(
        rows.selectExpr("concat(value, ',', padding) as value", f"{made} as timestamp"), server, topic=topic
    )
    return topic


def test_an_hour_of_what_two_tasks_wrote_in_no_order(spark, server, written_by_two_tasks):
    """Exactly its rows with timestampSearch=exact, and without it no fewer."""
    between = {"startingTimestamp": at(60), "endingTimestamp": at(120)}

    def ids(**options):
        frame = read(spark, server, written_by_two_tasks, **between, **options)
        return [int(row.value.split(b",")[0]) for row in frame.select("value").collect()]

    exact, probed = ids(timestampSearch="exact"), ids()
    assert_same_rows(exact, range(PER_HOUR, 2 * PER_HOUR))
    assert len(probed) == len(set(probed))
    assert set(probed) >= set(exact)
