"""Routes: a master is asked when what it said is too old, once for all, and not while it is away."""

import concurrent.futures
import threading

import pytest

from tests.memory_cluster import MemoryCluster
from tests.waiting import wait_until
from tubemq_spark.errors import OptionError, RemoteProtocolError, TubeMQConnectionError
from tubemq_spark.gateway.admission import Stop, StoppedError
from tubemq_spark.gateway.session.routes import Routes
from tubemq_spark.model import TopicPartition

REFRESH_S, EXPIRY_S = 20.0, 300.0


class Master(MemoryCluster):
    """Counts the questions; may be away, or slow."""

    def __init__(self):
        super().__init__(demo=(2, 2), other=(1, 1))
        self.asked = []
        self.away = False
        self.failure = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="asking", tried="m:1")
        self.gate = None

    def layout(self, topics, *, missing_ok=False):
        self.asked.append(tuple(topics))
        if self.gate is not None:
            self.gate.wait(5)
        if self.away:
            raise self.failure
        return super().layout(topics, missing_ok=missing_ok)


class Clock:
    now = 0.0
    read = 0

    def __call__(self):
        self.read += 1
        return self.now


@pytest.fixture
def parts():
    master, clock = Master(), Clock()
    return master, clock, Routes(master, REFRESH_S, EXPIRY_S, clock)


DEMO = TopicPartition("demo", 1, 10_001)


def test_an_answer_of_a_master_is_used_until_it_is_too_old(parts):
    master, clock, routes = parts
    first = routes.find([DEMO])
    clock.now += REFRESH_S
    assert routes.find([DEMO]) == first
    assert len(master.asked) == 1

    clock.now += 1
    routes.find([DEMO])
    assert len(master.asked) == 2


def test_a_layout_is_asked_for_and_remembered(parts):
    master, _, routes = parts
    routes.layout(["demo", "other"], missing_ok=False)
    routes.layout(["demo", "other"], missing_ok=False)
    assert set(routes.find([DEMO, TopicPartition("other", 1, 0)]).partitions) == {
        DEMO,
        TopicPartition("other", 1, 0),
    }
    assert len(master.asked) == 2


def test_a_route_that_proved_wrong_is_asked_for_again(parts):
    master, _, routes = parts
    routes.find([DEMO])
    routes.forget(["demo"])
    routes.find([DEMO])
    assert len(master.asked) == 2


@pytest.mark.parametrize(
    "failure",
    [
        TubeMQConnectionError("TUBEMQ_NO_MASTER", during="asking", tried="m:1"),
        OptionError("TUBEMQ_NOT_A_MASTER", endpoint="m:1", what="an HTTP server"),
        RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what="a list contradicts the other"),
    ],
    ids=lambda error: error.condition,
)
def test_while_masters_are_away_the_last_answer_is_used_for_a_while(parts, failure):
    master, clock, routes = parts
    master.failure = failure
    known = routes.find([DEMO])
    master.away = True
    clock.now += EXPIRY_S
    assert routes.find([DEMO]) == known

    clock.now += 1
    with pytest.raises(type(failure)):
        routes.find([DEMO])


@pytest.mark.parametrize("partition", [TopicPartition("demo", 1, 9), TopicPartition("nowhere", 1, 0)])
def test_a_partition_that_does_not_exist_is_refused(parts, partition):
    *_, routes = parts
    with pytest.raises(OptionError, match="TUBEMQ_PARTITION_NOT_LISTED"):
        routes.find([DEMO, partition])


def test_threads_that_ask_at_once_share_one_answer(parts):
    master, _, routes = parts
    master.gate = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        found = [threads.submit(routes.find, [DEMO]) for _ in range(5)]
        master.gate.set()
        assert len({tuple(one.result().partitions) for one in found}) == 1
    assert len(master.asked) == 1


