"""What a producer counts is what it did: of requests, answers, bytes and time, for each broker.

What is counted in buckets is right to a quarter, and the rest exactly.
"""

import contextlib
import dataclasses
import math
import pickle

import pytest
from hypothesis import given, settings, strategies as st

from testkit.virtual_loop import in_virtual_time
from tests.client.producer.test_window import FATES, SILENT, run, send_all
from tests.client.scripted_cluster import OVERFLOW, STORE, Do, refuse, scripted_cluster, then_store
from tests.client.virtual_brokers import GOOD, Fate
from tubemq_spark.client.producer.statistics import (
    BrokerStatistics,
    Latencies,
    Latency,
    ProducerStatistics,
    together,
)
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Status


def counted(net):
    return [link.counts.snapshot(link.broker_id, link.endpoint) for link in net.links.all]


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from([fate for fate in FATES if not fate.unreachable]), max_size=60),
    count=st.integers(1, 50),
    brokers=st.integers(1, 3),
)
@in_virtual_time
async def test_every_request_is_counted_and_accounted_for(fates, count, brokers):
    net, window = run(fates, brokers, 2, delivery_timeout_ms=600_000)
    values = [b"%d" % number for number in range(count)]
    try:
        await net.send(window, values)
        await window.flush()
    except ProduceError:
        return
    seen = counted(net)
    assert sum(one.requests for one in seen) == net.requests
    assert sum(one.retries for one in seen) == net.requests - count == window.retried
    assert sum(one.stored for one in seen) == count
    assert sum(one.stored_bytes for one in seen) == sum(map(len, values))
    assert {one.broker_id: one.sent_bytes for one in seen if one.sent_bytes} == net.written
    assert {one.broker_id: one.received_bytes for one in seen if one.received_bytes} == net.read
    for one in seen:
        assert sum(one.answers.values()) + one.unanswered == one.requests
        assert one.latency.count == one.stored


@in_virtual_time
async def test_a_request_that_takes_long_is_seen_in_its_broker_s_latency():
    net, window = run([], brokers=3)
    net.slow = {2}
    await send_all(net, window, 600)
    seen = ProducerStatistics(tuple(counted(net)), 0.0, 0.0)
    assert seen.slowest.broker_id == 2
    assert 0.2 <= seen.slowest.latency.least_s <= seen.slowest.latency.mean_s <= 0.3
    assert 0.2 <= seen.slowest.latency.percentile_s(50) <= 0.3
    assert all(one.latency.percentile_s(99) < 0.1 for one in seen.brokers if one.broker_id != 2)
    assert seen.latency.count == 600


@in_virtual_time
async def test_an_answer_that_comes_while_bytes_are_written_has_its_latency():
    net, window = run([])
    net.bytes_per_s = 1_000_000
    await net.send(window, [b"%1000d" % number for number in range(200)])
    await window.flush()
    (seen,) = counted(net)
    assert seen.latency.count == 200
    assert 0.001 <= seen.latency.least_s <= seen.latency.most_s <= 1.0


@in_virtual_time
async def test_the_time_for_which_the_window_was_full_is_counted():
    net, window = run([GOOD] + [Fate(delay_s=0.3)] * 4, max_in_flight=4)
    await send_all(net, window, 1)  # connects
    await net.send(window, [b"%d" % number for number in range(4)])
    assert window.room_wait_s == 0.0
    await window.room([0, 1])
    assert 0.25 <= window.room_wait_s <= 0.4


@in_virtual_time
async def test_counts_can_begin_again():
    net, window = run([SILENT] + [Fate(delay_s=0.3)] * 8, max_in_flight=2)
    await send_all(net, window, 6)
    assert window.retried == 1
    window.forget_counts()
    assert (window.retried, window.room_wait_s) == (0, 0.0)
    await send_all(net, window, 3)
    (seen,) = counted(net)
    assert (seen.requests, seen.retries, seen.unanswered, seen.latency.count) == (3, 0, 0, 3)


@pytest.fixture
def cluster():
    with scripted_cluster(3, demo="1:1:1,2:1:1,3:1:1#") as made:
        yield made


def send_to(producer, broker_id, count):
    for _ in range(count):
        producer.send("demo", b"12345", partition=(broker_id, 0))


