"""Rows, seconds and the time to catch up, from what moments of progress tell."""

import math

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.model import TopicPartition
from tubemq_spark.observe.lag import SourceHistory, StoreHistory, TopicLag

ROW = 28


def history(*moments):
    """Return the history of a store, given as (seconds, rows in the log, rows read)."""
    made = StoreHistory()
    for at, latest, position in moments:
        made.add(at, ROW * latest, ROW * position)
    return made


def lag(made):
    return made.rows, made.seconds


def test_a_log_read_to_its_end_has_no_lag():
    assert lag(history((100, 50, 50))) == (0, 0.0)
    assert lag(history((100, 50, 60))) == (0, 0.0), "such as a query that waits for the disk"


def test_seconds_are_counted_from_when_the_log_ended_where_the_query_stands():
    """Here it ended at row 20 at second 110, and at row 30 at second 120."""
    made = history((100, 10, 10), (110, 20, 10), (120, 30, 20))
    assert lag(made) == (10, 10.0)
    made.add(130, ROW * 40, ROW * 25)
    assert lag(made) == (15, 15.0)
    made.add(150, ROW * 40, ROW * 25)
    assert lag(made) == (15, 35.0), "nothing comes, and what waits grows older"


def test_a_log_that_rested_is_not_older_than_its_first_unread_row():
    """It ended at row 10 until second 200; the eleventh came after that."""
    made = history((100, 10, 10), (200, 10, 10), (201, 11, 10))
    assert lag(made) == (1, 1.0)


def test_a_backlog_from_before_the_first_moment_is_reckoned_with_the_rate():
    made = history((100, 1_000, 0))
    assert lag(made) == (1_000, None)
    made.add(110, ROW * 1_100, ROW * 500)
    assert lag(made) == (600, 10 + 500 / 10)
    assert lag(history((100, 1_000, 0), (110, 1_000, 0))) == (1_000, None), "no row came, so there is no rate"


def test_a_log_that_goes_back_starts_a_new_history():
    made = history((100, 50, 20), (110, 60, 30), (120, 5, 0))
    assert lag(made) == (5, None)
    made.add(130, ROW * 10, ROW * 5)
    assert lag(made) == (5, 10.0)


def test_moments_that_are_not_later_change_nothing():
    made = history((100, 50, 20), (100, 60, 30), (99, 70, 30))
    assert made.rows == 30


def one(topic, partition=0):
    return TopicPartition(topic, 1, partition)


def test_partitions_of_a_store_share_its_rows():
    """Half of what each could have: the furthest back counts."""
    source = SourceHistory()
    first, second = one("demo", 0), one("demo", 1)
    source.add(100, dict.fromkeys((first, second), ROW * 100), {first: ROW * 40, second: ROW * 70})
    (found,) = source.lags()
    assert found == TopicLag("demo", 60, None, None)


def test_topics_have_a_lag_each_and_stores_are_added_up():
    source = SourceHistory()
    a, b, other = one("demo", 0), one("demo", 10_000), one("orders")
    for at in (0, 10, 20):
        latest = {a: ROW * 10 * at, b: ROW * 10 * at, other: ROW * 7}
        source.add(at, latest, {a: ROW * 5 * at, b: ROW * 10 * at, other: ROW * 7})
    assert source.lags() == [TopicLag("demo", 100, 10.0, math.inf), TopicLag("orders", 0, 0.0, 0.0)]


def test_the_time_to_catch_up_counts_rows_that_arrive_until_then():
    source, partition = SourceHistory(), one("demo")
    source.add(0, {partition: ROW * 1_000}, {partition: 0})
    source.add(10, {partition: ROW * 1_100}, {partition: ROW * 300})
    (found,) = source.lags()
    assert found.rows == 800
    assert found.catch_up_seconds == pytest.approx(800 / (30 - 10))


def test_a_query_that_reads_no_more_than_comes_does_not_catch_up():
    source, partition = SourceHistory(), one("demo")
    source.add(0, {partition: ROW * 1_000}, {partition: 0})
    assert source.lags()[0].catch_up_seconds is None
    source.add(10, {partition: ROW * 1_100}, {partition: ROW * 100})
    assert source.lags()[0].catch_up_seconds == math.inf


def test_a_store_that_is_unknown_for_a_moment_keeps_its_history_and_one_that_is_gone_does_not():
    source, a, b = SourceHistory(), one("demo"), one("orders")
    source.add(0, {a: ROW * 9, b: ROW * 9}, {a: 0, b: 0})
    source.add(10, {b: ROW * 9}, {a: 0, b: 0})
    assert [(found.topic, found.rows) for found in source.lags()] == [("demo", 9), ("orders", 9)]
    source.add(20, {b: ROW * 9}, {b: 0})
    assert [found.topic for found in source.lags()] == ["orders"]


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1_000), st.integers(0, 10_000), st.integers(0, 12_000)),
        min_size=1,
        max_size=60,
    )
)
def test_seconds_lie_between_the_moments_that_were_seen(steps):
    """Rows that come and are read at random; the truth is known to be between two moments."""
    made, at, latest, position = StoreHistory(), 0.0, 0, 0
    seen = []
    for pause, come, read in steps:
        at, latest = at + pause, latest + come
        position = min(latest, position + read)
        seen.append((at, latest))
        made.add(at, ROW * latest, ROW * position)
    assert made.rows == latest - position
    seconds = made.seconds
    if made.rows == 0:
        assert seconds == 0
    elif position < seen[0][1]:
        assert seconds is None or seconds >= at - seen[0][0] - 1e-6
    else:
        last_before = max(when for when, end in seen if end <= position)
        first_after = min(when for when, end in seen if end > position)
        assert at - first_after - 1e-6 <= seconds <= at - last_before + 1e-6


def test_a_long_history_is_thinned_out_and_stays_about_right():
    made = StoreHistory()
    made.add(0, 0, 0)
    for at in range(1, 5_001):
        made.add(at, ROW * 10 * at, 0)
    assert len(made._ends) <= 1_001
    assert lag(made) == (50_000, 5_000.0)
    made.add(5_001, ROW * 50_010, ROW * 25_000)
    assert made.seconds == pytest.approx(2_501, rel=0.01)
