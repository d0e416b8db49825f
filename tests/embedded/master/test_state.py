"""When a master lists a broker that falls silent, leaves, and returns."""

import pytest

from tubemq_spark.embedded.master.state import Presence

TIMEOUT_MS, STARTUP_MS = 30_000, 35_000


@pytest.fixture
def presence(clock):
    return Presence(TIMEOUT_MS, STARTUP_MS, clock)


def listed_at(presence, clock, now_ms):
    clock.now_ms = now_ms
    return presence.listed


def test_a_broker_that_is_there_first_is_listed_at_once(presence):
    assert presence.listed


def test_a_silent_broker_is_listed_until_the_time_is_out(presence, clock):
    presence.mark_silent()
    assert listed_at(presence, clock, TIMEOUT_MS - 1)
    presence.mark_silent()
    assert not listed_at(presence, clock, TIMEOUT_MS), "counted from when it fell silent first"


def test_a_broker_that_comes_back_in_time_was_never_away(presence, clock):
    presence.mark_silent()
    clock.now_ms = TIMEOUT_MS - 1
    presence.mark_back()
    assert listed_at(presence, clock, TIMEOUT_MS - 1)
    assert listed_at(presence, clock, 2 * TIMEOUT_MS)


def test_a_broker_that_was_given_up_is_published_anew(presence, clock):
    presence.mark_silent()
    clock.now_ms = TIMEOUT_MS
    presence.mark_back()
    assert not presence.timed_out
    assert not listed_at(presence, clock, TIMEOUT_MS + STARTUP_MS - 1)
    assert listed_at(presence, clock, TIMEOUT_MS + STARTUP_MS)


def test_a_broker_that_leaves_is_given_up_at_once(presence):
    presence.mark_left()
    assert presence.timed_out
    assert not presence.listed


def test_a_broker_that_joins_is_published_after_its_startup(presence, clock):
    presence.mark_joined()
    assert not listed_at(presence, clock, STARTUP_MS - 1)
    assert listed_at(presence, clock, STARTUP_MS)
