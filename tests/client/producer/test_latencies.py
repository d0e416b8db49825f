"""What is counted in buckets is right to a quarter, and the rest exactly."""

import math

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.client.producer.statistics import Latencies, Latency, together

TIMES = st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 500)), min_size=1, max_size=40)


def counted(times) -> Latency:
    latencies = Latencies()
    for seconds, often in times:
        latencies.add(seconds, often)
    return latencies.snapshot()


@given(TIMES)
def test_count_total_and_extremes_are_exact(times):
    latency = counted(times)
    assert latency.count == sum(often for _, often in times)
    assert math.isclose(latency.total_s, sum(seconds * often for seconds, often in times), abs_tol=1e-12)
    assert (latency.least_s, latency.most_s) == (min(times)[0], max(times)[0])
    assert sum(count for _, count in latency.buckets) == latency.count


@given(TIMES, st.floats(0.1, 100))
def test_percentiles_are_right_to_a_quarter(times, percent):
    ordered = sorted(seconds for seconds, often in times for _ in range(often))
    exact = ordered[math.ceil(len(ordered) * percent / 100 - 1e-9) - 1]
    assert exact <= counted(times).percentile_s(percent) + 1e-12
    assert counted(times).percentile_s(percent) <= exact * 1.25 + 2e-6


@given(TIMES)
def test_bounds_ascend_and_hold_their_times(times):
    latency = counted(times)
    bounds = [bound for bound, _ in latency.buckets]
    assert bounds == sorted(set(bounds))
    for seconds, _ in times:
        assert any(seconds <= bound <= seconds * 1.25 + 2e-6 for bound in bounds)


@given(TIMES, TIMES)
def test_counts_of_several_are_one_count(some, others):
    one = together([counted(some), Latency(), counted(others)])
    all_of_them = counted(some + others)
    assert one.buckets == all_of_them.buckets
    assert (one.count, one.least_s, one.most_s) == (
        all_of_them.count,
        all_of_them.least_s,
        all_of_them.most_s,
    )
    assert math.isclose(one.total_s, all_of_them.total_s, rel_tol=1e-9)


def test_what_never_happened_took_no_time():
    assert together([]) == Latencies().snapshot() == Latency()
    assert (Latency().mean_s, Latency().percentile_s(99)) == (0.0, 0.0)


@pytest.mark.parametrize(("percent", "seconds"), [(1, 0.001), (50, 0.001), (51, 0.002), (100, 0.002)])
def test_percentiles_of_two_values(percent, seconds):
    latency = counted([(0.001, 5), (0.002, 5)])
    assert latency.percentile_s(percent) == pytest.approx(seconds, rel=0.25)
    assert latency.mean_s == pytest.approx(0.0015)
