"""The listener, told what Spark tells it."""

import logging
import math
from types import SimpleNamespace

import pytest

from tests.observe.events import idle, offset, progress, run_id, source, termination
from tubemq_spark.observe import LagListener, TopicLag
from tubemq_spark.observe.progress import moment

OTHERS = [
    source("null", "null"),
    source("None", "None"),
    source("7", "9"),
    source('{"orders":{"0":7}}', '{"orders":{"0":9}}'),
    source('{"v":1,"start":"latest"}', offset(demo=9)),
    source(offset(demo=9), "null"),
    source('{"v":3,"topics":{}}', '{"v":3,"topics":{}}'),
    source("[]", "[]"),
]
"""Sources of other kinds, and ours before the first micro-batch and from the future."""


@pytest.fixture
def listener():
    return LagListener()


def lags(listener):
    return [(lag.query, lag.source, [(one.topic, one.rows) for one in lag.topics]) for lag in listener.lags()]


def test_every_query_every_source_and_every_topic_has_a_lag(listener):
    joined = source(offset(demo=5, orders=7), offset(demo=6, orders=9)), source("7", "9")
    listener.onQueryProgress(
        progress(run_id(1), *joined, source(offset(demo=2), offset(demo=6)), name="joined")
    )
    listener.onQueryProgress(progress(run_id(2), source(offset(demo=6), offset(demo=6))))

    assert lags(listener) == [
        ("joined", 0, [("demo", 1), ("orders", 2)]),
        ("joined", 2, [("demo", 4)]),
        (str(run_id(2)), 0, [("demo", 0)]),
    ]


@pytest.mark.parametrize("other", OTHERS)
def test_progress_of_other_sources_is_ignored(listener, caplog, other):
    caplog.set_level(logging.INFO)
    listener.onQueryProgress(progress(run_id(1), other))
    assert (listener.lags(), caplog.text) == ([], "")
    listener.onQueryProgress(progress(run_id(1), other, source(offset(demo=1), offset(demo=3)), second=1))
    assert lags(listener) == [(str(run_id(1)), 1, [("demo", 2)])]


def test_an_idle_query_is_told_from_a_stuck_one(listener):
    """What was true after the last micro-batch still is; a query that Spark does not ask about is unknown."""
    listener.onQueryProgress(progress(run_id(1), source(offset(demo=5), offset(demo=6))))
    (before,) = listener.lags()
    listener.onQueryIdle(idle(run_id(1), second=30))
    listener.onQueryIdle(idle(run_id(2), second=30))
    (after,) = listener.lags()
    assert (after.at - before.at, after.topics) == (30, before.topics)


class Session:
    """A session of Spark as the listener uses it: each query has a last progress, if it is there."""

    def __init__(self, *last):
        self.streams = self
        self.last = {str(event.progress.id): event.progress for event in last}

    def get(self, query_id):
        if query_id not in self.last:
            raise LookupError("there is no such query")
        return SimpleNamespace(lastProgress=self.last[query_id])


def test_an_idle_query_is_behind_by_what_spark_saw_last(listener):
    """As when nothing can be read because a broker is away; what was read is not counted twice."""
    before = progress(run_id(1), source(offset(demo=5), offset(demo=6), start=offset(demo=0)))
    seen = source(
        offset(demo=5), offset(demo=9, brokers={"away": [1], "outages": 1}), start=offset(demo=5), rows=0
    )
    listener.onQueryProgress(before)
    for session, rows, away in (
        (None, 1, 0),
        (Session(), 1, 0),
        (Session(progress(run_id(1), seen, second=20)), 4, 1),
        (Session(before), 4, 1),
    ):
        listener.spark = session
        listener.onQueryIdle(idle(run_id(1), second=30))
        (state,) = listener.states()
        (found,) = state.sources
        assert (state.idle, state.batches, found.input_rows) == (True, 1, 1)
        assert (found.lag.topics[0].rows, found.away, found.read_by_topic) == (rows, away, {"demo": 5})
        assert found.lag.at == lag_at(30)
    listener.onQueryProgress(progress(run_id(1), seen, second=40))
    (state,) = listener.states()
    assert (state.idle, state.batches) == (False, 2)


def lag_at(second):
    return moment(f"2026-03-01T12:00:{second:02d}.000Z")


def test_what_spark_says_of_a_query_that_ended_meanwhile_and_runs_again_is_not_taken(listener):
    listener.onQueryProgress(progress(run_id(1), source(offset(demo=5), offset(demo=6))))
    again = progress(run_id(1), source(offset(demo=5), offset(demo=9)), second=20)
    again.progress["runId"] = run_id(7)
    listener.spark = Session(again)
    listener.onQueryIdle(idle(run_id(1), second=30))
    assert lags(listener) == [(str(run_id(1)), 0, [("demo", 1)])]


def test_seconds_come_from_the_timestamps_of_progress(listener):
    for second, end in ((0, 10), (10, 10), (20, 20)):
        listener.onQueryProgress(
            progress(run_id(1), source(offset(demo=end), offset(demo=10 + second)), second=second)
        )
    (lag,) = listener.lags()
    assert lag.topics == (TopicLag("demo", 10, 10.0, math.inf),)


def test_queries_that_end_are_forgotten(listener):
    for number in (1, 2):
        listener.onQueryProgress(progress(run_id(number), source(offset(demo=1), offset(demo=3))))
    listener.onQueryTerminated(termination(run_id(1)))
    listener.onQueryTerminated(termination(run_id(3)))
    assert [lag.query for lag in listener.lags()] == [str(run_id(2))]


def test_the_log_has_one_line_per_query_and_minute(listener, caplog):
    caplog.set_level(logging.INFO)
    for second in range(0, 130, 10):
        for number in (1, 2):
            listener.onQueryProgress(
                progress(
                    run_id(number),
                    source(offset(demo=3 * second, orders=9), offset(demo=100 + 2 * second, orders=9)),
                    second=second,
                    name=f"query{number}",
                )
            )
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 * 3
    assert lines[0] == (
        "query query1, source 0: 100 rows behind (demo 100 rows behind, orders 0 rows and 0.0 s behind)"
    )
    assert lines[2] == (
        "query query1, source 0: 40 rows and 20.0 s behind "
        "(demo 40 rows and 20.0 s behind, orders 0 rows and 0.0 s behind); it catches up in about 40 s"
    )


def test_many_topics_make_no_long_line(listener, caplog):
    caplog.set_level(logging.INFO)
    topics = {f"topic{number}": number for number in range(9)}
    listener.onQueryProgress(
        progress(run_id(1), source(offset(**dict.fromkeys(topics, 0)), offset(**topics)))
    )
    assert "36 rows behind (topic8 8 rows behind, topic7" in caplog.text
    assert "topic4 4 rows behind and 4 more topics)" in caplog.text


def test_the_log_tells_of_a_query_that_does_not_catch_up(listener, caplog):
    caplog.set_level(logging.INFO)
    for second in range(0, 130, 10):
        ends = offset(demo=second), offset(demo=100 + 2 * second)
        listener.onQueryProgress(progress(run_id(1), source(*ends), second=second, name="slow"))
    assert caplog.messages[-1].endswith("; it does not catch up")
