"""A thread fetches ahead of Spark, and ends with whoever reads."""

import threading

import pytest

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.source.task import _ahead

WAIT_SECONDS = 10


def running():
    return [thread for thread in threading.enumerate() if thread.name == "tubemq-read-test"]


def ahead(batches):
    return _ahead(lambda _: batches, name="tubemq-read-test")


def test_everything_comes_in_its_order():
    assert list(ahead(iter(range(100)))) == list(range(100))
    assert running() == []


def test_nothing_runs_before_the_first_row_is_asked_for():
    reading = ahead(iter(range(3)))

    assert running() == []
    assert list(reading) == [0, 1, 2]


def test_an_error_comes_behind_the_rows_before_it():
    error = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="here", cause="test")

    def failing():
        yield 1
        yield 2
        raise error

    reading = ahead(failing())
    assert [next(reading), next(reading)] == [1, 2]
    with pytest.raises(TubeMQConnectionError) as raised:
        next(reading)

    assert raised.value is error
    assert running() == []


def test_whoever_stops_reading_stops_the_thread():
    """LIMIT and cancelled jobs close the generator; the one below it gives its lease back."""
    closed = threading.Event()

    def endless():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    reading = ahead(endless())
    next(reading)
    reading.close()

    assert closed.is_set()
    assert running() == []


def test_the_thread_goes_only_a_little_ahead():
    produced, blocked = [], threading.Event()

    def counting():
        for number in range(100):
            produced.append(number)
            if number == 3:
                blocked.set()
            yield number

    reading = ahead(counting())
    assert next(reading) == 0
    # One is read, two wait in the queue, one is in the thread's hand.
    assert blocked.wait(WAIT_SECONDS)
    assert produced == [0, 1, 2, 3]
    assert next(reading) == 1
    reading.close()


def test_whoever_stops_reading_does_not_wait_for_a_broker():
    """What waits (for a lease, or for a broker that is away) is told."""
    waiting, closed = threading.Event(), threading.Event()

    def patient(wait):
        try:
            yield 1
            waiting.set()
            wait(10 * WAIT_SECONDS)
            yield 2
        finally:
            closed.set()

    reading = _ahead(patient, name="tubemq-read-test")
    assert next(reading) == 1
    assert waiting.wait(WAIT_SECONDS)
    reading.close()

    assert closed.is_set()
    assert running() == []


def test_a_wait_that_nobody_cuts_short_ends():
    def patient(wait):
        wait(0.001)
        yield 1

    assert list(_ahead(patient, name="tubemq-read-test")) == [1]
