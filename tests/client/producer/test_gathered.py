"""Messages sent one by one become a batch with all that belongs to them."""

from hypothesis import given, strategies as st

from tests.client.virtual_brokers import VirtualBrokers
from tubemq_spark.client.producer.gathered import GatheredMessages
from tubemq_spark.protocol.payload import encode_prefix
from tubemq_spark.protocol.send_batch import MessageHeader

TARGETS = VirtualBrokers(lambda _: None, brokers=2, partitions=2).partitioner.targets
headers = st.builds(
    MessageHeader,
    st.sampled_from([None, {"a": "1"}, {"b": "2"}]),
    st.sampled_from([None, "typ"]),
    st.sampled_from([None, "202401020304"]),
)
messages = st.tuples(
    st.sampled_from(TARGETS),
    st.binary(min_size=1, max_size=9),
    headers,
    st.none() | st.binary(max_size=3),
    st.none() | st.tuples(st.integers(), st.integers()),
)


@given(st.lists(messages, min_size=1, max_size=30), st.integers(1, 1_000))
def test_nothing_gets_lost_on_the_way(sent, first_row):
    gathered = GatheredMessages()
    for number, (target, value, header, key, partition) in enumerate(sent, first_row):
        assert not gathered.add(number, target, value, encode_prefix(*header), header, key, partition)
    assert len(gathered) == len(sent)
    batch, destinations = gathered.batch()
    assert list(destinations) == [target for target, *_ in sent]
    assert batch.first_row == first_row
    assert len(batch) == len(sent)
    for row, (target, value, header, key, partition) in enumerate(sent):
        assert batch.topic(row) == target.partition.topic
        assert batch.prefix(row) + batch.value(row) == encode_prefix(*header) + value
        assert batch.size(row) == len(encode_prefix(*header) + value)
        assert batch.has_time(row) == (header.message_time is not None)
        assert (batch.key(row), batch.partition(row)) == (key, partition)


def add_until_written(value):
    gathered = GatheredMessages()
    number = 1
    while not gathered.add(number, TARGETS[0], value, b"", MessageHeader(), None, None):
        number += 1
    return number


def test_many_messages_or_many_bytes_are_enough():
    assert [add_until_written(b"x" * size) for size in (1, 2_000, 10_000, 200_000)] == [64, 64, 14, 1]
