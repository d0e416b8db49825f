"""Rows that cannot be written go to the dead letters, through Spark; all others are written."""

import pytest

from integration_tests.rig.queries import read, read_stream, to_topic, write

pytestmark = pytest.mark.any_server

SCHEMA = "value string, topic string, attributes map<string, string>"


def rows(good, topic):
    return [
        *[(f"good {number}", topic, {"k": "v"}) for number in range(good)],
        ("comma", topic, {"k": "a,b"}),
        (None, topic, None),
        ("nowhere", "no_such_topic", None),
    ]


def dead_letters(spark, server, topic):
    """Return the dead letters by their values."""
    frame = read(spark, server, topic, includeAttributes="true")
    return {bytes(row.value): row.attributes for row in frame.select("value", "attributes").collect()}


def test_a_batch_write_goes_on_behind_rows_that_cannot_be_written(spark, server):
    topic, dead = server.fresh_topic("3x1"), server.fresh_topic()
    frame = spark.createDataFrame(rows(500, topic), SCHEMA).repartition(3)

    write(frame, server, onError="deadLetter", deadLetterTopic=dead)

    values = [bytes(row.value) for row in read(spark, server, topic).select("value").collect()]
    assert sorted(values) == sorted(b"good %d" % number for number in range(500))
    found = dead_letters(spark, server, dead)
    assert {value: attributes["deadLetterCondition"] for value, attributes in found.items()} == {
        b"comma": "TUBEMQ_BAD_MESSAGE",
        b"\0": "TUBEMQ_SINK_NULL_VALUE",
        b"nowhere": "TUBEMQ_TOPIC_UNKNOWN",
    }
    assert found[b"\0"]["deadLetterValue"] == "null"
    assert found[b"nowhere"]["deadLetterTopic"] == "no_such_topic"


def test_a_topic_is_mirrored_with_its_odd_messages_apart(spark, server, tmp_path):
    """A message that TubeMQ's rules refuse does not end the query that mirrors its topic."""
    origin, target, dead = server.fresh_topic(), server.fresh_topic(), server.fresh_topic()
    write(
        spark.createDataFrame([(f"{number}",) for number in range(50)], "value string"), server, topic=origin
    )
    frame = read_stream(spark, server, origin, includeAttributes="true")
    odd = "if(value = '7', map('bad', 'a,b'), if(value = '8', map('blank', ''), attributes))"
    rows = frame.selectExpr("cast(value as string) as value", f"{odd} as attributes")
    to_topic(rows, tmp_path, server.options(topic=target, onError="deadLetter", deadLetterTopic=dead))

    found = read(spark, server, target, includeAttributes="true").select("value", "attributes").collect()
    stored = {int(row.value): row.attributes for row in found}
    assert len(found) == 49
    assert stored.keys() == set(range(50)) - {7}
    assert stored[8]["blank"] == "", "what other producers write otherwise goes through unchanged"
    (attributes,) = dead_letters(spark, server, dead).values()
    assert "bad" in attributes["deadLetterReason"]
