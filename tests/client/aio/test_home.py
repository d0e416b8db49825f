"""Calls that threads leave in an event loop: each is made once, in its thread's order, whatever overlaps."""

import asyncio
import threading

import pytest
from hypothesis import given, settings, strategies as st

from tests.client.aio.running import coroutine
from tests.waiting import until
from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.errors import ProduceError


def home_loop():
    return HomeLoop(lambda: ProduceError("TUBEMQ_PRODUCER_LOOP"))


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_every_call_of_every_thread_is_made_in_order(counts):
    made = [[] for _ in counts]

    async def run():
        home = home_loop()
        home.enter()

        def leave(number, count):
            for step in range(count):
                home.post(lambda step=step: made[number].append(step))

        threads = [threading.Thread(target=leave, args=item) for item in enumerate(counts)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(until(lambda: sum(map(len, made)) == sum(counts)), 10)
        for thread in threads:
            thread.join()

    asyncio.run(run())
    assert made == [list(range(count)) for count in counts]


@coroutine
async def test_the_loop_is_woken_once_for_many_calls(monkeypatch):
    loop, wakes, made = asyncio.get_running_loop(), [], []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: wakes.append(1) or wake(*call))
    home = home_loop()
    home.enter()
    for number in range(100):
        home.post(lambda number=number: made.append(number))
    await until(lambda: len(made) == 100)
    assert len(wakes) == 1


def test_what_comes_after_the_end_of_the_loop_is_dropped():
    home = home_loop()

    async def enter():
        home.enter()

    asyncio.run(enter())
    home.post(lambda: pytest.fail("there is no loop"))
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_LOOP"):
        asyncio.run(enter())
