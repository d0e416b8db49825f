"""Messages sent one by one become a batch with all that belongs to them.

Messages that are given no time get that of sending, in one zone, unless the producer was told not to.
"""

import datetime
import re

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.client.virtual_brokers import VirtualBrokers
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.producer.messages import MinuteClock, PendingMessage, checked_message, message_batch
from tubemq_spark.errors import OptionError
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
def test_a_batch_has_all_that_belongs_to_its_messages(parts, first_row):
    sent = []
    for target, value, header, key, partition in parts:
        prefix = encode_prefix(*header)
        message = PendingMessage(
            target.partition.topic, value, prefix, header, key, partition, len(prefix) + len(value)
        )
        message.accepted_at = 0.0
        message.destination = None if partition is None else target
        sent.append(message)
    batch = message_batch(sent, first_row)
    assert batch.first_row == first_row
    assert len(batch) == len(parts)
    for row, (target, value, header, key, partition) in enumerate(parts):
        assert batch.topic(row) == target.partition.topic
        assert batch.prefix(row) + batch.value(row) == encode_prefix(*header) + value
        assert batch.size(row) == len(encode_prefix(*header) + value)
        assert batch.has_time(row) == (header.message_time is not None)
        assert (batch.key(row), batch.partition(row)) == (key, partition)
        if batch.destinations is not None:
            assert batch.destinations[row] is (None if partition is None else target)


ZONE = datetime.timezone(datetime.timedelta(hours=8))


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime.datetime(2024, 2, 29, 12, 34, 56), "202402291234"),  # noqa: DTZ001 (without zone)
        (datetime.datetime(2024, 2, 29, 12, 34, tzinfo=ZONE), "202402291234"),
        (datetime.datetime(800, 1, 2, 3, 4, tzinfo=ZONE), "080001020304"),
        ("202402291234", "202402291234"),
    ],
)
def test_a_message_time_is_what_its_own_clock_shows(time, text):
    assert checked_message("demo", b"x", message_time=time).header.message_time == text


def test_a_key_or_a_value_of_text_is_its_utf_8():
    message = checked_message("demo", "k\u00e4se", key="k\u00e4se")
    assert message.key == message.value == b"k\xc3\xa4se"


@in_one_test(
    ("arguments", "what"),
    [
        ({"topic": b"demo"}, "its topic is of type bytes, not str"),
        ({"value": None}, "its value is of type NoneType, not bytes or str"),
        ({"value": "\ud800"}, "its value .* cannot be written as UTF-8"),
        ({"key": 7}, "its key is of type int, not bytes or str"),
        ({"key": "\ud800"}, "its key .* cannot be written as UTF-8"),
        ({"message_type": 5}, "its message_type is of type int, not str"),
        ({"message_time": 5}, "its message_time is of type int, not datetime or str"),
        ({"attributes": ["a"]}, "its attributes is of type list"),
        ({"attributes": {"a": b"x"}}, "its attributes is of type bytes"),
        ({"attributes": {"a": 1}}, "its attributes is of type int"),
        ({"partition": "1:0"}, "its partition is of type str"),
        ({"partition": (1, "0")}, "its partition is of type tuple"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_by_its_name(arguments, what):
    with pytest.raises(OptionError, match=rf"\[TUBEMQ_BAD_MESSAGE\].*{what}"):
        checked_message(**{"topic": "demo", "value": b"x", **arguments})


NOON = 1_772_625_600  # 2026-03-04 12:00 UTC


@pytest.fixture
def client():
    with TubeMQClient.connect("master:8715") as client:
        yield client


def times_of(producer, *messages):
    """Return the times that messages would be sent with; each is given as the arguments of ``send``."""
    with producer:
        return [producer._queue.check("demo", b"x", dict(fields)).header.message_time for fields in messages]


def test_the_minute_is_made_once_and_is_that_of_the_zone():
    now = [NOON + 59.9]
    clock = MinuteClock("Asia/Shanghai", lambda: now[0])
    first = clock.text()
    assert first == "202603042000"
    assert clock.text() is first
    now[0] += 0.1
    assert clock.text() == "202603042001"


def test_a_message_gets_the_time_of_sending_unless_it_is_given_one_or_none(client):
    given = {"message_time": "202601010000"}, {"message_time": None}
    stamped, *others = times_of(client.producer(), {}, *given)
    assert re.fullmatch(r"20\d{10}", stamped)
    assert others == ["202601010000", None]


def test_a_producer_or_its_client_may_be_told_not_to(client):
    assert times_of(client.producer(stamp_message_time=False), {}) == [None]
    with TubeMQClient.from_url("tubemq://master:8715?stamp_message_time=false") as plain:
        assert times_of(plain.producer(), {}) == [None]
        assert times_of(plain.producer(stamp_message_time=True), {}) != [None]


def test_the_time_is_in_the_zone_that_readers_assume(client, monkeypatch):
    monkeypatch.setattr(MinuteClock.__init__, "__defaults__", (lambda: NOON,))
    assert times_of(client.producer(), {}) == ["202603041200"]
    assert times_of(client.producer(message_time_zone="America/New_York"), {}) == ["202603040700"]
    with pytest.raises(OptionError, match="message_time_zone"):
        client.producer(message_time_zone="Mars")


async def test_coroutines_have_the_same():
    async with AsyncTubeMQClient.connect("master:8715") as client:
        producers = client.producer(), client.producer(stamp_message_time=False)
        stamped, plain = (one._queue.check("demo", b"x", {}).header.message_time for one in producers)
    assert re.fullmatch(r"20\d{10}", stamped)
    assert plain is None
