"""A range on its way from its thread to its client."""

import asyncio
import threading

from tubemq_spark.gateway.admission import Owner, Room
from tubemq_spark.gateway.data import reading
from tubemq_spark.gateway.metrics import Metrics

WAIT_SECONDS = 10


def test_what_is_read_is_passed_on_while_the_thread_reads_on(monkeypatch):
    """Not only when a client is told that the gateway is alive, or at the end."""
    monkeypatch.setattr(reading, "_SIGN_S", 10 * WAIT_SECONDS)
    is_passed_on, waited = threading.Event(), []

    async def read():
        range_, loop = reading._Reading(Owner("me"), Room(1_000), Metrics()), asyncio.get_running_loop()

        def put_two():
            begins.wait(WAIT_SECONDS)
            range_._put(b"first", 1)
            waited.append(is_passed_on.wait(WAIT_SECONDS))
            range_._put(b"second", 2)

        begins = threading.Event()
        messages = range_.messages(loop.run_in_executor(None, put_two))
        loop.call_later(0.05, begins.set)  # the coroutine waits by then
        passed_on = []
        async for message in messages:
            passed_on.append(message)
            is_passed_on.set()
        return passed_on

    assert asyncio.run(read()) == [(b"first", 1), (b"second", 2)]
    assert waited == [True]