def test_a_call_for_the_latest_routes_waits_for_the_call_that_asks(parts):
    """A master refuses a group other topics while one of its members asks."""
    master, _, routes = parts
    master.gate = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(routes.find, [DEMO])
        wait_until(lambda: master.asked)
        second = threads.submit(routes.layout, ["other"], missing_ok=False)
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.05)
        assert master.asked == [("demo",)]
        master.gate.set()
        assert first.result()
        assert second.result()
    assert master.asked == [("demo",), ("other",)]


def test_a_call_that_has_ended_leaves_the_line_and_asks_nothing(parts):
    master, _, routes = parts
    master.gate = threading.Event()
    stop = Stop()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(routes.find, [DEMO])
        wait_until(lambda: master.asked)
        second = threads.submit(routes.layout, ["other"], missing_ok=False, wait=stop)
        stop.set()
        with pytest.raises(StoppedError):
            second.result(2)
        master.gate.set()
        assert first.result()
    assert master.asked == [("demo",)]


def test_threads_that_waited_in_vain_fail_together(parts):
    master, clock, routes = parts
    master.away, master.gate = True, threading.Event()
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(routes.layout, ["demo"], missing_ok=False) for _ in range(3)]
        # Each reads it at the start.
        wait_until(lambda: clock.read >= 3)
        clock.now += 10
        master.gate.set()
        assert {type(one.exception()) for one in asking} == {TubeMQConnectionError}
    assert master.asked == [("demo",)]


def test_a_refresh_asks_for_the_routes_in_use_so_that_no_call_waits(parts):
    master, clock, routes = parts
    routes.find([DEMO])
    routes.known({"other"})
    master.asked.clear()
    clock.now += REFRESH_S - 1
    routes.refresh()
    assert master.asked == [("demo", "other")]
    clock.now += REFRESH_S - 1
    routes.find([DEMO])
    assert len(master.asked) == 1


def test_a_route_out_of_use_is_forgotten(parts):
    master, clock, routes = parts
    routes.known({"other"})
    clock.now += EXPIRY_S
    routes.find([DEMO])
    clock.now += 1
    master.asked.clear()
    routes.refresh()
    assert master.asked == [("demo",)]


def test_of_too_many_topics_the_one_that_was_not_used_for_longest_is_forgotten(parts, monkeypatch):
    monkeypatch.setattr("tubemq_spark.gateway.session.routes._MOST_TOPICS", 2)
    master, _, routes = parts
    for topic in ("other", "demo", "third"):
        routes.known({topic})
    master.asked.clear()
    routes.refresh()
    assert master.asked == [("demo", "third")]


def test_of_topics_that_do_not_exist_few_are_remembered(parts):
    master, _, routes = parts
    routes.find([DEMO])
    for first in range(0, 3_000, 1_000):
        routes.layout([f"none_{first + number}" for number in range(1_000)], missing_ok=True)
    master.asked.clear()
    routes.refresh()
    (asked,) = master.asked
    assert "demo" in asked
    assert len(asked) == 1_025
    assert [topic for topic, *_ in routes.shown(5_000)] == list(asked)


def test_a_topic_without_partitions_is_asked_for_again_soon(parts):
    master, clock, routes = parts
    routes.known({"third"})
    clock.now += 4
    routes.known({"third"})
    assert len(master.asked) == 1
    clock.now += 2
    routes.known({"third"})
    assert len(master.asked) == 2


def test_changes_are_told_once(parts):
    master, _, routes = parts
    told = []
    routes.on_change = lambda *change: told.append(change)
    routes.find([DEMO])
    routes.refresh()
    assert told == []
    master.partitions["demo"].append(TopicPartition("demo", 1, 10_002))
    routes.refresh()
    routes.refresh()
    assert told == [("demo", 5)]


def test_routes_are_degraded_while_no_master_answers(parts):
    master, _, routes = parts
    routes.find([DEMO])
    assert not routes.degraded
    master.away = True
    with pytest.raises(TubeMQConnectionError):
        routes.refresh()
    assert routes.degraded
    master.away = False
    routes.refresh()
    assert not routes.degraded
