"""What is read: topics by pattern, single partitions, topics that come later."""

import json
from urllib.parse import urlsplit

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, collected, numbers, read_stream, refusal, run, start

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 60


def read(spark, server, **options):
    """Return a batch read of what the options say."""
    web = urlsplit(server.admin.url).netloc
    given = server.options(**{"tubemq.master.web": web, "tubemq.group": "subscriptions", **options})
    return spark.read.format("tubemq").options(**given).load()


def stream(spark, server, **options):
    """Return a stream of what the options say, from its earliest messages on."""
    web = urlsplit(server.admin.url).netloc
    given = {
        "startingOffsets": "earliest",
        "tubemq.master.web": web,
        "tubemq.group": "subscriptions",
        **options,
    }
    return spark.readStream.format("tubemq").options(**server.options(**given)).load()


def test_all_topics_that_match_are_read(spark, server, tmp_path):
    first, second, other = (server.fresh_topic() for _ in range(3))
    for index, topic in enumerate((first, second, other)):
        produce_numbers(server.master, topic, range(100 * index, 100 * index + 50))
    pattern = f"({first}|{second})"

    assert_same_rows(numbers(read(spark, server, subscribePattern=pattern)), [*range(50), *range(100, 150)])
    sink = collected(stream(spark, server, subscribePattern=pattern), tmp_path)
    assert_same_rows(sink.rows, [*range(50), *range(100, 150)])


def test_a_pattern_that_matches_nothing_reads_nothing(spark, server):
    assert numbers(read(spark, server, subscribePattern="no_topic_has_this_name.*")) == []


@pytest.mark.parametrize("shape", ["3x1", "2x3"])
def test_only_assigned_partitions_are_read(spark, server, shape, tmp_path):
    """The rows are those that a read of the whole topic has of these partitions."""
    topic = server.fresh_topic(shape)
    produce_numbers(server.master, topic, range(900))
    chosen = [10_000, 0]
    whole = read(spark, server, subscribe=topic)
    of_chosen = [int(row.value) for row in whole.where(whole.partition.isin(chosen)).collect()]
    assert 0 < len(of_chosen) < 900
    assign = json.dumps({topic: [f"1:{partition}" for partition in chosen]})

    assert_same_rows(numbers(read(spark, server, assign=assign)), of_chosen)
    sink = collected(stream(spark, server, assign=assign, maxOffsetsPerTrigger="300"), tmp_path)
    assert_same_rows(sink.rows, of_chosen)


def test_a_partition_added_to_a_stream_s_assignment_is_read_wholly(spark, server, tmp_path):
    """It was there before, in the store of one that has been read; nothing of it may be passed over."""
    topic = server.fresh_topic("2x3")
    produce_numbers(server.master, topic, range(600))
    rows = read(spark, server, subscribe=topic).collect()

    def of(*partitions):
        return [int(row.value) for row in rows if row.partition in partitions]

    sink = collected(stream(spark, server, assign=json.dumps({topic: ["1:0"]})), tmp_path)
    assert_same_rows(sink.rows, of(0))
    run(stream(spark, server, assign=json.dumps({topic: ["1:0", "1:1"]})), sink, tmp_path)
    assert_same_rows(sink.rows, of(0, 1))


def test_a_partition_that_does_not_exist_is_named(spark, server):
    topic = server.fresh_topic()
    condition, sentence = refusal(lambda: read(spark, server, assign=json.dumps({topic: ["1:7"]})).collect())
    assert condition == "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS"
    assert f"{topic}/1:7" in sentence
    assert f"{topic}/1:0" in sentence


def test_without_the_administration_api_a_pattern_says_what_is_missing(spark, server):
    options = {"subscribePattern": "demo.*", "tubemq.master.web": "127.0.0.1:1"}
    condition, sentence = refusal(lambda: read(spark, server, **options).collect())
    assert condition == "TUBEMQ_TOPICS_NOT_LISTED"
    assert "127.0.0.1:1" in sentence


@pytest.mark.slow_on_java
def test_topics_that_come_later_are_read_from_their_beginning(spark, server, tmp_path):
    """One that matches a pattern, and one that a query waits for."""
    known, later = server.fresh_topic(), f"later_{server.name}"
    produce_numbers(server.master, known, range(10))
    pattern, waiting = Collected(), Collected()
    latest = {"startingOffsets": "latest", "tubemq.group": "later"}
    queries = [
        start(
            stream(spark, server, subscribePattern=f"{known}|{later}", **latest),
            pattern,
            tmp_path / "pattern",
            processingTime="1 second",
        ),
        start(
            read_stream(spark, server, later, waitForTopics="true", **{**latest, "tubemq.group": "waiting"}),
            waiting,
            tmp_path / "waiting",
            processingTime="1 second",
        ),
    ]
    for query in queries:
        wait_until(lambda query=query: query.lastProgress, timeout_s=PATIENCE_SECONDS, what="the start")

    server.add_topic(later, 1, 1)
    produce_numbers(server.master, later, range(100, 120))

    for query, sink in zip(queries, (pattern, waiting), strict=True):
        wait_until(
            lambda sink=sink: len(sink.rows) >= 20, timeout_s=PATIENCE_SECONDS, what="the new topic's rows"
        )
        assert query.isActive, query.exception()
        query.stop()
        assert_same_rows(sink.rows, range(100, 120))
