"""A failure that repeats is logged when it begins and when it is over."""

import pytest

from tubemq_spark.embedded.scheduler import FailureLog


@pytest.fixture
def logged(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_failure_is_logged_once_until_it_is_over(logged):
    failures = FailureLog()
    for _ in range(3):
        failures.failed("Saving", "full")
    failures.succeeded("Saving")
    failures.succeeded("Saving")
    failures.failed("Saving", "full again")
    assert logged() == ["Saving failed: full", "Saving works again", "Saving failed: full again"]


def test_each_name_fails_by_itself(logged):
    failures = FailureLog()
    failures.failed("Saving", "full")
    failures.succeeded("Flushing")
    failures.failed("Flushing", "full")
    assert logged() == ["Saving failed: full", "Flushing failed: full"]


def test_any_other_error_is_raised(logged):
    with pytest.raises(ZeroDivisionError), FailureLog().logged("Counting"):
        raise ZeroDivisionError
    assert logged() == []
