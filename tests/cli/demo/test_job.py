"""Watching a query, and finding the sentence in Spark's errors; no Spark session."""

from types import SimpleNamespace

import pytest

from tubemq_spark.cli.demo.job import cause_of, follow
from tubemq_spark.errors import TubeMQTimeoutError


class FakeQuery:
    """A query with given progress: one list of (batch id, rows) per poll."""

    def __init__(self, looks, *, ends):
        self.looks = looks
        self.ends = ends
        self.look = -1

    def awaitTermination(self, timeout):  # noqa: N802 - Spark's name
        assert timeout > 0
        self.look = min(self.look + 1, len(self.looks) - 1)
        return self.ends and self.look == len(self.looks) - 1

    @property
    def recentProgress(self):  # noqa: N802 - Spark's name
        return [SimpleNamespace(batchId=batch, numInputRows=rows) for batch, rows in self.looks[self.look]]


def test_each_batch_is_reported_once_including_the_last():
    told = []
    query = FakeQuery([[], [(0, 5)], [(0, 5), (1, 7)], [(1, 7), (2, 1)]], ends=True)
    follow(query, lambda *batch: told.append(batch), lambda: False)
    assert told == [(0, 5), (1, 7), (2, 1)]


def test_empty_triggers_do_not_hide_the_batch_of_their_number():
    told = []
    query = FakeQuery([[(0, 0)], [(0, 0), (0, 5)]], ends=True)
    follow(query, lambda *batch: told.append(batch), lambda: False)
    assert told == [(0, 5)]


def test_watching_a_query_ends_when_its_condition_holds():
    told = []
    query = FakeQuery([[(0, 5)], [(0, 5), (1, 5)], [(2, 5)]], ends=False)
    follow(query, lambda *batch: told.append(batch), lambda: len(told) == 2)
    assert told == [(0, 5), (1, 5)]


def test_a_query_that_does_nothing_is_given_up():
    with pytest.raises(TubeMQTimeoutError, match="not finished a micro-batch"):
        follow(FakeQuery([[]], ends=False), lambda *_: None, lambda: False, patience_ms=1)


def test_our_own_error_is_what_counts_in_a_spark_error():
    error = RuntimeError(
        "[STREAM_FAILED] Query failed\nTraceback ...\n"
        "tubemq_spark.errors.RpcError: [TUBEMQ_RPC] broker answered 500; try again.\n\n"
    )
    assert cause_of(error) == "[TUBEMQ_RPC] broker answered 500; try again."


def test_otherwise_the_first_line_counts():
    assert (
        cause_of(RuntimeError("\n  [JAVA_GATEWAY_EXITED] Java is gone\n  more"))
        == "[JAVA_GATEWAY_EXITED] Java is gone"
    )
    assert cause_of(RuntimeError()) == "RuntimeError"
