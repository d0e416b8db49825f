"""The consumer group's position: where a query may begin, and what TubeMQ's tools show of its progress."""

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, numbers, read, read_stream, run

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

PATIENCE_SECONDS = 30


def committed(server, group, topic):
    """Return what the broker's administration API says of a group, by partition."""
    return {
        partition: offset
        for (found, partition), offset in server.broker_admin.committed_offsets(group).items()
        if found == topic
    }


def test_the_progress_of_a_stream_is_the_group_s_position(spark, server, tmp_path):
    topic, group = server.fresh_topic("3x1"), f"progress_{server.name}"
    produce_numbers(server.master, topic, range(300))
    options = {"tubemq.group": group, "commitOffsetsToGroup": "true"}
    sink = Collected()

    run(read_stream(spark, server, topic, maxOffsetsPerTrigger="90", **options), sink, tmp_path)
    # Spark tells of a finished micro-batch when it plans the next one.
    produce_numbers(server.master, topic, range(300, 330))
    run(read_stream(spark, server, topic, **options), sink, tmp_path)

    assert_same_rows(sink.rows, range(330))
    wait_until(
        lambda: sum(committed(server, group, topic).values()) >= 28 * 300,
        timeout_s=PATIENCE_SECONDS,
        what="the broker to book the group's positions",
    )


def test_a_query_begins_where_the_group_stands(spark, server, tmp_path):
    topic, group = server.fresh_topic(), f"begin_{server.name}"
    produce_numbers(server.master, topic, range(100))
    of_group = {"tubemq.group": group, "startingOffsets": "group"}
    assert_same_rows(numbers(read(spark, server, topic, **of_group)), range(100))

    sink = Collected()
    options = {"tubemq.group": group, "commitOffsetsToGroup": "true", "maxOffsetsPerTrigger": "40"}
    run(read_stream(spark, server, topic, **options), sink, tmp_path / "first")
    produce_numbers(server.master, topic, range(100, 110))

    rest = numbers(read(spark, server, topic, **of_group))
    assert 0 < len(rest) < 110
    assert_same_rows(rest, range(110 - len(rest), 110))
    again = Collected()
    run(read_stream(spark, server, topic, **of_group), again, tmp_path / "second")
    assert_same_rows(again.rows, rest)
