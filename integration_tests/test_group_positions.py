"""A query begins where its consumer group stands; ``test_views`` shows that the group follows a query."""

import pytest

from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, collected, numbers, read, read_stream, run

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)


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
    assert_same_rows(collected(read_stream(spark, server, topic, **of_group), tmp_path / "second").rows, rest)
