"""A producer's log: once when something goes, once when it is back, and nothing over and over."""

import types

import pytest

from tubemq_spark.client.producer.log import SendLog


@pytest.fixture
def clock():
    return types.SimpleNamespace(now=0.0)


@pytest.fixture
def log(clock, caplog):
    caplog.set_level("INFO")
    return SendLog("task 3", lambda: clock.now)


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_an_outage_is_told_at_its_beginning_and_at_its_end(log, clock, caplog):
    for _ in range(100):
        log.away("broker 1", "refused", 2)
        clock.now += 0.5
    log.back("broker 1")
    log.back("broker 1")
    assert lines(caplog) == [
        "task 3: broker 1 is away: refused",
        "task 3: broker 1 is back after 50.0 s, 200 messages waited",
    ]


def test_outages_that_follow_each_other_quickly_are_told_once(log, clock, caplog):
    for _ in range(100):
        log.away("broker 1", "refused", 1)
        clock.now += 0.1
        log.back("broker 1")
    assert len(lines(caplog)) == 2
    log.summary("5 rows")
    assert lines(caplog)[-1] == "task 3: 5 rows; 100 outages, 10.0 s"


def test_an_outage_says_nothing_of_another(log, caplog):
    log.away("broker 1", "refused", 1)
    log.away("topic demo", "none", 1)
    log.back("broker 2")
    assert len(lines(caplog)) == 2


def test_events_of_a_kind_are_counted_between_their_lines(log, clock, caplog):
    for _ in range(700):
        log.event("419", "overflow")
        clock.now += 0.1
    log.event("503", "stopped")
    assert lines(caplog) == [
        "task 3: overflow",
        "task 3: overflow (and 299 more of this kind since the last such line)",
        "task 3: overflow (and 299 more of this kind since the last such line)",
        "task 3: stopped",
    ]


def test_the_summary_tells_of_no_outages_when_there_were_none(log, caplog):
    log.summary("5 rows to 1 partitions")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "task 3: 5 rows to 1 partitions")
    ]