def test_each_broker_has_its_own_counts(cluster):
    cluster.brokers[0].script = then_store(OVERFLOW, refuse(423), refuse(403), OVERFLOW)
    failing = Do(store=False, exception="ServerNotReadyException", status=Status.FATAL)
    cluster.brokers[1].script = then_store(failing)
    with cluster.sender() as producer:
        assert producer.statistics().brokers == ()
        for broker_id, count in ((3, 5), (1, 10), (2, 20)):
            send_to(producer, broker_id, count)
        producer.flush()
        seen = producer.statistics()
    assert [one.broker_id for one in seen.brokers] == [1, 2, 3]
    first, second, third = seen.brokers
    assert first.endpoint == cluster.brokers[0].server.endpoint
    assert (first.requests, first.retries, first.stored, first.stored_bytes) == (14, 4, 10, 50)
    assert (first.refused, first.exceptions) == ({419: 2, 423: 1, 403: 1}, {})
    assert first.answers == {200: 10, 419: 2, 423: 1, 403: 1}
    assert (second.refused, second.exceptions) == ({}, {"ServerNotReadyException": 1})
    assert (second.requests, second.retries) == (21, 1)
    assert (third.requests, third.retries, third.stored, third.refused) == (5, 0, 5, {})
    assert seen.answers == {200: 35, 419: 2, 423: 1, 403: 1}
    assert (seen.requests, seen.retries, seen.stored, seen.stored_bytes) == (40, 5, 35, 175)


def test_a_snapshot_does_not_change_and_travels(cluster):
    with cluster.sender() as producer:
        send_to(producer, 1, 3)
        producer.flush()
        seen = producer.statistics()
        with pytest.raises(dataclasses.FrozenInstanceError):
            seen.room_wait_s = 1.0
        send_to(producer, 1, 3)
        producer.flush()
    assert seen.requests == 3
    assert pickle.loads(pickle.dumps(seen)) == seen


def test_a_producer_that_failed_tells_what_it_did(cluster):
    cluster.brokers[0].script = then_store(STORE, refuse(400))
    with contextlib.closing(cluster.sender(max_in_flight=1)) as producer:
        with pytest.raises(ProduceError):  # noqa: PT012 - either sees it
            send_to(producer, 1, 2)
            producer.flush()
        assert producer.statistics().answers == {200: 1, 400: 1}


def test_the_line_says_what_was_sent_what_was_waited_for_and_who_was_slow():
    def broker(number, **counts):
        empty = BrokerStatistics(number, Endpoint("b", number), 0, 0, 0, 0, 0, 0, {}, {}, 0, Latency())
        return dataclasses.replace(empty, **counts)

    slow = Latency(4, 6.0, 1.0, 2.0, ((1.6, 3), (2.2, 1)))
    fast = Latency(4, 0.02, 0.004, 0.006, ((0.007, 4),))
    brokers = (
        broker(1, requests=7, retries=2, stored_bytes=1_000, latency=fast),
        broker(2, requests=5, retries=1, stored_bytes=3_600, latency=slow),
    )
    assert str(ProducerStatistics(brokers, 0.26, 7.04)) == (
        "12 requests, 3 of them retries; waited 0.3 s for room; "
        "slowest broker 2 (b:2): mean 1.5 s, 99th percentile 2.0 s; took 7.0 s"
    )
    assert "slowest broker 1 (b:1): mean 5.0 ms, 99th percentile 6.0 ms;" in str(
        ProducerStatistics(brokers[:1], 0.0, 1.0)
    )
    assert str(ProducerStatistics((), 0.0, 0.0)) == (
        "0 requests, 0 of them retries; waited 0.0 s for room; took 0.0 s"
    )


TIMES = st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 500)), min_size=1, max_size=40)


def latency_of(times) -> Latency:
    latencies = Latencies()
    for seconds, often in times:
        latencies.add(seconds, often)
    return latencies.snapshot()


@given(TIMES)
def test_count_total_and_extremes_are_exact(times):
    latency = latency_of(times)
    assert latency.count == sum(often for _, often in times)
    assert math.isclose(latency.total_s, sum(seconds * often for seconds, often in times), abs_tol=1e-12)
    assert (latency.least_s, latency.most_s) == (min(times)[0], max(times)[0])
    assert sum(count for _, count in latency.buckets) == latency.count


@given(TIMES, st.floats(0.1, 100))
def test_percentiles_are_right_to_a_quarter(times, percent):
    ordered = sorted(seconds for seconds, often in times for _ in range(often))
    exact = ordered[math.ceil(len(ordered) * percent / 100 - 1e-9) - 1]
    assert exact <= latency_of(times).percentile_s(percent) + 1e-12
    assert latency_of(times).percentile_s(percent) <= exact * 1.25 + 2e-6


@given(TIMES)
def test_bounds_ascend_and_hold_their_times(times):
    latency = latency_of(times)
    bounds = [bound for bound, _ in latency.buckets]
    assert bounds == sorted(set(bounds))
    for seconds, _ in times:
        assert any(seconds <= bound <= seconds * 1.25 + 2e-6 for bound in bounds)


@given(TIMES, TIMES)
def test_counts_of_several_are_one_count(some, others):
    one = together([latency_of(some), Latency(), latency_of(others)])
    all_of_them = latency_of(some + others)
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
    latency = latency_of([(0.001, 5), (0.002, 5)])
    assert latency.percentile_s(percent) == pytest.approx(seconds, rel=0.25)
    assert latency.mean_s == pytest.approx(0.0015)
