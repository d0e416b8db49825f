"""Jobs that tests kill begin their query again when a Python process came too late for Spark, only then."""

import pytest
from pyspark.errors import StreamingQueryException

from integration_tests.programs.stream_to_files import STARTS, TOO_LATE, finish


class Query:
    """A query that ends at once, well or with an error."""

    def __init__(self, error):
        self._error = error

    def awaitTermination(self, _):  # noqa: N802 - Spark's name
        if self._error is not None:
            raise StreamingQueryException(self._error)
        return True


def started(errors, folder):
    """Finish a query that ends with each of these in turn; return how often it was started."""
    left = iter(errors)
    try:
        finish(lambda: Query(next(left)), folder)
    finally:
        times = len(errors) - len(list(left))
    return times


def test_a_query_whose_python_process_came_too_late_is_started_again(tmp_path):
    late = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {TOO_LATE}. SQLSTATE: XXKST"
    assert started([late, late, None, None], tmp_path) == 3


def test_a_job_that_is_always_too_late_ends(tmp_path):
    with pytest.raises(StreamingQueryException, match=TOO_LATE):
        started([TOO_LATE] * STARTS, tmp_path)


def test_any_other_error_ends_a_job_at_once(tmp_path):
    with pytest.raises(StreamingQueryException, match="lost"):
        started(["[TUBEMQ_DATA_LOSS.EXPIRED] lost", None], tmp_path)
