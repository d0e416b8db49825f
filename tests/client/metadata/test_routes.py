"""Routes: a master is asked when what it said is too old, once for all, and not while it is away."""

import asyncio

import pytest

from tests.memory_cluster import MemoryCluster
from tests.waiting import until
from tubemq_spark.client.metadata.routes import Routes
from tubemq_spark.errors import OptionError, RemoteProtocolError, TubeMQConnectionError
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

    async def layout(self, topics, *, missing_ok=False):
        self.asked.append(tuple(topics))
        if self.gate is not None:
            await self.gate.wait()
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
def master():
    return Master()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def routes(master, clock):
    return Routes(master, REFRESH_S, EXPIRY_S, clock)


DEMO = TopicPartition("demo", 1, 10_001)


async def call_that_asks(master, routes):
    """Return a call whose question the master does not answer until its gate is open."""
    master.gate = asyncio.Event()
    asking = asyncio.create_task(routes.find([DEMO]))
    await until(lambda: master.asked)
    return asking


async def test_an_answer_of_a_master_is_used_until_it_is_too_old(master, clock, routes):
    first = await routes.find([DEMO])
    clock.now += REFRESH_S
    assert await routes.find([DEMO]) == first
    assert len(master.asked) == 1

    clock.now += 1
    await routes.find([DEMO])
    assert len(master.asked) == 2


async def test_a_layout_is_asked_for_and_remembered(master, routes):
    await routes.layout(["demo", "other"], missing_ok=False)
    await routes.layout(["demo", "other"], missing_ok=False)
    assert set((await routes.find([DEMO, TopicPartition("other", 1, 0)])).partitions) == {
        DEMO,
        TopicPartition("other", 1, 0),
    }
    assert len(master.asked) == 2


async def test_a_route_that_proved_wrong_is_asked_for_again(master, routes):
    await routes.find([DEMO])
    routes.forget(["demo"])
    await routes.find([DEMO])
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
async def test_while_masters_are_away_the_last_answer_is_used_for_a_while(master, clock, routes, failure):
    master.failure = failure
    layout = await routes.find([DEMO])
    master.away = True
    clock.now += EXPIRY_S
    assert await routes.find([DEMO]) == layout

    clock.now += 1
    with pytest.raises(type(failure)):
        await routes.find([DEMO])


@pytest.mark.parametrize("partition", [TopicPartition("demo", 1, 9), TopicPartition("nowhere", 1, 0)])
async def test_a_partition_that_does_not_exist_is_refused(routes, partition):
    with pytest.raises(OptionError, match="TUBEMQ_PARTITION_NOT_LISTED"):
        await routes.find([DEMO, partition])


async def test_calls_that_ask_at_once_share_one_answer(master, routes):
    asking = [await call_that_asks(master, routes)]
    asking += [asyncio.create_task(routes.find([DEMO])) for _ in range(4)]
    await asyncio.sleep(0)
    master.gate.set()
    assert len({tuple(layout.partitions) for layout in await asyncio.gather(*asking)}) == 1
    assert len(master.asked) == 1


async def test_a_call_for_the_latest_routes_waits_for_the_call_that_asks(master, routes):
    """A master refuses a group other topics while one of its members asks."""
    first = await call_that_asks(master, routes)
    second = asyncio.create_task(routes.layout(["other"], missing_ok=False))
    assert not (await asyncio.wait({second}, timeout=0.05))[0]
    assert master.asked == [("demo",)]
    master.gate.set()
    assert await first
    assert await second
    assert master.asked == [("demo",), ("other",)]


async def test_a_call_that_has_ended_leaves_the_line_and_asks_nothing(master, routes):
    first = await call_that_asks(master, routes)
    second = asyncio.create_task(routes.layout(["other"], missing_ok=False))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    master.gate.set()
    assert await first
    assert master.asked == [("demo",)]


async def test_the_end_of_the_call_that_asks_ends_its_question_and_the_next_one_asks(master, routes):
    first = await call_that_asks(master, routes)
    second = asyncio.create_task(routes.find([DEMO]))
    await asyncio.sleep(0)
    first.cancel()
    await until(lambda: len(master.asked) == 2)
    master.gate.set()
    assert await second


async def test_calls_that_waited_in_vain_fail_together(master, clock, routes):
    master.away, master.gate = True, asyncio.Event()
    asking = [asyncio.create_task(routes.layout(["demo"], missing_ok=False)) for _ in range(3)]
    # Each reads it at the start.
    await until(lambda: clock.read >= 3)
    clock.now += 10
    master.gate.set()
    errors = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(error) for error in errors} == {TubeMQConnectionError}
    assert master.asked == [("demo",)]


async def test_a_refresh_asks_for_the_routes_in_use_so_that_no_call_waits(master, clock, routes):
    await routes.find([DEMO])
    await routes.known({"other"})
    master.asked.clear()
    clock.now += REFRESH_S - 1
    await routes.refresh()
    assert master.asked == [("demo", "other")]
    clock.now += REFRESH_S - 1
    await routes.find([DEMO])
    assert len(master.asked) == 1


async def test_a_route_out_of_use_is_forgotten(master, clock, routes):
    await routes.known({"other"})
    clock.now += EXPIRY_S
    await routes.find([DEMO])
    clock.now += 1
    master.asked.clear()
    await routes.refresh()
    assert master.asked == [("demo",)]


async def test_of_too_many_topics_the_one_that_was_not_used_for_longest_is_forgotten(
    master, routes, monkeypatch
):
    monkeypatch.setattr("tubemq_spark.client.metadata.routes._MOST_TOPICS", 2)
    for topic in ("other", "demo", "third"):
        await routes.known({topic})
    master.asked.clear()
    await routes.refresh()
    assert master.asked == [("demo", "third")]


async def test_of_topics_that_do_not_exist_few_are_remembered(master, routes):
    await routes.find([DEMO])
    for first in range(0, 3_000, 1_000):
        await routes.layout([f"none_{first + number}" for number in range(1_000)], missing_ok=True)
    master.asked.clear()
    await routes.refresh()
    (asked,) = master.asked
    assert "demo" in asked
    assert len(asked) == 1_025
    assert [topic for topic, *_ in routes.shown(5_000)] == list(asked)


async def test_a_topic_without_partitions_is_asked_for_again_soon(master, clock, routes):
    await routes.known({"third"})
    clock.now += 4
    await routes.known({"third"})
    assert len(master.asked) == 1
    clock.now += 2
    await routes.known({"third"})
    assert len(master.asked) == 2


async def test_changes_are_told_once(master, routes):
    changes = []
    routes.on_change = lambda *change: changes.append(change)
    await routes.find([DEMO])
    await routes.refresh()
    assert changes == []
    master.partitions["demo"].append(TopicPartition("demo", 1, 10_002))
    await routes.refresh()
    await routes.refresh()
    assert changes == [("demo", 5)]


async def test_routes_are_degraded_while_no_master_answers(master, routes):
    await routes.find([DEMO])
    assert not routes.degraded
    master.away = True
    with pytest.raises(TubeMQConnectionError):
        await routes.refresh()
    assert routes.degraded
    master.away = False
    await routes.refresh()
    assert not routes.degraded
