"""Messages that are given no time get that of sending, in one zone, unless the producer was told not to."""

import asyncio
import re

import pytest

from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.producer.messages import MinuteClock
from tubemq_spark.errors import OptionError

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


def test_coroutines_have_the_same():
    async def times():
        async with AsyncTubeMQClient.connect("master:8715") as client:
            stamped, plain = client.producer(), client.producer(stamp_message_time=False)
            return [one._queue.check("demo", b"x", {}).header.message_time for one in (stamped, plain)]

    stamped, plain = asyncio.run(times())
    assert re.fullmatch(r"20\d{10}", stamped)
    assert plain is None
