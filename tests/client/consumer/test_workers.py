"""Threads for calls that block: a few for each broker, which end with its line."""

import threading
from concurrent.futures import wait

import pytest

from tests.waiting import wait_until
from tubemq_spark.client.consumer.workers import BrokerWorkers

SECONDS = 30


def threads_of(broker):
    return [thread for thread in threading.enumerate() if thread.name == f"tubemq-steps-{broker}"]


@pytest.fixture
def workers():
    yield BrokerWorkers()
    wait_until(lambda: not threads_of("a") + threads_of("b"), SECONDS)


def test_calls_go_on_after_threads_have_ended(workers):
    for number in range(5):
        assert workers.start("a", lambda number=number: number).result(SECONDS) == number
        wait_until(lambda: not threads_of("a"), SECONDS)


def test_a_broker_has_two_threads_and_keeps_no_other_waiting(workers):
    over = threading.Event()
    stuck = [workers.start("a", lambda: over.wait(SECONDS)) for _ in range(2)]
    waiting = [workers.start("a", lambda number=number: number) for number in range(20)]
    assert workers.start("b", lambda: "b").result(SECONDS) == "b"
    assert len(threads_of("a")) == 2
    assert not wait(stuck + waiting, 0).done
    over.set()
    assert [future.result(SECONDS) for future in waiting] == list(range(20))


@pytest.mark.parametrize("error", [ValueError("no luck"), KeyboardInterrupt(), SystemExit(1)])
def test_an_error_comes_to_the_caller_and_the_line_goes_on(workers, error):
    def fail():
        raise error

    failing = [workers.start("a", fail) for _ in range(5)]
    assert workers.start("a", lambda: "next").result(SECONDS) == "next"
    assert [future.exception(SECONDS) for future in failing] == [error] * 5
