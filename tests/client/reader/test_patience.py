"""A reader that stands still tries again for a while, and tells so once."""

import logging

import pytest

from tubemq_spark.client.reader.range_reader import Patience
from tubemq_spark.errors import TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import OffsetRange, TopicPartition

ASKED = OffsetRange(TopicPartition("demo", 3, 0), 0, 280)
AWAY = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="refused")


class Time:
    """Passes only while somebody waits."""

    def __init__(self):
        self.now = 1_000.0
        self.sleeps = []

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def patience(time):
    return Patience(ASKED, 600_000, time.clock)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def stand_still(patience, time, seconds):
    until = time.now + seconds
    while time.now < until:
        time.now += patience.next_pause_s(AWAY, 112)


def test_an_outage_is_told_once_and_its_end_with_how_long_it_took(patience, time, warnings):
    stand_still(patience, time, 75)
    patience.progress()
    patience.progress()

    (away, back) = warnings()
    assert away[0] == back[0] == "WARNING"
    assert "demo/3:0 has stopped at offset 112" in away[1]
    assert "tubemq.fetchTimeoutMs" in away[1]
    assert "broker:8123" in away[1]
    assert "demo/3:0 resumed after 7" in back[1]


def test_a_short_interruption_is_not_told(patience, time, warnings):
    for _ in range(5):
        stand_still(patience, time, 2)
        patience.progress()

    assert warnings() == []


def test_the_second_outage_is_told_again(patience, time, warnings):
    for _ in range(2):
        stand_still(patience, time, 10)
        patience.progress()

    assert len(warnings()) == 4


def test_without_progress_the_time_is_up(patience, time):
    began = time.now
    with pytest.raises(TubeMQTimeoutError, match="600000 ms") as caught:
        stand_still(patience, time, 700)

    assert caught.value.condition == "TUBEMQ_NO_PROGRESS"
    assert caught.value.__cause__ is AWAY
    assert 600 <= time.now - began < 602


def test_progress_gives_all_the_time_again(patience, time):
    for _ in range(3):
        stand_still(patience, time, 500)
        patience.progress()
