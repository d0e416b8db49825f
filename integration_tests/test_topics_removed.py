"""A stream over two topics of two Java brokers, one of which an administrator removes."""

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, losses, progress, read_stream, refusal, run, start
from integration_tests.rig.servers import server_of
from tubemq_spark.model import INDEX_ENTRY_BYTES

PATIENCE_SECONDS = 60


@pytest.fixture
def two_topics(spark, real_brokers, tmp_path):
    """Start a stream over two topics, with all their rows read; return it with its sink."""

    def begin(kept, removed, **options):
        for topic, numbers in ((kept, range(100)), (removed, range(1000, 1100))):
            produce_numbers(real_brokers.master, topic, numbers)
        sink = Collected()
        stream = read_stream(spark, server_of(real_brokers), f"{kept},{removed}", **options)
        query = start(stream, sink, tmp_path, processingTime="1 second")
        wait_until(lambda: len(sink.rows) == 200, timeout_s=PATIENCE_SECONDS, what="the rows of both")
        return query, sink

    return begin


@pytest.mark.timeout(300)
def test_a_tolerant_stream_goes_on_with_the_other_topic(spark, real_brokers, two_topics, tmp_path):
    """The checkpoint forgets the topic, and rows of the other one come as before."""
    ledger = tmp_path / "losses"
    query, sink = two_topics("kept", "removed", failOnDataLoss="false", lossLedger=str(ledger))

    real_brokers.remove_topic("removed")
    produce_numbers(real_brokers.master, "kept", range(100, 200))
    wait_until(lambda: len(sink.rows) >= 300, timeout_s=PATIENCE_SECONDS, what="rows after the removal")

    def is_forgotten():
        produce_numbers(real_brokers.master, "kept", [len(sink.rows)])
        (source,) = query.lastProgress["sources"]
        return "removed" not in source["endOffset"]

    wait_until(is_forgotten, timeout_s=PATIENCE_SECONDS, what="the checkpoint to forget the topic", poll_s=1)
    assert query.isActive, query.exception()
    query.stop()
    assert_same_rows([row for row in sink.rows if row < 200], range(200))
    assert progress(query, "kept", "endOffset").keys() == {"1:0", "2:0"}

    gaps = losses(spark, ledger)
    assert [(place, *rest) for place, _, _, *rest in gaps] == [
        (f"removed/{broker}:0", None, "TOPIC_REMOVED", None) for broker in (1, 2)
    ]
    assert all(start == end for _, start, end, *_ in gaps)
    assert sum(start for _, start, *_ in gaps) == 100 * INDEX_ENTRY_BYTES


@pytest.mark.timeout(300)
def test_a_strict_stream_ends_and_names_the_topic(real_brokers, two_topics):
    """Unread messages may be lost, so the user decides."""
    query, sink = two_topics("kept_too", "removed_too")

    real_brokers.remove_topic("removed_too")

    condition, sentence = refusal(lambda: query.awaitTermination(PATIENCE_SECONDS))
    assert condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"
    assert "removed_too" in sentence
    assert "kept_too" not in sentence
    assert_same_rows(sink.rows, [*range(100), *range(1000, 1100)])


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_run_of_available_now_ends_when_a_topic_goes_that_it_was_to_read(spark, real_brokers, tmp_path):
    """Even where losses are tolerated. The next run goes on without the topic."""
    kept, removed = "kept_now", "removed_now"
    for topic, numbers in ((kept, range(100)), (removed, range(1000, 1100))):
        produce_numbers(real_brokers.master, topic, numbers)
    options = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "100"}
    stream = read_stream(spark, server_of(real_brokers), f"{kept},{removed}", **options)
    sink = Collected()

    def remove_after_reading(frame, batch):
        sink(frame, batch)
        if batch == 0:
            real_brokers.remove_topic(removed)

    condition, sentence = refusal(lambda: run(stream, remove_after_reading, tmp_path))
    assert condition == "TUBEMQ_AVAILABLE_NOW.PARTITION_LOST"
    assert removed in sentence

    run(stream, sink, tmp_path)
    assert_same_rows([row for row in sink.rows if row < 1000], range(100))
