"""Many are asked at once, and an error of one is no error of another."""

import threading

import pytest

from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.net.side_by_side import all_of, answers_and_errors

AWAY = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")


def test_all_are_asked_at_once_and_answers_keep_the_order_of_the_keys():
    together = threading.Barrier(3, timeout=10)

    def ask(number):
        together.wait()
        return -number

    assert list(all_of(ask, [3, 1, 2]).items()) == [(3, -3), (1, -1), (2, -2)]
    assert all_of(ask, []) == {}


def fail_at_one(number):
    if number == 1:
        raise AWAY
    return number


@pytest.mark.parametrize("keys", [[1], [0, 1, 2]])
def test_an_error_of_one_is_raised_or_returned_beside_the_answers_of_the_others(keys):
    with pytest.raises(TubeMQConnectionError):
        all_of(fail_at_one, keys)
    assert answers_and_errors(fail_at_one, keys) == ({key: key for key in keys if key != 1}, {1: AWAY})
