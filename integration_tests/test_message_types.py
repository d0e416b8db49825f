"""Reads of some message types only: brokers compare hashes, and the rows are those of the very types."""

import pytest

from integration_tests.rig.messages import Sample, assert_same_rows, produce
from integration_tests.rig.queries import Collected, collected, numbers, read, read_stream, run

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

ROWS = 1_000
TYPES = ["Aa", "BB", "other", None]
"""The first two have the same hash, by which brokers choose."""


def type_of(number):
    """Return the type of a message: runs of every length, the rare type only now and then."""
    return "rare" if number % 997 == 0 else TYPES[number * number // 90 % 4]


def of_types(*types):
    return [number for number in range(ROWS) if type_of(number) in types]


@pytest.fixture
def typed(server):
    def made(shape):
        topic = server.fresh_topic(shape)
        samples = (Sample(b"%100d" % number, message_type=type_of(number)) for number in range(ROWS))
        produce(server.master, topic, samples)
        return topic

    return made


@pytest.mark.parametrize("shape", ["1x1", "2x3"])
def test_rows_are_those_of_the_types(spark, server, typed, shape, tmp_path):
    topic = typed(shape)

    for types in (("Aa", "other"), ("rare",)):
        frame = read(spark, server, topic, messageTypes=",".join(types), minPartitions="3")
        rows = frame.select("value", "messageType", "offset").collect()
        assert_same_rows([int(row.value) for row in rows], of_types(*types))
        assert {row.messageType for row in rows} == set(types)
        assert {row.offset for row in rows} == {None}
    sink = Collected()
    stream = read_stream(spark, server, topic, messageTypes="Aa,rare", maxOffsetsPerTrigger="400")
    run(stream, sink, tmp_path)
    assert_same_rows(sink.rows, of_types("Aa", "rare"))


def test_a_stream_of_a_type_that_no_producer_sends_goes_on(spark, server, typed, tmp_path):
    """Its offsets move past everything it does not read, so that it starts there the next time."""
    topic = typed("1x1")
    sink = collected(read_stream(spark, server, topic, messageTypes="nobody"), tmp_path)
    assert sink.rows == []
    produce(server.master, topic, [Sample(b"7", message_type="nobody"), Sample(b"8", message_type="Aa")])
    run(read_stream(spark, server, topic, messageTypes="nobody"), sink, tmp_path)
    assert sink.rows == [7]
    assert numbers(read(spark, server, topic, messageTypes="nobody")) == [7]
