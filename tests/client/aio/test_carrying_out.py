"""Rules that an event loop carries out: who goes on with them, and what becomes of those that nobody ends."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from tests.client.aio.running import coroutine, until
from tubemq_spark.client.aio.carrying_out import CarryingOut
from tubemq_spark.client.aio.home import HomeLoop
from tubemq_spark.client.aio.workers import Workers
from tubemq_spark.client.steps import Blocking, PartitionLock, Started, wait_for
from tubemq_spark.errors import ProduceError, TubeMQTimeoutError


class Answer(Started):
    """An answer that comes when a test says so."""

    remaining_s = 1_000.0

    def __init__(self, remaining_s=1_000.0):
        self.remaining_s = remaining_s
        self.asked = 0
        self.listener = None
        self.outcome = "in time"

    def when_done(self, listener):
        self.listener = listener

    def result(self):
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def carrying_out():
    home = HomeLoop(lambda: ProduceError("TUBEMQ_PRODUCER_LOOP"))
    return CarryingOut(home, Workers())


@coroutine
async def test_a_rule_goes_on_with_what_it_waits_for_and_not_with_what_comes_too_late():
    first, second = Answer(remaining_s=0), Answer()

    def rule():
        return (yield from wait_for(first)), (yield from wait_for(second))

    ending = carrying_out().start(rule())
    await until(lambda: second.listener)
    first.listener()
    await asyncio.sleep(0.01)
    assert (first.asked, second.asked) == (1, 0), "its time was over, and it had gone on"
    second.listener()
    assert await ending == ("in time", "in time")


@coroutine
async def test_a_rule_is_told_that_time_is_over():
    overdue = Answer(remaining_s=0)
    overdue.outcome = TubeMQTimeoutError("TUBEMQ_TIMEOUT", endpoint="b", timeout_ms=1, during="fetching")

    def rule():
        yield from wait_for(overdue)

    with pytest.raises(TubeMQTimeoutError):
        await carrying_out().run(rule())


@coroutine
async def test_what_blocks_blocks_a_worker():
    def rule():
        return (yield from wait_for(Blocking(lambda: threading.current_thread().name)))

    assert (await carrying_out().run(rule())).startswith("tubemq-aio-steps")


@coroutine
async def test_a_rule_is_carried_out_when_nobody_waits_any_more():
    answer, done = Answer(), []

    def rule():
        done.append((yield from wait_for(answer)))

    waiting = asyncio.ensure_future(carrying_out().run(rule()))
    await until(lambda: answer.listener)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    answer.listener()
    await until(lambda: done)


@coroutine
async def test_rules_and_threads_take_turns_with_a_lock():
    lock, rules, order = PartitionLock(), carrying_out(), []
    future = Future()

    def rule(number):
        yield from lock.take()
        try:
            order.append(number)
            yield from wait_for(future)
        finally:
            lock.release()

    first, second = rules.start(rule(1)), rules.start(rule(2))

    def use():
        with lock:
            order.append(3)

    thread = threading.Thread(target=use)
    thread.start()
    await until(lambda: len(lock._line) == 2)
    assert order == [1]
    future.set_result(None)
    await asyncio.gather(first, second)
    thread.join()
    assert order == [1, 2, 3]


def test_rules_of_a_loop_that_has_ended_give_back_what_they_hold():
    lock, kept = PartitionLock(), []

    def rule():
        yield from lock.take()
        try:
            yield from wait_for(Answer())
        finally:
            lock.release()

    async def begin():
        kept.append(carrying_out())
        for _ in range(3):
            kept[0].start(rule())

    asyncio.run(begin())
    assert not lock.try_take()
    kept[0].abandon()
    assert lock.try_take()
