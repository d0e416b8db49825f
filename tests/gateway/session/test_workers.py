"""Threads of one kind of call: so many run, so many wait, the others are refused at once."""

import asyncio
import threading

import pytest

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.session.workers import Workers


def run(scenario, *, threads=2, waiting=1, queue_ms=5_000):
    """Run a scenario with workers, and a gate that their work waits for."""
    gate = threading.Event()

    async def whole():
        workers = Workers("reads", threads, waiting, queue_ms, "g1")
        try:
            return await scenario(workers, gate)
        finally:
            gate.set()
            assert await workers.close(5) == 0

    return asyncio.run(whole())


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_call_that_finds_no_thread_and_no_place_to_wait_is_refused_at_once():
    async def scenario(workers, gate):
        tasks = [asyncio.create_task(workers.run(gate.wait)) for _ in range(3)]
        await until(lambda: workers.running == 2)
        await asyncio.sleep(0)
        with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_BUSY") as refused:
            await workers.run(gate.wait)
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert refused.value.parameters["retry_after_ms"] > 0

    run(scenario)


def test_a_call_that_waits_too_long_is_refused_and_the_threads_go_on():
    async def scenario(workers, gate):
        first = asyncio.create_task(workers.run(gate.wait))
        await until(lambda: workers.running == 1)
        with pytest.raises(GatewayError, match="none of its 1 reads came to an end within 10 ms"):
            await workers.run(gate.wait)
        gate.set()
        assert await first
        assert await workers.run(lambda: "served") == "served"

    run(scenario, threads=1, queue_ms=10)


def test_a_cancelled_call_keeps_its_thread_until_that_has_ended():
    async def scenario(workers, gate):
        cancelled = asyncio.create_task(workers.run(gate.wait))
        await until(lambda: workers.running == 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert workers.running == 1
        with pytest.raises(GatewayError):
            await workers.run(gate.wait)
        gate.set()
        await until(lambda: workers.running == 0)
        assert await workers.run(lambda: 1) == 1

    run(scenario, threads=1, queue_ms=10)


def test_an_error_of_the_work_is_the_callers_and_frees_the_thread():
    async def scenario(workers, _):
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await workers.run(lambda: 1 // 0)
        await until(lambda: workers.running == 0)

    run(scenario)


def test_closing_does_not_wait_for_ever():
    async def scenario(workers, gate):
        stuck = asyncio.create_task(workers.run(gate.wait))
        await until(lambda: workers.running == 1)
        assert await workers.close(0.01) == 1
        gate.set()
        assert await stuck

    run(scenario)
