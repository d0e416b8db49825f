"""Which brokers may be asked: one that is silent takes one turn, one that is away one attempt at a time."""

import pytest

from tubemq_spark.client.consumer.cache import PATIENCE_S, BrokerHealth
from tubemq_spark.net.retry import BROKER_AWAY


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def brokers(clock):
    return BrokerHealth(clock, lambda: 0.0)


def fail(brokers, number):
    brokers.ask(1, number)
    brokers.fail(1, number)


def test_partitions_of_a_sound_broker_are_asked_at_once(brokers):
    for number in range(10):
        assert brokers.may_be_asked(1)
        brokers.ask(1, number)


def test_a_silent_broker_is_asked_no_more_until_it_answers(brokers, clock):
    brokers.ask(1, 1)
    clock.now += PATIENCE_S
    assert not brokers.may_be_asked(1)
    assert brokers.may_be_asked(2)
    brokers.end(1, 1)
    assert brokers.may_be_asked(1)


def test_pauses_double_and_one_partition_is_tried_after_each(brokers, clock):
    for number, pause_ms in enumerate((300, 600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000), 1):
        fail(brokers, number)
        assert brokers.next_attempt() == pytest.approx(clock.now + pause_ms / 1_000)
        clock.now += pause_ms / 1_000 - 0.001
        assert not brokers.may_be_asked(1)
        clock.now += 0.002
        assert brokers.may_be_asked(1)
        brokers.ask(1, 100)
        assert not brokers.may_be_asked(1), "one at a time"
        brokers.end(1, 100)


def test_pauses_are_shortened_at_random_by_up_to_a_half(clock):
    brokers = BrokerHealth(clock, lambda: 1.0)
    fail(brokers, 1)
    assert brokers.next_attempt() == pytest.approx(clock.now + BROKER_AWAY.first_ms / 2_000)


def test_requests_that_were_under_way_together_are_one_failure(brokers, clock):
    for number in range(5):
        brokers.ask(1, number)
    clock.now += 10
    for number in range(5):
        brokers.fail(1, number)
    assert brokers.next_attempt() == pytest.approx(clock.now + 0.3)


def test_an_answer_makes_a_broker_sound(brokers):
    fail(brokers, 1)
    assert brokers.is_away(1)
    brokers.answer(1)
    assert not brokers.is_away(1)
    assert brokers.may_be_asked(1)
    assert brokers.next_attempt() is None
